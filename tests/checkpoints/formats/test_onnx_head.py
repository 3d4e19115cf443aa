"""The head of an ONNX file, against the modeling source of what was exported, and against onnx's own reading."""

import builtins
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from headscope.core.checkpoints.exports.onnx.head import read_onnx
from headscope.core.checkpoints.exports.onnx.lean import lean_model
from headscope.core.checkpoints.formats.bytes import LocalBytes
from headscope.core.facts.export import ExportHead
from headscope.errors import ExitCode, HeadscopeError
from headscope.facts import PoolingKind
from headscope.shell import main
from scripts.pages.write_schema import build_schema

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
exports = pytest.importorskip("tests.checkpoints.formats.onnx_exports")

FIRST, LAST_NON_PAD = PoolingKind.FIRST_TOKEN, PoolingKind.LAST_NON_PAD_TOKEN
READINGS: dict[str, tuple[bool, PoolingKind, list[str]]] = {
    "bert": (True, FIRST, ["linear", "tanh", "linear"]),
    "distilbert": (False, FIRST, ["linear", "relu", "linear"]),
    "roberta": (False, FIRST, ["linear", "tanh", "linear"]),
    "modernbert": (False, FIRST, ["linear", "gelu", "layer_norm", "linear"]),
    "llama": (False, LAST_NON_PAD, ["linear"]),
    "vit": (False, FIRST, ["linear"]),
}
"""By family: whether dynamo exports it, and the head as its modeling source reads."""


def head_of(path: Path) -> ExportHead:
    head = read_onnx(LocalBytes(path, path.name)).head
    assert head is not None
    return head


@pytest.mark.parametrize("name", READINGS)
def test_the_head_of_an_exported_classifier(name: str, tmp_path: Path) -> None:
    dynamo, kind, operations = READINGS[name]
    path = exports.write_onnx(exports.classifier(name), tmp_path / "m.onnx", dynamo=dynamo, images=name == "vit")
    head = head_of(path)
    assert (head.pooling, [step.operation for step in head.steps]) == (kind, operations)
    assert (head.classes, head.not_determined) == (3, ())
    official = onnx.load(str(path)).graph
    sizes = {item.name: tuple(item.dims) for item in official.initializer}
    assert all(sizes[item.key] == item.shape for item in head.tensors if item.key in sizes)
    assert [item.name for item in head.inputs] == [item.name for item in official.input]
    assert [item.name for item in head.outputs] == ["logits"]


def masked_mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def last_one(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return hidden[torch.arange(hidden.shape[0]), mask.sum(1) - 1]


Pool = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
POOLS: dict[str, tuple[Pool, PoolingKind]] = {
    "first": (lambda hidden, mask: hidden[:, 0], PoolingKind.FIRST_TOKEN),
    "first as a slice": (lambda hidden, mask: hidden[:, 0:1].flatten(1), PoolingKind.FIRST_TOKEN),
    "last": (lambda hidden, mask: hidden[:, -1], PoolingKind.LAST_TOKEN),
    "third": (lambda hidden, mask: hidden[:, 2], PoolingKind.TOKEN_AT),
    "mean": (lambda hidden, mask: hidden.mean(1), PoolingKind.MEAN),
    "maximum": (lambda hidden, mask: hidden.amax(1), PoolingKind.MAX),
    "mean of what is not padding": (masked_mean, PoolingKind.MASKED_MEAN),
    "computed from the mask": (last_one, PoolingKind.OTHER),
    "every position": (lambda hidden, mask: hidden, PoolingKind.NONE),
}


def of_first(folder: Path) -> Path:
    """A classifier of the first token, exported."""
    exported: Path = exports.write_onnx(exports.Pooled(POOLS["first"][0]), folder / "m.onnx")
    return exported


@pytest.mark.parametrize("name", POOLS)
def test_the_pooling_is_read_from_the_node_where_the_token_axis_disappears(name: str, tmp_path: Path) -> None:
    pool, kind = POOLS[name]
    head = head_of(exports.write_onnx(exports.Pooled(pool), tmp_path / "m.onnx"))
    assert head.pooling is kind
    assert [item.key for item in head.tensors][-1] == "score.bias"
    assert [step.operation for step in head.steps] == ["linear"]
    assert any("output of LayerNormalization" in note for note in head.notes)
    assert head.not_determined == ()


UNCLEAR: dict[str, tuple[Pool, int, str]] = {
    "a squeeze that is exported as a branch": (
        lambda hidden, mask: hidden[:, 0:1].squeeze(1), 8, "comes from If, whose subgraph is not read",
    ),
    "a sum without its divisor": (lambda hidden, mask: hidden.sum(1), 8, "divisor was not found"),
    "a mean over another number": (
        lambda hidden, mask: (hidden * mask[..., None]).sum(1) / (hidden.abs().sum(1) + 1), 8, "joins several values",
    ),
    "two poolings side by side": (
        lambda hidden, mask: torch.cat([hidden[:, 0], hidden.mean(1)], -1), 16, "Concat joins several values",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNCLEAR)
def test_what_is_not_clear_is_not_determined(name: str, tmp_path: Path) -> None:
    pool, width, said = UNCLEAR[name]
    head = head_of(exports.write_onnx(exports.Pooled(pool, width), tmp_path / "m.onnx"))
    assert head.pooling is None
    assert any(said in gap.reason for gap in head.not_determined)


def test_several_outputs_without_logits_are_not_determined(tmp_path: Path) -> None:
    path = of_first(tmp_path)
    model = onnx.load(str(path))
    for node in model.graph.node:
        node.output[:] = ["scores" if name == "logits" else name for name in node.output]
    model.graph.output[0].name = "scores"
    onnx.save(model, str(path))
    assert head_of(path).not_determined == ()
    model.graph.output.append(model.graph.input[0])
    onnx.save(model, str(path))
    assert [gap.topic for gap in head_of(path).not_determined] == ["head"]


@pytest.mark.parametrize("by_file", [True, False])
def test_labels_come_from_the_configuration_beside(
    by_file: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Optimum saves an export: `config.json` beside `model.onnx`, whose graph names no labels."""
    model = exports.classifier("distilbert")
    path = exports.write_onnx(model, tmp_path / "model.onnx")
    model.config.save_pretrained(tmp_path)
    assert main(["inspect", str(path if by_file else tmp_path), "--json"]) == ExitCode.UNDETERMINED
    head = json.loads(capsys.readouterr().out)["contents"]["head"]
    labels = [json.loads((tmp_path / "config.json").read_text())["id2label"][str(at)] for at in range(3)]
    assert (head["labels"], head["labels_from"], head["not_determined"]) == (labels, "config.json", [])
    assert main(["inspect", str(path if by_file else tmp_path)]) == ExitCode.UNDETERMINED
    assert f"labels      {', '.join(labels)} (from config.json)" in capsys.readouterr().out
    exports.with_labels(path, ["x", "y", "z"])
    main(["inspect", str(path), "--json"])
    head = json.loads(capsys.readouterr().out)["contents"]["head"]
    assert (head["labels"], head["labels_from"]) == (["x", "y", "z"], "")


@pytest.mark.parametrize(
    "config",
    [
        '{"id2label": {"0": "a"}}', '{"id2label": {"0": "a", "1": "b", "3": "c"}}', '{"id2label": {"0": 1}}',
        '{"id2label": ["a"]}', '{"id2label": ', "[]",
    ],
)  # fmt: skip
def test_a_configuration_that_names_other_labels_leaves_a_gap(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = exports.write_onnx(exports.classifier("distilbert"), tmp_path / "model.onnx")
    (tmp_path / "config.json").write_text(config)
    assert main(["inspect", str(path), "--json"]) == ExitCode.UNDETERMINED
    head = json.loads(capsys.readouterr().out)["contents"]["head"]
    assert head["labels"] == []
    assert [gap["what"] for gap in head["not_determined"]] == ["labels"]


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ('["a", "b", "c"]', ("a", "b", "c")),
        ('{"2": "c", "0": "a", "1": "b"}', ("a", "b", "c")),
        ('{"10": "k", "9": "j"}', ("j", "k")),
        ('{"x": "a"}', ()),
        ("[1, 2]", ()),
        ("[" * 50_000, ()),
        ("not JSON", ()),
    ],
)
def test_labels_come_from_the_metadata(text: str, labels: tuple[str, ...], tmp_path: Path) -> None:
    assert head_of(exports.with_labels(of_first(tmp_path), text)).labels == labels


def test_a_quantized_layer_is_known_by_its_node(tmp_path: Path) -> None:
    """A head as ONNX Runtime's dynamic quantization writes it, made with onnx's own helper."""
    make, kinds = onnx.helper, onnx.TensorProto
    tensors = [
        make.make_tensor("embed", kinds.FLOAT, [20, 8], [0.1] * 160),
        make.make_tensor("score.weight_quantized", kinds.INT8, [8, 3], [1] * 24),
        make.make_tensor("score.weight_scale", kinds.FLOAT, [], [0.1]),
        make.make_tensor("score.bias", kinds.FLOAT, [3], [0.1] * 3),
        make.make_tensor("gamma", kinds.FLOAT, [8], [1.0] * 8),
        make.make_tensor("zero", kinds.INT64, [], [0]),
    ]
    nodes = [
        make.make_node("Gather", ["embed", "input_ids"], ["e"]),
        make.make_node("LayerNormalization", ["e", "gamma"], ["h"]),
        make.make_node("Gather", ["h", "zero"], ["p"], axis=1),
        make.make_node("DynamicQuantizeLinear", ["p"], ["q", "s", "z"]),
        make.make_node("MatMulInteger", ["q", "score.weight_quantized", "z"], ["i"]),
        make.make_node("Cast", ["i"], ["f"], to=kinds.FLOAT),
        make.make_node("Mul", ["s", "score.weight_scale"], ["scale"]),
        make.make_node("Mul", ["f", "scale"], ["m"]),
        make.make_node("Add", ["m", "score.bias"], ["logits"]),
    ]
    graph = make.make_graph(
        nodes, "g", [make.make_tensor_value_info("input_ids", kinds.INT64, ["batch", "sequence"])],
        [make.make_tensor_value_info("logits", kinds.FLOAT, ["batch", 3])], tensors,
    )  # fmt: skip
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, str(tmp_path / "m.onnx"))
    head = head_of(tmp_path / "m.onnx")
    assert head.pooling is PoolingKind.FIRST_TOKEN
    assert [(step.operation, step.tensors, step.detail) for step in head.steps] == [
        ("linear", ("score.weight_quantized", "score.bias"), "quantized, transposed")
    ]


def test_large_weights_are_not_read(tmp_path: Path) -> None:
    module = exports.Pooled(POOLS["first"][0])
    module.embed = torch.nn.Embedding(500_000, 8)
    path = exports.write_onnx(module, tmp_path / "m.onnx")
    source = LocalBytes(path, path.name)
    contents = read_onnx(source)
    assert path.stat().st_size > 16_000_000
    assert source.bytes_read < 400_000
    assert contents.elements > 4_000_000


def test_weights_beside_the_file_are_not_looked_for(tmp_path: Path) -> None:
    path = of_first(tmp_path)
    expected = head_of(path)
    onnx.save(
        onnx.load(str(path)), str(path), save_as_external_data=True, location="weights.data", size_threshold=0,
    )  # fmt: skip
    (tmp_path / "weights.data").unlink()
    found = head_of(path)
    assert (found.steps, found.tensors) == (expected.steps, expected.tensors)


def test_the_lean_copy_is_what_onnx_reads_without_the_weights(tmp_path: Path) -> None:
    path = exports.write_onnx(exports.Pooled(POOLS["mean"][0]), tmp_path / "m.onnx")
    whole, lean = onnx.load(str(path)), onnx.ModelProto()
    lean.ParseFromString(lean_model(LocalBytes(path, path.name)).data)
    assert [(node.op_type, list(node.input), list(node.output)) for node in lean.graph.node] == [
        (node.op_type, list(node.input), list(node.output)) for node in whole.graph.node
    ]
    assert [(item.name, list(item.dims)) for item in lean.graph.initializer] == [
        (item.name, list(item.dims)) for item in whole.graph.initializer
    ]
    assert list(lean.graph.output) == list(whole.graph.output)


def test_no_truncation_and_no_flipped_byte_gets_past_the_errors(tmp_path: Path) -> None:
    whole = exports.write_onnx(exports.Pooled(masked_mean), tmp_path / "whole.onnx").read_bytes()
    file = tmp_path / "m.onnx"
    outcomes = set()
    for at in range(0, len(whole), 23):
        for data in (whole[:at], whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]):
            file.write_bytes(data)
            try:
                head_of(file)
                outcomes.add("read")
            except HeadscopeError as err:
                outcomes.add(type(err).__name__)
    assert outcomes >= {"read", "Malformed"}


def test_without_the_package_the_hint_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = of_first(tmp_path)
    monkeypatch.setattr("headscope.core.checkpoints.exports.onnx.graph.find_spec", lambda name: None)
    assert main(["inspect", str(path)]) == ExitCode.UNDETERMINED
    assert "pip install 'headscope[onnx]'" in capsys.readouterr().err


def test_the_command_shows_the_head_and_its_document_follows_the_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    path = exports.with_labels(of_first(tmp_path), ["a", "b", "c"])
    assert main(["inspect", str(path)]) == ExitCode.UNDETERMINED
    shown = capsys.readouterr()
    assert "not traced" in shown.out
    assert "logits [batch, 3] float32" in shown.out
    assert "not traced" in shown.err
    assert main(["inspect", str(path), "--json"]) == ExitCode.UNDETERMINED
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, build_schema())
    assert document["contents"]["head"]["labels"] == ["a", "b", "c"]


def test_reading_a_checkpoint_does_not_import_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def refuse(name: str, *rest: Any, **options: Any) -> Any:
        assert name.partition(".")[0] != "onnx"
        return imported(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.delitem(sys.modules, "headscope.core.checkpoints.exports.onnx.graph", raising=False)
    assert main(["inspect", "distilbert-base-uncased-finetuned-sst-2-english", "--offline", "-q"]) == ExitCode.OK
