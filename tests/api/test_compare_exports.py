"""A checkpoint beside its exports: what is carried is the same values, and what is lost is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from transformers import PreTrainedModel

import headscope
from headscope.core.facts.export import Fate
from headscope.errors import ExitCode, UsageError
from headscope.slices.compare.run import Compared
from scripts.pages.write_schema import build_schema
from tests.families import FAMILIES

gguf = pytest.importorskip("gguf")
exports = pytest.importorskip("tests.checkpoints.formats.exports")
RANK = gguf.PoolingType.RANK
LABELS = ["neg", "neutral", "pos"]


def source(name: str, folder: Path) -> PreTrainedModel:
    """A classifier with three labels and random values in every tensor, saved."""
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {text: at for at, text in enumerate(LABELS)}}
    family = FAMILIES[name]
    model = family.build(family.classifier, **names, **family.pad_token)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    model.save_pretrained(folder)
    return model


def exported(name: str, folder: Path, **options: Any) -> Compared:
    """A source beside the GGUF file that was made of it."""
    path = exports.write_gguf(source(name, folder / "source"), folder / "model.gguf", **options)
    return headscope.compare(folder / "source", path)


def fates(found: Compared) -> dict[str, str]:
    return {item.parameter: item.fate.value for item in found.exports[0].tensors}


def aspects(found: Compared) -> dict[str, str]:
    return {item.what: item.fate.value for item in found.exports[0].aspects}


CARRIED = dict.fromkeys(("classes", "labels", "pooling", "operations"), "carried")


@pytest.mark.parametrize("name", ["roberta", "distilbert", "bert"])
def test_what_a_gguf_file_carries_has_the_numbers_of_the_source(name: str, tmp_path: Path) -> None:
    model = source(name, tmp_path / "source")
    path = exports.write_gguf(model, tmp_path / "model.gguf", pooling=RANK)
    found = headscope.compare(tmp_path / "source", path)
    stored = {item.name: torch.tensor(item.data) for item in gguf.GGUFReader(str(path)).tensors}
    state = model.state_dict()
    for item in found.exports[0].tensors:
        if item.fate is Fate.CARRIED:
            assert torch.equal(stored[item.name].reshape(item.shape), state[item.parameter])
    lost = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"} if name == "bert" else set()
    assert {name for name, fate in fates(found).items() if fate == "lost"} == lost
    assert set(fates(found).values()) <= {"carried", "lost"}
    changed = {"operations": "changed"} if name != "roberta" else {}
    assert aspects(found) == CARRIED | changed
    assert found.exports[0].differs is (name != "roberta")


def test_a_dropped_classifier_is_lost_whole(tmp_path: Path) -> None:
    found = exported("gpt2", tmp_path)
    assert fates(found) == {"score.weight": "lost"}
    assert aspects(found)["classes"] == "lost"


def test_labels_in_another_order_are_changed(tmp_path: Path) -> None:
    found = exported("roberta", tmp_path, pooling=RANK, labels=LABELS[::-1])
    labels = next(item for item in found.exports[0].aspects if item.what == "labels")
    assert labels.fate is Fate.CHANGED and "order" in labels.note


def test_another_pooling_is_changed(tmp_path: Path) -> None:
    assert aspects(exported("roberta", tmp_path, pooling=gguf.PoolingType.MEAN))["pooling"] == "changed"


def test_a_quantized_tensor_is_transformed(tmp_path: Path) -> None:
    found = exported("roberta", tmp_path, pooling=RANK, labels=[], quantized="cls.")
    tensors = {item.parameter: item for item in found.exports[0].tensors}
    assert tensors["classifier.dense.weight"].fate is Fate.TRANSFORMED
    assert "quantized (Q8_0)" in tensors["classifier.dense.weight"].how
    assert tensors["classifier.dense.bias"].fate is Fate.CARRIED
    assert aspects(found)["labels"] == "lost"


def test_exit_codes_and_the_document(tmp_path: Path, show: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    model = source("roberta", tmp_path / "source")
    whole = exports.write_gguf(model, tmp_path / "whole.gguf", pooling=RANK)
    cut = exports.write_gguf(model, tmp_path / "cut.gguf", pooling=RANK, without="cls.output")
    odd = exports.write_gguf(model, tmp_path / "odd.gguf", pooling=RANK, without="cls.bias")
    odd.write_bytes(odd.read_bytes().replace(b"pooling_type\x04\x00\x00\x00\x04", b"pooling_type\x04\x00\x00\x00\x09"))
    arguments = ["compare", tmp_path / "source"]
    assert "all 4 head tensors" in show(*arguments, whole, "--exit-code")
    shown = show(*arguments, cut, "--exit-code", code=ExitCode.FINDINGS)
    assert "lost        classifier.out_proj.weight 3x32" in shown
    show(*arguments, cut)
    show(*arguments, odd, "--exit-code", code=ExitCode.UNDETERMINED)
    document = json.loads(show(*arguments, whole, cut, "--json"))
    jsonschema.validate(document, build_schema())
    assert [item["reference"] for item in document["exports"]] == [str(whole), str(cut)]
    assert len(document["reports"]) == 1


def test_an_export_needs_a_source_and_has_no_numbers_to_compare(tmp_path: Path) -> None:
    model = source("roberta", tmp_path / "source")
    path = exports.write_gguf(model, tmp_path / "model.gguf", pooling=RANK)
    with pytest.raises(UsageError, match="no checkpoint"):
        headscope.compare(path, path)
    with pytest.raises(UsageError, match="exports"):
        headscope.compare(tmp_path / "source", path, values=True)


@pytest.mark.parametrize("name", ["distilbert", "llama", "modernbert", "vit"])
def test_what_an_onnx_file_carries_has_the_numbers_of_the_source(name: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    made: Any = pytest.importorskip("tests.checkpoints.formats.onnx_exports")
    model = source(name, tmp_path / "source")
    model.config.use_cache = False
    path = made.with_labels(made.write_onnx(model, tmp_path / "model.onnx", images=name == "vit"), LABELS)
    found = headscope.compare(tmp_path / "source", path)
    export = found.exports[0]
    graph = onnx.load(str(path)).graph
    stored = {item.name: torch.tensor(onnx.numpy_helper.to_array(item)) for item in graph.initializer}
    state = model.state_dict()
    assert {item.fate for item in export.tensors} <= {Fate.CARRIED, Fate.TRANSFORMED}
    assert len(export.tensors) == len(found.reports[0].head.tensors if found.reports[0].head else ())
    for item in export.tensors:
        numbers = stored[item.name]
        is_transposed = "transposed" in item.how
        assert torch.equal(numbers.T if is_transposed else numbers, state[item.parameter])
    assert aspects(found) == CARRIED
    assert not export.differs
    assert export.is_determined
