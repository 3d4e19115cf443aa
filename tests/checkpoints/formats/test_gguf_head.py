"""The head of a GGUF file, against the constants of the official package and the classifiers it was converted from."""

import json
from pathlib import Path

import jsonschema
import pytest
import torch
from transformers import PreTrainedModel

from headscope.core.checkpoints.exports.gguf.file import read_gguf
from headscope.core.checkpoints.exports.gguf.head import _RANK_BRANCHES, POOLING_TYPES, read_gguf_head
from headscope.core.checkpoints.formats.bytes import LocalBytes
from headscope.core.facts.export import ExportHead
from headscope.errors import ExitCode
from headscope.facts import PoolingKind, TensorHeader
from headscope.shell import main
from scripts.pages.write_schema import build_schema
from tests.families import FAMILIES

gguf = pytest.importorskip("gguf")
exports = pytest.importorskip("tests.checkpoints.formats.exports")

RANK = gguf.PoolingType.RANK
LABELS = ["neg", "neutral", "pos"]
NAMED = {"id2label": dict(enumerate(LABELS)), "label2id": {name: at for at, name in enumerate(LABELS)}}
LAYERS = ["cls.weight", "cls.bias", "cls.output.weight", "cls.output.bias"]
HEADS: dict[str, tuple[PoolingKind, list[str], list[str]]] = {
    "bert": (PoolingKind.FIRST_TOKEN, ["linear"], ["cls.output.weight", "cls.output.bias"]),
    "distilbert": (PoolingKind.FIRST_TOKEN, ["linear", "tanh", "linear"], LAYERS),
    "roberta": (PoolingKind.FIRST_TOKEN, ["linear", "tanh", "linear"], LAYERS),
    "modernbert": (
        PoolingKind.MASKED_MEAN,
        ["linear", "gelu", "layer_norm", "linear"],
        ["cls.weight", "cls.norm.weight", "cls.output.weight", "cls.output.bias"],
    ),
}
"""The chain that src/llama-graph.cpp builds for RANK pooling, by family: read there, and not written by headscope."""


def classifier(name: str, **changes: object) -> PreTrainedModel:
    family = FAMILIES[name]
    return family.build(family.classifier, **(NAMED | changes))


def head_of(path: Path) -> ExportHead:
    head = read_gguf(LocalBytes(path, path.name)).head
    assert head is not None
    return head


@pytest.mark.parametrize("name", HEADS)
def test_the_chain_is_the_one_that_llama_cpp_builds(name: str, tmp_path: Path) -> None:
    path = exports.write_gguf(classifier(name), tmp_path / "model.gguf", pooling=RANK)
    head = head_of(path)
    kind, operations, names = HEADS[name]
    assert (head.pooling, [step.operation for step in head.steps]) == (kind, operations)
    assert [item.key for item in head.tensors] == names
    assert (head.classes, list(head.labels)) == (3, LABELS)
    assert (head.notes, head.not_determined) == ((), ())
    official = {item.name: tuple(map(int, reversed(item.shape))) for item in gguf.GGUFReader(str(path)).tensors}
    assert {item.key: item.shape for item in head.tensors} == {key: official[key] for key in names}


def replayed(head: ExportHead, path: Path, hidden: torch.Tensor) -> torch.Tensor:
    """The scores that the steps make of hidden states of one text, with the numbers in the file."""
    stored = {item.name: torch.tensor(item.data) for item in gguf.GGUFReader(str(path)).tensors}
    vector = hidden[:, 0] if head.pooling is PoolingKind.FIRST_TOKEN else hidden.mean(dim=1)
    for step in head.steps:
        given = [stored[name] for name in step.tensors]
        match step.operation:
            case "linear":
                vector = torch.nn.functional.linear(vector, *given)
            case "layer_norm":
                vector = torch.nn.functional.layer_norm(vector, vector.shape[-1:], given[0])
            case "tanh" | "gelu":
                vector = torch.tanh(vector) if step.operation == "tanh" else torch.nn.functional.gelu(vector)
    return vector


@pytest.mark.parametrize(
    ("name", "equal"), [("roberta", True), ("modernbert", True), ("bert", False), ("distilbert", False)]
)
def test_the_chain_gives_the_scores_of_the_classifier_where_llama_cpp_has_the_same_head(
    name: str, equal: bool, tmp_path: Path
) -> None:
    """BERT loses its pooler on the way, and DistilBERT's ReLU becomes llama.cpp's tanh."""
    changes = {"classifier_pooling": "mean", "classifier_activation": "gelu"} if name == "modernbert" else {}
    model = classifier(name, **changes)
    path = exports.write_gguf(model, tmp_path / "model.gguf", pooling=RANK)
    tokens = torch.tensor([[1, 5, 6, 7, 8]])
    with torch.no_grad():
        hidden = model.base_model(tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state
        logits = model(tokens, attention_mask=torch.ones_like(tokens)).logits
    assert torch.allclose(replayed(head_of(path), path, hidden), logits, atol=1e-5) is equal


def test_names_and_numbers_are_the_official_ones() -> None:
    assert {item.value: item.name for item in gguf.PoolingType} == POOLING_TYPES
    names = {gguf.TENSOR_NAMES[item] for item in (gguf.MODEL_TENSOR.CLS, gguf.MODEL_TENSOR.CLS_OUT)}
    assert names | {gguf.TENSOR_NAMES[gguf.MODEL_TENSOR.CLS_NORM]} == {"cls", "cls.output", "cls.norm"}
    assert set(_RANK_BRANCHES) <= set(gguf.MODEL_ARCH_NAMES.values())


@pytest.mark.parametrize(
    ("pooling", "kind", "said"),
    [
        (None, PoolingKind.FIRST_TOKEN, "sets no pooling_type"),
        (gguf.PoolingType.NONE, PoolingKind.NONE, "pooling_type NONE: llama.cpp computes this head only with"),
        (gguf.PoolingType.MEAN, PoolingKind.MASKED_MEAN, "pooling_type MEAN: llama.cpp computes this head only"),
        (gguf.PoolingType.CLS, PoolingKind.FIRST_TOKEN, "pooling_type CLS: llama.cpp computes this head only"),
        (gguf.PoolingType.LAST, PoolingKind.LAST_NON_PAD_TOKEN, "pooling_type LAST: llama.cpp computes this head"),
    ],
)
def test_without_rank_pooling_the_classifier_is_not_computed(
    pooling: object, kind: PoolingKind, said: str, tmp_path: Path
) -> None:
    head = head_of(exports.write_gguf(classifier("roberta"), tmp_path / "model.gguf", pooling=pooling))
    assert head.pooling is kind
    assert any(said in note and "--pooling rank" in note for note in head.notes)


def test_a_classifier_that_was_dropped_is_not_determined(tmp_path: Path) -> None:
    head = head_of(exports.write_gguf(classifier("gpt2"), tmp_path / "model.gguf"))
    assert (head.steps, head.tensors, head.classes) == ((), (), None)
    [gap] = head.not_determined
    assert gap.topic == "head" and "cls.*" in gap.reason


def test_placeholders_make_bert_a_head_that_ends_in_tanh(tmp_path: Path) -> None:
    """Two placeholder labels are dropped, and then the converter's name map makes `classifier` the dense layer."""
    family = FAMILIES["bert"]
    head = head_of(exports.write_gguf(family.build(family.classifier), tmp_path / "model.gguf", pooling=RANK))
    assert [step.operation for step in head.steps] == ["linear", "tanh"]
    assert head.classes == 2
    assert any("between -1 and 1" in note for note in head.notes)


def test_labels_that_do_not_fit_the_last_layer_are_reported(tmp_path: Path) -> None:
    head = head_of(exports.write_gguf(classifier("roberta"), tmp_path / "a.gguf", pooling=RANK, labels=["one", "two"]))
    assert any("3 scores" in note and "expects 2 " in note for note in head.notes)


@pytest.mark.parametrize(
    ("architecture", "pooling", "operations"),
    [
        ("qwen3", PoolingKind.LAST_NON_PAD_TOKEN, ["linear", "softmax"]),
        ("qwen3vl", PoolingKind.LAST_NON_PAD_TOKEN, ["linear", "softmax"]),
        ("qwen2", PoolingKind.FIRST_TOKEN, ["linear"]),
    ],
)
def test_a_reranker_made_of_a_language_model(architecture: str, pooling: PoolingKind, operations: list[str]) -> None:
    tensors = (TensorHeader("cls.output.weight", "F16", (2, 8)),)
    head = read_gguf_head(architecture, 4, ("yes", "no"), tensors)
    assert (head.pooling, [step.operation for step in head.steps]) == (pooling, operations)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"cls.weight": (8, 8, 8)}, "cls.weight has 3 axes"),
        ({"cls.weight": ()}, "cls.weight has 0 axes"),
        ({"cls.weight": (8, 8), "cls.output.weight": (2, 9)}, "takes 9 numbers, and the step before gives 8"),
        ({"cls.bias": (8,)}, "neither cls.weight nor cls.output.weight"),
        ({"cls.norm.weight": (8,)}, "neither cls.weight nor cls.output.weight"),
    ],
)
def test_a_head_that_does_not_add_up_is_not_determined(shapes: dict[str, tuple[int, ...]], said: str) -> None:
    tensors = tuple(TensorHeader(name, "F32", shape) for name, shape in shapes.items())
    head = read_gguf_head("bert", 4, (), tensors)
    assert any(said in gap.reason for gap in head.not_determined)


def test_an_unknown_pooling_type_is_not_determined() -> None:
    head = read_gguf_head("bert", 9, (), (TensorHeader("cls.output.weight", "F32", (1, 8)),))
    assert head.pooling is None
    assert [gap.topic for gap in head.not_determined] == ["pooling"]


def test_the_screen_and_the_document_say_that_nothing_was_traced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    path = exports.write_gguf(classifier("roberta"), tmp_path / "model.gguf", pooling=RANK)
    assert main(["inspect", str(path)]) == ExitCode.UNDETERMINED
    shown = capsys.readouterr()
    assert "not traced" in shown.out
    assert "linear -> [batch, 3], cls.output.weight 3x32 F32, cls.output.bias 3 F32" in shown.out
    assert "neg, neutral, pos" in shown.out
    assert "headscope compare SOURCE model.gguf" in shown.err
    assert main(["inspect", str(path), "--json"]) == ExitCode.UNDETERMINED
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, build_schema())
    assert document["contents"]["head"]["basis"] == "names"
    assert document["contents"]["head"]["classes"] == 3
