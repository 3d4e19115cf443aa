"""Keys behind a wrapper's prefix: the printed code is run, and the real load has to find everything afterwards."""

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

import headscope
from headscope.facts import Finding
from tests.checks.broken import named, prefixed, renamed, resized, saved
from tests.edits import edit_tensors
from tests.families import FAMILIES

_TWO = named({"0": "no", "1": "yes"})


def _finding(folder: Path, rule: str) -> Finding | None:
    found = headscope.check(str(folder), "inference", offline=True)
    return next((item for item in found.findings if item.id == rule), None)


@pytest.mark.parametrize("of", ["classifier", "base"])
@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "model.module.", "net.0."])
@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta"])
def test_the_code_that_is_printed_makes_the_checkpoint_load(
    family: str, prefix: str, of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(family, of=of, edit=prefixed(prefix))(tmp_path)
    finding = _finding(tmp_path, "HS802")
    assert repr(prefix) in finding.message
    assert _finding(tmp_path, "HS106") is None
    monkeypatch.chdir(tmp_path)
    exec(finding.code, {})  # the code that a reader is told to run
    assert not any(key.startswith(prefix) for key in load_file("model.safetensors"))
    cls = getattr(transformers, FAMILIES[family].classifier)
    _, info = cls.from_pretrained(tmp_path, output_loading_info=True)
    head = ("classifier", "pre_classifier", "bert.pooler", "score")
    assert all(name.startswith(head) for name in info["missing_keys"])
    assert of == "base" or not info["missing_keys"]
    assert _finding(tmp_path, "HS101") is None
    assert _finding(tmp_path, "HS802") is None


@pytest.mark.parametrize("part", ["bert.encoder.layer.0.", "bert.embeddings."])
def test_names_that_do_not_match_for_another_reason_are_not_a_prefix(part: str, tmp_path: Path) -> None:
    saved("bert", edit=renamed("bert.encoder", f"x{part}"))(tmp_path)
    found = headscope.check(str(tmp_path), "inference", offline=True)
    assert found.report.checkpoint.states == ()
    assert found.report.repaired is None


@pytest.mark.parametrize("prefix", ["module.", "wrapped."])
def test_token_types_are_not_taken_for_a_classifier_of_two_classes(prefix: str, tmp_path: Path) -> None:
    """Keys that no repair explains: half of them are gone."""
    saved("bert", edit=prefixed(prefix), **_TWO)(tmp_path)
    more = {f"{prefix}tokens": torch.zeros(2, 32)}
    edit_tensors(tmp_path / "model.safetensors", lambda state: dict([*state.items()][-16:]) | more)
    assert f"{prefix}classifier.weight" in _finding(tmp_path, "HS106").parameters


def test_a_base_model_of_two_token_types_has_no_trained_classifier(tmp_path: Path) -> None:
    saved("bert", of="base", edit=prefixed("module."), **_TWO)(tmp_path)
    assert _finding(tmp_path, "HS106") is None


def test_placeholders_of_zero3_are_named_with_their_cause(tmp_path: Path) -> None:
    saved("bert", edit=resized("classifier.bias", 0))(tmp_path)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        transformers.BertForSequenceClassification.from_pretrained(tmp_path)
    found = headscope.check(str(tmp_path), "inference", offline=True)
    assert [item.id for item in found.findings if item.severity == "error"] == ["HS801"]
    sentence = " ".join(f"{item.message} {item.remedy}" for item in found.findings)
    assert "zero_to_fp32.py" in sentence
    assert "stage3_gather_16bit_weights_on_model_save" in sentence
    assert "num_labels=0" not in sentence
    assert "0 classes" not in sentence
