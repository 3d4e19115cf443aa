"""Adapters that PEFT can't load without numbers: the run loads them, and what PEFT does then is the truth."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import headscope
from headscope.api.loaded.trial_process import TrialProcess
from headscope.examination.trial.deciding import OFF
from headscope.examination.trial.opening import run_checkpoint
from tests.verdicts.runs import RunCase, make_tokenizer

KINDS: dict[str, dict[str, Any]] = {
    "BOFT": {"boft_block_size": 4}, "ADAMSS": {}, "FROD": {}, "UNILORA": {}, "SHIRA": {"r": 4}, "VERA": {},
}  # fmt: skip
TEXTS = ("w1 w2 w3 w4", "no")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OFF, raising=False)
    monkeypatch.setattr(TrialProcess, "begin", lambda self: None)
    monkeypatch.setattr(TrialProcess, "_called", lambda self, examined, request: run_checkpoint(request, "cpu"))


def _saved(kind: str, folder: Path) -> Any:
    """An adapter of a kind on BERT, with numbers as after a training."""
    settings: Any = peft.PEFT_TYPE_TO_CONFIG_MAPPING.get(getattr(peft.PeftType, kind, None))
    if settings is None:
        pytest.skip(f"this PEFT has no {kind}")
    base = RunCase(kind, "Bert").write(folder / "base")
    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(base)
    model = peft.get_peft_model(model, settings(task_type="SEQ_CLS", target_modules=["query"], **KINDS[kind]))
    torch.manual_seed(1)
    for value in model.parameters():
        if value.requires_grad and value.is_floating_point():
            value.data.add_(torch.randn_like(value) * 0.2)
    model.save_pretrained(str(folder / "adapter"))
    make_tokenizer("english", "Bert").save_pretrained(folder / "adapter")
    return model.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_adapter_passes_and_has_the_scores_of_peft(kind: str, tmp_path: Path) -> None:
    model = _saved(kind, tmp_path)
    tokens = make_tokenizer("english", "Bert")
    for text in TEXTS:
        shown = headscope.forward(tmp_path / "adapter", device="cpu", text=[text]).logits
        with torch.no_grad():
            torch.testing.assert_close(torch.tensor(shown), model(**tokens(text, return_tensors="pt")).logits)
    found = headscope.check(tmp_path / "adapter", "inference", ignore=["HS502", "HS202"])
    assert found.verdict.value == "passed" and found.trial is not None, str(found)
    assert "adapter fit" not in {gap.topic for gap in found.not_determined}


@pytest.mark.parametrize("change", ["lost", "more"])
def test_a_tensor_too_few_or_too_many_is_not_green(change: str, tmp_path: Path) -> None:
    _saved("BOFT", tmp_path)
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    state = load_file(file)
    name = next(key for key in state if "boft_R" in key)
    if change == "lost":
        del state[name]
    else:
        state["base_model.model.bert.lstm.weight"] = torch.ones(3)
    save_file(state, file)
    found = headscope.check(tmp_path / "adapter", "inference", ignore=["HS502", "HS202"])
    assert found.verdict.value == "not_determined" and found.trial is None
    named = name if change == "lost" else "bert.lstm.weight"
    assert named in found.scope.run_reason
