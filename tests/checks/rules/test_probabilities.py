"""HS207 on real models: what ends their forward, what their loss and the pipelines of Transformers do with it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import (
    AudioClassificationPipeline,
    ImageClassificationPipeline,
    TextClassificationPipeline,
    VideoClassificationPipeline,
)
from transformers.modeling_outputs import SequenceClassifierOutput

import headscope
from headscope.checks.rules.rule import NotKnown
from headscope.core.facts.built import ConfigFacts
from headscope.facts import Finding, Task
from tests.checks.ended import EndedBert, Ending, SoftmaxedBert, binary_cross_entropy as bce, cross_entropy as ce, ended
from tests.checks.rules.subjects import (
    INFERENCE,
    MEMORY,
    SIGMOID,
    SILENT,
    SOFTMAXED,
    WARNING,
    findings,
    head,
    model,
    severities,
    stage,
    subject,
)
from tests.edits import edit_json
from tests.families import FAMILIES
from tests.modules import dense, pooling, write_chain

SEVERAL: dict[str, Any] = {"problem_type": "multi_label_classification"}
NLL = functional.nll_loss
BOTH = ["training", "inference"]


def small(ending: Ending, classes: int = 3, **settings: Any) -> EndedBert:
    """A small model in memory with this ending."""
    names = {number: f"class {number}" for number in range(classes)}
    labels = {"id2label": names, "label2id": {name: number for number, name in names.items()}}
    config = FAMILIES["bert"].build("BertForSequenceClassification", **labels, **settings).config
    own: Any = type("Own", (EndedBert,), {"ending": staticmethod(ending)})
    made: EndedBert = own(config).eval()
    return made


def found(subject: Any, profile: Any, **options: Any) -> list[Finding]:
    result = headscope.check(subject, profile, select="HS207", **options)
    assert [item.severity for item in result.findings] == [WARNING] * len(result.findings)
    return list(result.findings)


def is_open(subject: Any, profile: Any) -> bool:
    return bool(headscope.check(subject, profile, select="HS207").not_determined)


def both(scores: Tensor, labels: Tensor | None, loss: Any = ce) -> tuple[Tensor, Tensor | None]:
    return scores, loss(scores, labels)


FOUND: dict[str, tuple[Ending, dict[str, Any], list[str]]] = {
    "dim=1": (lambda z, y: both(z.softmax(dim=1), y), {}, BOTH),
    "no dim": (lambda z, y: both(functional.softmax(z), y), {}, BOTH),
    "laid out": (lambda z, y: both(torch.softmax(z, -1).unsqueeze(1).squeeze(1).view(-1, 3).to(z.dtype), y), {}, BOTH),
    "another name of it": (lambda z, y: both(torch.special.softmax(z, -1), y), {}, BOTH),
    "axis": (lambda z, y: both(torch.softmax(z, axis=-1), y), {}, BOTH),
    "expit": (lambda z, y: both(torch.special.expit(z), y), {}, BOTH),
    "temperature": (lambda z, y: both((z / 2).softmax(-1), y), {}, BOTH),
    "sigmoid, CE": (lambda z, y: both(z.sigmoid(), y), {}, BOTH),
    "sigmoid in place": (lambda z, y: both(z.clone().sigmoid_(), y, bce), SEVERAL, BOTH),
    "softmax, BCE": (lambda z, y: both(z.softmax(-1), y, bce), SEVERAL, BOTH),
    "one class": (lambda z, y: both(z.sigmoid(), y, bce), SEVERAL | {"classes": 1}, BOTH),
    # The loss is right, or not determined, and the pipeline applies its function all the same.
    "loss of scores": (lambda z, y: (z.softmax(-1), ce(z, y)), {}, ["inference"]),
    "loss of logs": (lambda z, y: (z.softmax(-1), None if y is None else NLL(z.log_softmax(-1), y)), {}, ["inference"]),
    "BCELoss": (
        lambda z, y: (z.sigmoid(), None if y is None else functional.binary_cross_entropy(z.sigmoid(), y.float())),
        SEVERAL, ["inference"],
    ),
}  # fmt: skip
NOT_FOUND: dict[str, tuple[Ending, dict[str, Any]]] = {
    "scores": (both, {}),
    "logs": (lambda z, y: both(z.log_softmax(-1), y), {}),
    "logs of a softmax": (lambda z, y: both(z.softmax(-1).log(), y), {}),
    "gate": (lambda z, y: both(z * z.sigmoid(), y), {}),
    "tanh": (lambda z, y: both(z.tanh(), y), {}),
    "relu": (lambda z, y: both(z.relu(), y), {}),
    "scaled": (lambda z, y: both(z.softmax(-1) * 20, y), {}),
    "rows": (lambda z, y: both(z.softmax(0), y), {}),
    "rows by another name": (lambda z, y: both(torch.softmax(z, axis=0), y), {}),
    "dropped in training": (lambda z, y: both(functional.dropout(z.softmax(-1), 0.5, training=False), y), {}),
    "half of a softmax": (lambda z, y: both(torch.cat([z, z], -1).softmax(-1)[:, :3], y), {}),
    "regression": (lambda z, y: (z.sigmoid(), None), {"classes": 1, "problem_type": "regression"}),
}


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize(("ending", "settings", "profiles"), FOUND.values(), ids=FOUND)
def test_a_function_at_the_end_is_found_where_another_follows(
    ending: Ending, settings: dict[str, Any], profiles: list[str]
) -> None:
    made = small(ending, **settings)
    assert [profile for profile in BOTH if found(made, profile)] == profiles
    assert is_open(made, "training") == ("training" not in profiles)


@pytest.mark.parametrize(("ending", "settings"), NOT_FOUND.values(), ids=NOT_FOUND)
def test_other_ends_are_not_found(ending: Ending, settings: dict[str, Any]) -> None:
    made = small(ending, **settings)
    assert [found(made, profile) for profile in BOTH] == [[], []]


class OnlyEvaluated(EndedBert):
    """Returns probabilities in evaluation mode, and gives its loss the scores in training."""

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
        scores = self.classifier(self.bert(input_ids, attention_mask=attention_mask).pooler_output)
        scores = scores if self.training else scores.softmax(-1)
        return SequenceClassifierOutput(loss=ce(scores, labels), logits=scores)


class DecoratedEvaluated(OnlyEvaluated):
    """The same below a decorator, as classes of Transformers have."""

    forward = torch.no_grad()(OnlyEvaluated.forward)


class AskingEvaluated(EndedBert):
    """The same, by a property."""

    @property
    def is_sure(self) -> bool:
        return not any(part.training for part in [self])

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
        scores = self.classifier(self.bert(input_ids, attention_mask=attention_mask).pooler_output)
        scores = scores.softmax(-1) if self.is_sure else scores
        return SequenceClassifierOutput(loss=ce(scores, labels), logits=scores)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("cls", [OnlyEvaluated, DecoratedEvaluated, AskingEvaluated])
def test_a_softmax_in_evaluation_mode_only_is_not_in_the_loss(cls: Any, training: bool) -> None:
    made = cls(small(both).config).train(training)
    assert (found(made, "training"), len(found(made, "inference"))) == ([], 1)
    assert is_open(made, "training")
    assert {part.training for part in made.modules()} == {training} and not made._forward_pre_hooks


def test_a_model_that_runs_only_in_evaluation_mode_leaves_its_loss_open() -> None:
    class NeverTrained(SoftmaxedBert):
        def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
            if self.training:
                raise RuntimeError("no")
            return super().forward(input_ids, attention_mask, labels)

    made = NeverTrained(small(both).config)
    assert (found(made, "training"), is_open(made, "training"), len(found(made, "inference"))) == ([], True, 1)


def bounds(finding: Finding) -> list[float]:
    return [float(number) for number in re.findall(r"\d\.\d+", finding.message)]


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("end", [lambda z: z.softmax(-1), torch.sigmoid], ids=["softmax", "sigmoid"])
def test_no_class_gets_more_in_the_loss_than_the_number_that_is_named(end: Any, classes: int) -> None:
    made = small(lambda z, y: both(end(z), y), classes)
    (most,) = bounds(found(made, "training")[0])
    batch = {"input_ids": torch.arange(5, 5 + classes).view(-1, 1), "labels": torch.arange(classes)}
    assert made(**batch).loss.neg().exp().item() < most
    # Logits of a model that is sure and right: what the ending makes of them is the loss at its least.
    sure = (functional.one_hot(batch["labels"]) - 0.5) * 2000
    made.classifier.register_forward_hook(lambda *_: sure)
    assert made(**batch).loss.neg().exp().item() == pytest.approx(most, abs=0.005)
    assert functional.cross_entropy(sure, batch["labels"]).item() == 0


def test_the_range_named_for_a_sigmoid_is_that_of_the_loss() -> None:
    named = bounds(found(small(lambda z, y: both(z.sigmoid(), y, bce), **SEVERAL), "training")[0])
    losses = functional.binary_cross_entropy_with_logits(torch.tensor([0.0, 1.0]), torch.ones(2), reduction="none")
    assert named == pytest.approx(losses.neg().exp().tolist(), abs=0.005)


PIPELINES: dict[Task, Any] = {
    Task.SEQUENCE_CLASSIFICATION: TextClassificationPipeline,
    Task.IMAGE_CLASSIFICATION: ImageClassificationPipeline,
    Task.AUDIO_CLASSIFICATION: AudioClassificationPipeline,
    Task.VIDEO_CLASSIFICATION: VideoClassificationPipeline,
}


@pytest.mark.parametrize("problem", [None, "regression", "single_label_classification", "multi_label_classification"])
@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize("task", PIPELINES)
def test_the_score_that_is_named_is_what_the_pipeline_gives(task: Task, classes: int, problem: str | None) -> None:
    names = {number: str(number) for number in range(classes)}
    config = SimpleNamespace(problem_type=problem, num_labels=classes, id2label=names)
    pipeline = SimpleNamespace(model=SimpleNamespace(config=config))
    given = SequenceClassifierOutput(logits=torch.eye(classes)[:1])
    options = {"_legacy": False, "top_k": None} if task is Task.SEQUENCE_CLASSIFICATION else {"top_k": classes}
    scored = PIPELINES[task].postprocess(pipeline, given, **options)
    about = subject(
        INFERENCE, head=SIGMOID, model=model(task=task, num_labels=classes), config=ConfigFacts(problem_type=problem)
    )
    largest = max(item["score"] for item in scored)
    named_bounds = [bounds(item)[-1] for item in findings("HS207", about)]
    assert named_bounds == ([] if largest == 1 else [pytest.approx(largest, abs=0.005)])


@pytest.mark.parametrize("name", ["SoftmaxedBert", "SoftmaxedTagger"])
def test_code_that_comes_with_a_checkpoint_is_judged(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "own"
    ended(name)(folder)
    (folder / "own.py").write_text(f"from tests.checks.ended import {name} as Ended\n\n\nclass Own(Ended):\n    pass\n")
    kind = "Token" if name.endswith("Tagger") else "Sequence"
    edit_json(
        folder / "config.json", {"auto_map": {f"AutoModelFor{kind}Classification": "own.Own"}, "architectures": ["Own"]}
    )
    for profile in BOTH:
        (finding,) = found(str(folder), profile, trust_remote_code=True, offline=True)
        assert "(ended.py:" in finding.message and bounds(finding) == [0.58]
        assert ("function_to_apply" in finding.remedy) == (profile == "inference" and kind == "Sequence")


@pytest.mark.parametrize(("activation", "count"), [("Sigmoid", 1), ("Identity", 0)])
def test_a_chain_is_judged_by_what_its_library_applies(activation: str, count: int, tmp_path: Path) -> None:
    path = f"torch.nn.modules.{'linear' if activation == 'Identity' else 'activation'}.{activation}"
    folder = write_chain(tmp_path, "Bert", [pooling("mean"), dense(16, 1, "Sigmoid")], activation_fn=path)
    result = found(str(folder), "inference", offline=True)
    assert ["CrossEncoder applies a sigmoid again" in item.message for item in result] == [True] * count


def test_what_the_facts_leave_open() -> None:
    assert severities("HS207", head=SOFTMAXED) == ([WARNING], [WARNING])
    assert severities("HS207", head=head(stages=(stage("log_softmax"),))) == SILENT
    assert severities("HS207", head=SOFTMAXED, model=model(num_labels=4)) == SILENT
    assert severities("HS207", head=SOFTMAXED, model=model(task=Task.QUESTION_ANSWERING)) == SILENT
    assert severities("HS207", head=None, model=model(task=Task.MULTIPLE_CHOICE)) == SILENT
    assert not findings("HS207", subject(head=SIGMOID, model=model(loss="MSELoss")))
    assert not findings("HS207", subject(INFERENCE, head=SIGMOID, checkpoint=MEMORY, config=ConfigFacts()))
    for open_facts in ({"head": None}, {"head": SIGMOID, "model": model(loss="none")}):
        with pytest.raises(NotKnown):
            findings("HS207", subject(**open_facts))
