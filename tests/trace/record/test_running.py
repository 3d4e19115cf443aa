"""One forward: what it may fail with, what is lent to it, and a model that is afterwards as it was before."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Wav2Vec2Config, Wav2Vec2ForSequenceClassification

import headscope
from headscope.core.trace.slice.observe import observe_inputs
from headscope.errors import Unsupported
from headscope.facts import PoolingKind
from tests.edits import edit_json
from tests.families import FAMILIES
from tests.trace.heads import IDS, Made

EXAMPLES = {"x": torch.randn(2, 4, generator=torch.Generator().manual_seed(3))}
TEXT = {"input_ids": IDS["ids"]}


def classifier(family: str, **changes: Any) -> PreTrainedModel:
    return FAMILIES[family].build(FAMILIES[family].classifier, **changes)


def gpt2(**changes: Any) -> PreTrainedModel:
    """As people have it: no pad token."""
    return classifier("gpt2", num_labels=3, bos_token_id=98, eos_token_id=98, **changes)


def llama() -> PreTrainedModel:
    return classifier("llama", num_labels=3, num_hidden_layers=1)


@pytest.mark.parametrize("build", [gpt2, llama])
def test_a_model_in_memory_without_a_pad_token_is_lent_one_for_the_run(build: Any) -> None:
    model = build()
    report = headscope.inspect(model)
    assert report.head.pooling.kind is PoolingKind.LAST_NON_PAD_TOKEN
    assert any("pad token" in note for note in report.notes)
    assert model.config.pad_token_id is None


ON_ONE_TEXT = "without a pad token, the head reads a single text differently: last position, padding or not"


@pytest.mark.parametrize("build", [gpt2, llama])
def test_the_sentence_is_true_of_one_text_and_of_several_without_a_pad_token(build: Any) -> None:
    model = build().eval()
    ids = torch.tensor([[5, 6, 7, 3, 3], [5, 6, 7, 8, 9]])
    with torch.no_grad(), pytest.raises(ValueError, match="no padding token"):
        model(input_ids=ids)
    with torch.no_grad():
        each = model.score(model.base_model(ids[:1]).last_hidden_state)
        assert torch.equal(model(input_ids=ids[:1]).logits, each[:, -1])  # the 3s are not known as padding
    report = headscope.inspect(model)
    head = report.head
    assert head.pooling.rule.endswith("found from input_ids")
    assert ON_ONE_TEXT in report.notes
    model.config.pad_token_id = 3
    with torch.no_grad():
        each = model.score(model.base_model(ids).last_hidden_state)
        assert torch.equal(model(input_ids=ids).logits, torch.stack([each[0, 2], each[1, -1]]))
    report = headscope.inspect(model)
    assert report.head == replace(head, verification=report.head.verification if report.head else None)
    assert not any("pad token" in note for note in report.notes)


def test_a_pad_token_is_lent_to_a_model_inside_another() -> None:
    wrapper = Made(lambda s, **inputs: s.inner(**inputs).logits, inner=gpt2())
    report = headscope.inspect(wrapper, example_inputs=TEXT | {"attention_mask": torch.ones(2, 6, dtype=torch.long)})
    assert report.head.pooling.kind is PoolingKind.LAST_NON_PAD_TOKEN


def test_no_pad_token_is_lent_for_somebodys_own_inputs() -> None:
    ids = torch.randint(3, 90, (2, 6), generator=torch.Generator().manual_seed(1))
    with pytest.raises(Unsupported) as caught:
        observe_inputs(gpt2(), {"input_ids": ids})
    assert "padding token" in caught.value.message
    assert "set pad_token_id" in caught.value.hint
    one = observe_inputs(gpt2(), {"input_ids": ids[:1]})
    with torch.no_grad():
        expected = gpt2().eval()(input_ids=ids[:1]).logits
    assert one.logits is not None
    assert torch.equal(one.logits, expected)


def ends_by(error: BaseException) -> Made:
    def fails(s: Any, x: Tensor) -> Tensor:
        raise error

    return Made(fails, fc=nn.Linear(4, 3))


@pytest.mark.parametrize("error", [SystemExit(3), ValueError("not\nthis"), MemoryError(), RecursionError("deep")])
def test_whatever_a_forward_raises_is_one_sentence(error: BaseException) -> None:
    with pytest.raises(Unsupported) as caught:
        headscope.inspect(ends_by(error), example_inputs=EXAMPLES)
    assert type(error).__name__ in caught.value.message
    assert "\n" not in caught.value.message


def test_an_interruption_passes() -> None:
    model = ends_by(KeyboardInterrupt()).train()
    with pytest.raises(KeyboardInterrupt):
        headscope.inspect(model, example_inputs=EXAMPLES)
    assert model.fc.training


class Busy(nn.Module):
    """It changes all that a forward can change: buffers in place and by another tensor, counters, attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.fc = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("last", torch.zeros(4))
        self.plain = torch.zeros(2)
        self.count = 0
        self.history: list[Tensor] = []
        self.cache: dict[str, Tensor] = {}

    def train(self, mode: bool = True) -> "Busy":
        super().train(mode)
        self.fc.weight.data += 1  # some merge their adapters here
        self.norm.train(True)
        return self

    def forward(self, x: Tensor) -> Tensor:
        self.norm.train(True)  # such as they are found: statistics are updated whatever the mode
        x = self.norm(x)
        self.calls += 1
        self.last = x.mean(0)
        self.plain.add_(1)
        self.count += 1
        self.seen = x
        self.history.append(x)
        self.cache["x"] = x
        return self.fc(nn.functional.dropout(x, 0.5))


def test_a_forward_leaves_nothing_behind() -> None:
    torch.manual_seed(0)
    model = Busy()
    nn.Module.train(model, True)
    model.fc.eval()
    values = {name: value.clone() for name, value in model.state_dict().items()}
    held = {name: id(value) for name, value in [*model.named_buffers(), *model.named_parameters()]}
    modes, attributes, random = [part.training for part in model.modules()], set(vars(model)), torch.get_rng_state()
    report = headscope.inspect(model, example_inputs=EXAMPLES)
    assert report.head is not None
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    assert {name: id(value) for name, value in [*model.named_buffers(), *model.named_parameters()]} == held
    assert [part.training for part in model.modules()] == modes
    assert (model.count, model.plain.tolist(), set(vars(model))) == (0, [0.0, 0.0], attributes)
    assert (model.history, model.cache) == ([], {})
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert not nn.modules.module._global_forward_hooks and not nn.modules.module._global_forward_pre_hooks


def test_the_layers_that_a_model_returns_are_as_many_after_an_examination_as_before() -> None:
    """Transformers collects them with hooks that it adds in the first forward that asks for them."""
    model, untouched, ids = llama(), llama(), torch.tensor([[5, 6, 7]])
    headscope.inspect(model)
    run = {"attention_mask": torch.ones(1, 3), "output_hidden_states": True}
    for _ in range(2):
        headscope.inspect(of_layers(model), example_inputs=TEXT)
    assert len(model(ids, **run).hidden_states) == len(untouched(ids, **run).hidden_states) == 2


def of_layers(inner: nn.Module) -> Made:
    """The score of the first token of the embeddings and of the layer above."""

    def scores(s: Any, input_ids: Tensor) -> Tensor:
        below, above = s.inner.model(input_ids, output_hidden_states=True).hidden_states
        return s.fc(torch.cat([below[:, 0], above[:, 0]], -1))

    return Made(scores, inner=inner, fc=nn.Linear(64, 3))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_labels": 1},
        {"num_labels": 4, "problem_type": "multi_label_classification"},
        {"num_labels": 3, "problem_type": "regression"},
    ],
    ids=str,
)
def test_a_loss_that_problem_type_does_not_choose_is_the_one_that_ran(changes: dict[str, Any], tmp_path: Path) -> None:
    """With labels of another form the forward fails; what that attempt leaves must not reach the next one."""
    sizes = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20,
        "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4, "classifier_proj_size": 12, "num_feat_extract_layers": 2,
    }  # fmt: skip
    config: Any = Wav2Vec2Config
    model = Wav2Vec2ForSequenceClassification(config(**sizes, use_weighted_layer_sum=True, **changes)).eval()
    labels = torch.zeros(2, dtype=torch.long)
    with torch.no_grad():
        out = model(torch.randn(2, 400), labels=labels)
    assert torch.equal(out.loss, nn.functional.cross_entropy(out.logits, labels))
    model.save_pretrained(tmp_path)
    for report in (headscope.inspect(str(tmp_path), offline=True), headscope.inspect(model)):
        assert report.head is not None, report.not_determined
        assert (report.model.loss, report.model.activation) == ("CrossEntropyLoss", "softmax")
        assert report.model.reads_problem_type is False
        problem = [line for line in str(report).splitlines() if line.startswith("problem")]
        assert len(problem) == ("problem_type" in changes)
        assert all("not read" in line for line in problem)


@pytest.mark.parametrize(
    ("family", "name", "reads"),
    [
        ("bert", "BertForSequenceClassification", True),
        ("deberta-v2", "DebertaV2ForSequenceClassification", True),
        ("bert", "BertForTokenClassification", False),
        ("bert", "BertForMultipleChoice", False),
    ],
)
def test_whether_a_forward_reads_the_problem_type_is_seen(family: str, name: str, reads: bool) -> None:
    """The oracle is the forward itself: a problem type that does not exist makes it compute no loss, or another."""
    model = FAMILIES[family].build(name, num_labels=3)
    report = headscope.inspect(model)
    assert report.model.reads_problem_type is reads
    assert ("problem_type not set" in str(report)) is reads
    shape = (2, 3, 4) if name == "BertForMultipleChoice" else (2, 4)
    ids = torch.ones(shape, dtype=torch.long)
    targets = torch.zeros(shape if name == "BertForTokenClassification" else 2, dtype=torch.long)
    plain = model(ids, labels=targets).loss
    vars(model.config)["problem_type"] = "multi_label_classification"
    try:
        same = torch.equal(model(ids, labels=targets).loss, plain)
    except (ValueError, RuntimeError):
        same = False
    assert same is not reads


def test_a_module_without_a_configuration_has_no_names_for_its_classes() -> None:
    report = headscope.inspect(of_layers(llama()), example_inputs=TEXT)
    assert (report.model.num_labels, report.model.labels) == (3, ())
    assert "LABEL_0" not in str(report)
    assert "problem_type" not in str(report)


def test_what_a_configuration_says_is_put_back() -> None:
    model = gpt2(problem_type=None)
    before = model.config.to_dict()
    observe_inputs(model, {"input_ids": torch.ones(1, 5, dtype=torch.long), "labels": torch.tensor([1])})
    assert model.config.to_dict() == before


@dataclass
class Scores:
    logits: Tensor


@pytest.mark.parametrize(
    ("made", "found"),
    [(None, None), (torch.tensor(1.0), None), ("text", None), (Scores(torch.ones(2, 3)), 1), ((torch.ones(2, 3),), 1)],
)
def test_what_a_forward_returns_has_scores_or_is_refused(made: Any, found: int | None) -> None:
    from headscope.core.trace.record.outputs import read_outputs
    from headscope.core.trace.record.recorder import Graph

    if found:
        assert len(read_outputs(nn.Identity(), made, Graph()).scores) == found
        return
    with pytest.raises(Unsupported, match="no scores"):
        read_outputs(nn.Identity(), made, Graph())


def test_there_is_one_way_to_run_a_forward() -> None:
    folder = Path(headscope.__file__).parent
    pattern = r"\bmodel\(|\bmodule\(|recording\(|_(?:run|record_forward)\(model[,)]"
    # Renderers know no PyTorch: what they call a model is in the code that they write.
    files = [path for path in folder.rglob("*.py") if "screen" not in path.parts]
    found = [(path.name, line) for path in files for line in path.read_text(encoding="utf-8").splitlines()
             if re.search(pattern, line) and not re.search(r"def \w+\(", line)]  # fmt: skip
    calls = {name for name, _ in found}
    records, predicts = {"execution.py"}, {"inference.py"}
    proves = {"head_proof.py", "adapter_head.py", "proof.py"}  # in a process of its own, what a user will run
    tries = {"observing.py"}  # a model as its user calls it
    assert calls == records | predicts | proves | tries, found


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_a_decoder_without_a_start_says_what_to_set(family: str, tmp_path: Path) -> None:
    classifier(family).save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", {"decoder_start_token_id": None})
    (gap,) = headscope.inspect(str(tmp_path)).not_determined
    told = re.search(r"decoder_start_token_id isn't set.*\(usually (\d+)\)", gap.reason)
    assert told is not None
    edit_json(tmp_path / "config.json", {"decoder_start_token_id": int(told[1])})
    report = headscope.inspect(str(tmp_path))
    assert report.not_determined == () and report.head is not None
