"""Weight files that a class of configurations names beside the usual ones: the diff is that of a real load."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForSequenceClassification

import headscope
from headscope.core.upstream.sources import has_extra_files
from headscope.core.upstream.transformers import extra_files_of
from headscope.errors import HeadscopeError
from tests.edits import edit_json, edit_tensors
from tests.families import FAMILIES
from tests.saving import assert_as_loaded

FAMILY = FAMILIES["bert"]
HEAD = "head.safetensors"
pytestmark = pytest.mark.skipif(not hasattr(BertConfig, "extra_files"), reason="Transformers before 5.23")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint whose classifier is in a second file."""
    monkeypatch.setattr(BertConfig, "extra_files", (HEAD, "absent.safetensors"))
    FAMILY.build(FAMILY.classifier, num_labels=3).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    head = {name: weights.pop(name) for name in ("classifier.weight", "classifier.bias")}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    save_file(head, tmp_path / HEAD, metadata={"format": "pt"})
    return tmp_path


def assert_equal_to_the_loader(folder: Path) -> None:
    _, info = BertForSequenceClassification.from_pretrained(
        folder, output_loading_info=True, ignore_mismatched_sizes=True
    )
    assert_as_loaded(headscope.inspect(str(folder), cache=False).weights, info)


def test_a_head_in_a_file_that_the_class_names_is_loaded(folder: Path) -> None:
    assert headscope.inspect(str(folder), cache=False).weights.new == ()
    assert_equal_to_the_loader(folder)


def test_without_that_file_the_head_is_new(folder: Path) -> None:
    (folder / HEAD).unlink()
    assert "classifier.weight" in headscope.inspect(str(folder), cache=False).weights.new
    assert_equal_to_the_loader(folder)


@pytest.mark.parametrize("change", ["other shape", "other key", "again"])
def test_other_contents_are_those_of_the_loader(change: str, folder: Path) -> None:
    if change == "other key":
        edit_tensors(folder / HEAD, lambda state: state | {"scores.weight": state.pop("classifier.weight")})
    else:
        file, rows = (HEAD, 5) if change == "other shape" else ("model.safetensors", 4)
        edit_tensors(folder / file, lambda state: state | {"classifier.weight": torch.ones(rows, 32)})
    assert_equal_to_the_loader(folder)


def test_a_file_that_no_class_names_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BertConfig, "extra_files", ())
    edit_json(folder / "config.json", {"extra_files": [HEAD]})
    assert_equal_to_the_loader(folder)
    assert "classifier.weight" in headscope.inspect(str(folder), cache=False).weights.new


def test_a_broken_one_is_an_error_of_one_sentence(folder: Path) -> None:
    (folder / HEAD).write_bytes(b"\xff" * 20)
    with pytest.raises(HeadscopeError, match=HEAD):
        headscope.inspect(str(folder), cache=False)


def test_names_that_lead_elsewhere_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BertConfig, "extra_files", ("../a.safetensors", "/b.safetensors", "c\\d", "", HEAD))
    assert extra_files_of("bert") == (HEAD,)
    assert extra_files_of("no such type") == ()


def test_the_source_tells_which_types_have_such_files() -> None:
    assert has_extra_files("jev")
    assert not has_extra_files("bert")
    assert not has_extra_files("../bert")
