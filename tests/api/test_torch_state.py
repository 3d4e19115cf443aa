"""What the caller set in PyTorch changes no result: a device, autocast, a mode; a dtype changes no verdict."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES
from labeled.trained import save, untrained
from saving import save_safetensors
from transformers import BertForSequenceClassification, PreTrainedModel

import headscope
from headscope.core.facts.verdict import Verdict

STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no gradients": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "meta device": lambda: torch.device("meta"),
    "detect anomalies": lambda: torch.autograd.set_detect_anomaly(mode=True),
}

Made = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(untrained(("a", "b", "c")), tmp_path_factory.mktemp("model") / "m", ("a", "b", "c"))


def results(folder: Path, model: PreTrainedModel, output: Path) -> Made:
    """What each function says of a checkpoint, and of the model that it loads as."""
    return {
        "inspect": headscope.inspect(folder, prove=True, cache=False),
        "inspect, in memory": headscope.inspect(model, prove=True),
        "diff_weights": headscope.diff_weights(folder, cache=False),
        "check": headscope.check(folder, "inference", cache=False),
        "check, in memory": headscope.check(model, "inference"),
        "compare": headscope.compare(folder, folder, values=True, prove=True, cache=False),
        "forward": headscope.forward(folder, device="cpu", text="sign0x1", cache=False),
        "forward, in memory": headscope.forward(model),
        "verify": headscope.verify(model, folder),
        "verify_save": headscope.verify_save(model, folder),
        "heads": list(headscope.heads("BertForSequenceClassificatio?", workers=1, cache=False)),
        "edit": headscope.edit(folder, output, temperature=2.0).proof,
    }


@pytest.fixture(scope="module")
def model(folder: Path) -> BertForSequenceClassification:
    return BertForSequenceClassification.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def expected(folder: Path, model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return results(folder, model, tmp_path_factory.mktemp("edited") / "plain")


@pytest.mark.parametrize("state", STATES)
def test_a_state_of_the_caller_changes_no_result(
    state: str, folder: Path, model: PreTrainedModel, expected: Made, tmp_path: Path
) -> None:
    with STATES[state]():
        found = results(folder, model, tmp_path / "edited")
    assert [name for name in expected if found[name] != expected[name]] == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_default_dtype_changes_no_verdict(dtype: torch.dtype, folder: Path, model: PreTrainedModel) -> None:
    def verdicts() -> list[object]:
        found = [headscope.inspect(given, prove=True) for given in (folder, model)]
        heads = [item.head for item in found if item.head is not None and item.head.verification is not None]
        assert len(heads) == 2
        effects = [[item.changes for item in head.verification.padding] for head in heads if head.verification]
        checked = [headscope.check(given, "inference") for given in (folder, model)]
        told = [(head.pooling, head.formula, head.verification and head.verification.told) for head in heads]
        return [effects, told, [(item.verdict, item.findings, item.not_determined) for item in checked]]

    expected, before = verdicts(), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert verdicts() == expected
        assert torch.get_default_dtype() is dtype
    finally:
        torch.set_default_dtype(before)


def test_the_rows_of_a_scan_are_those_of_a_plain_state(folder: Path) -> None:
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        rows = headscope.scan([folder], workers=0, profile="inference")
        found = [replace(row, seconds=0.0) for row in rows]
        assert torch.is_inference_mode_enabled() and torch.is_autocast_enabled("cpu")
    assert found == [replace(row, seconds=0.0) for row in headscope.scan([folder], workers=0, profile="inference")]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("state", [None, torch.inference_mode])
def test_a_model_made_in_inference_mode_is_described_as_any_other(name: str, state: Any, tmp_path: Path) -> None:
    family = FAMILIES[name]
    plain = family.build(family.classifier).eval()
    save_safetensors(plain, tmp_path)
    with torch.inference_mode():
        model = copy.deepcopy(plain)
    assert next(model.parameters()).is_inference()
    with (state or nullcontext)():
        assert headscope.inspect(model, prove=True) == headscope.inspect(plain, prove=True)
        assert headscope.check(model, "inference") == headscope.check(plain, "inference")
        assert headscope.verify(model, tmp_path).verdict is headscope.verify(plain, tmp_path).verdict is Verdict.PASSED
