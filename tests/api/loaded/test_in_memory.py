"""Models in memory: compared with what they were loaded from, unwrapped where meant, refused in one sentence else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import headscope
from headscope.errors import HeadscopeError, Unsupported, UsageError
from headscope.facts import CheckpointKind, PoolingKind, Task
from tests.families import FAMILIES

NAMED = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
BERT = transformers.BertForSequenceClassification


class BareClassifier(transformers.BertPreTrainedModel):
    """A classifier of somebody's own, made from no class of Transformers with a head."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert = transformers.BertModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.classifier(self.bert(input_ids, attention_mask=attention_mask).last_hidden_state)


def with_lora(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"], r=2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("mlm")
    FAMILIES["bert"].build("BertForMaskedLM").save_pretrained(place)
    return place


@pytest.fixture
def loaded(folder: Path) -> Any:
    return BERT.from_pretrained(folder, output_loading_info=True, **NAMED)


def test_a_loaded_model_is_told_as_its_folder_is(loaded: Any, folder: Path) -> None:
    model, info = loaded
    live, stored = headscope.inspect(model), headscope.inspect(str(folder), labels="no,yes", model_class=BERT.__name__)
    assert set(live.weights.new) == set(info["missing_keys"])
    assert set(live.weights.unused) == set(info["unexpected_keys"])
    assert {item.name for item in live.head.parameters if item.status == "new"} == set(info["missing_keys"])
    assert live.model == stored.model
    assert live.head == stored.head
    assert [(item.id, item.parameters) for item in live.findings] == [
        (item.id, item.parameters) for item in stored.findings
    ]
    assert live.checkpoint.kind is CheckpointKind.MEMORY
    assert any(str(folder) in note for note in live.notes)


def test_a_model_from_a_configuration_is_not_taken_for_loaded(folder: Path) -> None:
    model = BERT(transformers.AutoConfig.from_pretrained(folder))
    assert model.name_or_path == str(folder)
    report = headscope.inspect(model)
    assert {item.status.value for item in report.head.parameters} == {"unknown"}
    assert [gap.topic for gap in report.not_determined] == ["checkpoint"]
    assert headscope.check(model, "inference").verdict == "not_determined"


def test_a_configuration_of_two_text_models_is_examined(folder: Path) -> None:
    class TwoTexts(transformers.BertConfig):
        def __init__(self, **fields: Any) -> None:
            super().__init__(**fields)
            self.text_config = self.text_encoder = transformers.BertConfig(hidden_size=16)

    own = transformers.AutoConfig.from_pretrained(folder).to_dict()
    config = TwoTexts(**{name: value for name, value in own.items() if name != "model_type"})
    with pytest.raises(ValueError, match="text_config"):
        config.get_text_config()
    ids = torch.randint(5, 20, (2, 7))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    assert headscope.inspect(BERT(config), example_inputs=given).head.pooling.kind is PoolingKind.FIRST_TOKEN


def test_a_head_that_was_replaced_after_the_load_is_new(loaded: Any) -> None:
    model, info = loaded
    model.classifier = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 5))
    report = headscope.inspect(model)
    made = {f"classifier.{name}" for name, _ in model.classifier.named_parameters()}
    assert set(report.weights.new) == {name for name in info["missing_keys"] if "classifier" not in name} | made
    assert report.model.num_labels == 5
    assert any("2 classes" in note and "5 scores" in note for note in report.notes)


def test_resized_embeddings_are_neither_loaded_nor_an_error(loaded: Any) -> None:
    model, _ = loaded
    model.resize_token_embeddings(110)
    report = headscope.inspect(model)
    statuses = {item.name: item.status.value for item in report.weights.parameters}
    assert statuses["bert.embeddings.word_embeddings.weight"] == "unknown"
    assert report.weights.mismatched == ()
    assert not [item for item in headscope.check(model).findings if item.severity == "error"]


def test_what_cannot_be_read_is_not_determined(loaded: Any, tmp_path: Path) -> None:
    model, _ = loaded
    model.config._name_or_path = str(tmp_path / "gone")
    report = headscope.inspect(model)
    assert [gap.topic for gap in report.not_determined] == ["checkpoint"]
    assert "Not determined" in str(report)


def test_examples_by_position_reach_a_decorated_forward(loaded: Any) -> None:
    model, _ = loaded
    report = headscope.inspect(model, example_inputs=TOKENS)
    assert report.head.formula == headscope.inspect(model).head.formula


def compiled(model: Any) -> Any:
    return torch.compile(model, backend="eager")


def compiled_in_place(model: Any) -> Any:
    model.compile(backend="eager")
    return model


def compiled_within(model: Any) -> Any:
    model.bert = torch.compile(model.bert, backend="eager")
    return model


@pytest.mark.parametrize("wrap", [nn.DataParallel, compiled, compiled_in_place, compiled_within])
def test_a_wrapped_model_is_the_model(wrap: Any, loaded: Any) -> None:
    model, info = loaded
    plain = headscope.inspect(model)
    made = wrap(model)
    call = made._compiled_call_impl
    report = headscope.inspect(made)
    assert (report.head.formula, report.head.pooling.kind) == (plain.head.formula, plain.head.pooling.kind)
    assert {name.replace("._orig_mod", "") for name in report.weights.new} == set(info["missing_keys"])
    assert made._compiled_call_impl is call
    assert made(torch.ones(2, 6, dtype=torch.long)).logits.shape == (2, 2)


class Scorer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x)


class Scalar(Scorer):
    def forward(self, x: Tensor) -> Any:
        return self.layer(x).sum()


class Nameless(Scorer):
    def forward(self, *inputs: Tensor) -> Any:
        return self.layer(inputs[0])


class Lazy(Scorer):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LazyLinear(3)


class TwoHeads(nn.Module):
    """Features first, then two heads on one encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = transformers.BertModel(FAMILIES["bert"].build_config(), add_pooling_layer=False)
        self.a, self.b = nn.Linear(32, 3), nn.Linear(32, 5)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        hidden = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        scores = self.a(hidden[:, 0])
        return {"features": hidden, "logits_a": scores, "logits_b": self.b(hidden.mean(1)), "odds": scores.softmax(-1)}


ROW, TOKENS = torch.ones(2, 4), torch.ones(2, 6, dtype=torch.long)
REFUSED: list[tuple[str, Any, Any, type[HeadscopeError], str]] = [
    ("class", lambda: BERT, None, UsageError, "is a class, not a model"),
    ("no parameters", nn.Identity, ROW, Unsupported, "has no parameters"),
    ("scalar", Scalar, ROW, Unsupported, "returns no scores"),
    ("script", lambda: torch.jit.script(nn.Linear(4, 3)), ROW, Unsupported, "TorchScript"),
    ("traced", lambda: torch.jit.trace(Scorer(), ROW), ROW, Unsupported, "TorchScript"),
    ("exported", lambda: torch.export.export(Scorer(), (ROW,)), ROW, Unsupported, "no Python forward"),
    (
        "quantized",
        lambda: torch.ao.quantization.quantize_dynamic(Scorer(), {nn.Linear}),
        ROW,
        Unsupported,
        "quantized layers",
    ),
    ("lazy", Lazy, ROW, UsageError, "lazy parameters"),
    ("empty batch", Scorer, torch.ones(0, 4), UsageError, "is empty"),
    ("too many", Scorer, (ROW, ROW), UsageError, "names 1 argument"),
    ("nameless", Nameless, ROW, UsageError, "names 0 arguments"),
    ("no tensors", Scorer, 3, UsageError, "is a int, not tensors"),
    ("labels", TwoHeads, TOKENS, UsageError, "2 labels were given, but the model has 3 scores"),
]


@pytest.mark.parametrize(("name", "make", "examples", "error", "sentence"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_cannot_be_examined_is_one_sentence(
    name: str, make: Any, examples: Any, error: type[HeadscopeError], sentence: str
) -> None:
    options = {"labels": "a,b"} if name == "labels" else {}
    with pytest.raises(error, match=sentence) as raised:
        headscope.inspect(make(), example_inputs=examples, **options)
    assert raised.value.hint
    assert "\n" not in raised.value.message


def test_an_exported_module_is_examined_or_refused_in_a_sentence() -> None:
    module = torch.export.export(Scorer(), (ROW,)).module()
    try:
        headscope.inspect(module, example_inputs=ROW)
    except HeadscopeError as error:
        assert error.hint


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"num_labels": 3}, "num_labels is an option for a checkpoint, not for a model in memory"),
    ({"model_class": "BertModel"}, "model_class is an option for a checkpoint"),
    ({"lables": "a,b"}, "no such option: lables"),
    ({"labels": 3}, "labels must be names"),
]


@pytest.mark.parametrize(("options", "sentence"), OPTIONS, ids=[str(row[0]) for row in OPTIONS])
def test_options_that_make_no_sense_for_a_module(options: dict[str, Any], sentence: str) -> None:
    for ask in (headscope.inspect, headscope.check):
        with pytest.raises(UsageError, match=sentence):
            ask(Scorer(), **options)


def test_options_are_read_as_the_command_line_reads_them() -> None:
    report = headscope.inspect("bert-base-uncased", labels="POS, NEG", num_labels="2", offline=True)
    assert report.model.labels == ("POS", "NEG")
    result = headscope.check("bert-base-uncased", "inference", select="HS101,HS2", ignore="HS202", offline=True)
    assert result.rules[:3] == ("HS101", "HS201", "HS202")
    assert {item.finding.id for item in result.ignored} == {"HS202"}


FAULTY: list[tuple[Any, dict[str, Any], str]] = [
    ("bert-base-uncased", {"num_labels": "three"}, "num_labels must be a whole number"),
    ("bert-base-uncased", {"num_labels": True}, "num_labels must be a whole number"),
    ("bert-base-uncased", {"num_labels": 2.5}, "num_labels must be a whole number"),
    ("bert-base-uncased", {"labels": {"a": 1}}, "labels must be names"),
    ("bert-base-uncased", {"labels": "A,,B"}, "empty name"),
    ("bert-base-uncased", {"example_inputs": 1}, "is an option for a model in memory"),
    (None, {}, "NoneType is not a checkpoint"),
]


@pytest.mark.parametrize(("reference", "options", "sentence"), FAULTY, ids=[str(row[:2]) for row in FAULTY])
def test_what_makes_no_sense_for_a_checkpoint(reference: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        headscope.inspect(reference, offline=True, **options)


@pytest.mark.parametrize(("output", "own", "other"), [(None, "a", "b"), ("logits_a", "a", "b"), ("logits_b", "b", "a")])
def test_of_two_heads_one_is_chosen_and_the_other_is_named(output: str | None, own: str, other: str) -> None:
    model = TwoHeads()
    report = headscope.inspect(model, example_inputs=TOKENS, output=output)
    assert [item.name for item in report.head.parameters] == [f"{own}.weight", f"{own}.bias"]
    note = next(note for note in report.notes if "also returns" in note)
    assert f"logits_{other}" in note
    assert "features" not in note
    assert "odds" not in note
    sizes = {name: sum(item.numel() for item in part.parameters()) for name, part in model.named_children()}
    counts = report.model.parameters
    assert (counts.head, counts.other_heads) == (sizes[own], sizes[other])
    assert counts.base == sizes["encoder"]
    assert counts.total == sum(sizes.values())


def test_an_output_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match="logits_c") as raised:
        headscope.inspect(TwoHeads(), example_inputs=TOKENS, output="logits_c")
    assert "logits_b" in raised.value.hint


class Strange(Scorer):
    """A loss that no library names."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        return self.layer(x)


def test_an_activation_that_is_not_known_is_not_called_none() -> None:
    assert headscope.inspect(Strange(), example_inputs=ROW).model.activation == "not determined"


def test_a_model_that_is_loaded_is_not_told_that_loading_raises(tmp_path: Path) -> None:
    FAMILIES["bert"].build("BertForSequenceClassification", num_labels=3).save_pretrained(tmp_path)
    model = BERT.from_pretrained(tmp_path, num_labels=5, ignore_mismatched_sizes=True)
    report = headscope.inspect(model)
    assert [item.parameter for item in report.weights.mismatched] == ["classifier.bias", "classifier.weight"]
    (note,) = [item for item in report.notes if item.startswith("shapes differ")]
    assert "from_pretrained" not in note
    assert any("from_pretrained raises" in item for item in headscope.inspect(str(tmp_path), num_labels=5).notes)


@pytest.mark.parametrize("words", [7, 60, 500])
@pytest.mark.parametrize("names_embedding", [True, False])
def test_a_class_without_a_vocabulary_in_its_configuration(words: int, *, names_embedding: bool) -> None:
    class Config(transformers.PreTrainedConfig):
        model_type = "own"

    class Own(transformers.PreTrainedModel):
        config_class = Config

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.table = nn.Embedding(words, 12)
            self.classifier = nn.Linear(12, config.num_labels)

        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
            hidden = self.table(input_ids).mean(1)
            return transformers.modeling_outputs.SequenceClassifierOutput(logits=self.classifier(hidden))

    if names_embedding:
        Own.get_input_embeddings = lambda self: self.table  # type: ignore[method-assign]
    model = Own(Config(num_labels=3)).eval()
    report = headscope.inspect(model)
    assert report.head is not None and report.head.formula == "logits = classifier(mean(h))"


@pytest.mark.parametrize("wrap", [lambda model: model, nn.DataParallel, with_lora], ids=["plain", "parallel", "lora"])
@pytest.mark.parametrize(
    ("name", "base", "task"),
    [
        ("Mine", transformers.BertForTokenClassification, Task.TOKEN_CLASSIFICATION),
        ("TextScorer", transformers.BertForQuestionAnswering, Task.QUESTION_ANSWERING),
        ("MyTagger", BERT, Task.SEQUENCE_CLASSIFICATION),
        # no base with a task: by the name, then by the tensors
        ("MyTagger", BareClassifier, Task.TOKEN_CLASSIFICATION),
        ("Mine", BareClassifier, Task.SEQUENCE_CLASSIFICATION),
    ],
)
def test_a_subclass_has_the_task_of_its_base(name: str, base: Any, task: Task, wrap: Callable[[Any], Any]) -> None:
    model = type(name, (base,), {})(FAMILIES["bert"].build_config(num_labels=2))
    report = headscope.inspect(wrap(model))
    assert (report.model.task, report.model.class_name) == (task, name)
