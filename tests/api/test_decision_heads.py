"""Decision models: the class's own layout, and a head beside a language model, against JevForDecision itself."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

import headscope
from headscope.facts.results.report import LoadVerdict
from tests.scorers import save_language_model
from tests.verdicts.runs import make_tokenizer

if not hasattr(transformers, "JevForDecision"):
    pytest.skip("this Transformers has no decision models", allow_module_level=True)
TYPES = {"noul": [0, 2], "score": [2, 8], "choice": [8, 24]}
HEATS = {"noul": 1.2, "score": 0.9, "choice": 1.1}


def _drawn(head: torch.nn.Linear) -> torch.nn.Linear:
    for value in head.parameters():
        value.data = torch.randn(value.shape) * 3
    return head


def _saved(folder: Path, softcap: float | None, heats: dict[str, Any]) -> Any:
    """As `save_pretrained` of the class writes it."""
    text = save_language_model("Llama", folder / "text").config.to_dict()
    config = transformers.JevConfig(hidden_size=16, softcap=softcap, text_config=text)
    model = transformers.JevForDecision(config).eval()
    _drawn(model.proj)
    model.decision_config.temperature = heats
    model.save_pretrained(folder)
    make_tokenizer("protein", "Llama").save_pretrained(folder)
    return model


def _judged(folder: Path, softcap: float | None, heats: dict[str, Any]) -> Any:
    """A language model with the head and its files beside it."""
    save_language_model("Qwen2", folder)
    make_tokenizer("protein", "Qwen2").save_pretrained(folder)
    head = _drawn(torch.nn.Linear(16, 24))
    save_file({f"proj.{name}": value.data for name, value in head.named_parameters()}, folder / "head.safetensors")
    slots = {"num_slots": 24, "verbalizers": [f"w{at}" for at in range(24)], "ranges": TYPES}
    (folder / "judge_config.json").write_text(json.dumps({"slots": slots, "softcap": softcap}))
    (folder / "calibration.json").write_text(json.dumps({"per_kind": heats}))
    return transformers.AutoModelForDecision.from_pretrained(folder).eval()


def _coded(folder: Path, softcap: float | None, heats: dict[str, Any]) -> Any:
    """A language model with one code for each option."""
    save_language_model("Qwen2", folder)
    make_tokenizer("protein", "Qwen2").save_pretrained(folder)
    head = _drawn(torch.nn.Linear(16, 6))
    save_file({f"proj.{name}": value.data for name, value in head.named_parameters()}, folder / "readout.safetensors")
    (folder / "decision_config.json").write_text(json.dumps({"codes": list("ABCDEF"), "temperature": 1.3}))
    return transformers.AutoModelForDecision.from_pretrained(folder).eval()


@pytest.mark.parametrize("softcap", [None, 4.0])
@pytest.mark.parametrize("save", [_saved, _judged, _coded])
def test_a_decision_head_is_shown_and_computes_what_its_class_does(
    save: Any, softcap: float | None, tmp_path: Path
) -> None:
    model = save(tmp_path, softcap, HEATS)
    report = headscope.inspect(tmp_path)
    assert report.verdict is LoadVerdict.COMPLETE, str(report)
    assert {item.name for item in report.head.parameters} == {"proj.weight", "proj.bias"}
    decision = report.checkpoint.decision
    assert decision.rows == model.config.num_verbalizers == report.model.num_labels
    assert dict(decision.offsets) == model.config.offsets and decision.softcap == model.config.softcap
    assert dict(decision.temperatures) == model.decision_config.temperature and decision.faults == ()
    text = "ACDEFG"
    shown = torch.tensor(headscope.forward(tmp_path, device="cpu", text=[text]).logits)
    assert shown.shape == (6, decision.rows)
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path)([text], return_tensors="pt")["input_ids"]
    kinds = list(transformers.decision.Question.questions_types)
    for at, kind in enumerate(kinds):
        with torch.no_grad():
            own = model(ids, torch.tensor([[3]]), torch.tensor([[2]]), torch.tensor([[at]]))
        start = model.config.offsets[kind]
        assert torch.allclose(shown[2, start : start + 2], own, atol=1e-5)
    result = headscope.check(tmp_path, run=True, ignore=["HS502"])
    assert result.verdict.value == "passed", str(result)


@pytest.mark.parametrize(
    ("heats", "told"),
    [
        ({"noul": 1.2, "score": 0.9}, "choice has no temperature"),
        ({**HEATS, "rank": 2.0}, "rank, which is not a type"),
        ({**HEATS, "noul": 0.0}, "the temperature of noul is 0"),
    ],
)
def test_temperatures_that_fit_no_type(heats: dict[str, float], told: str, tmp_path: Path) -> None:
    _judged(tmp_path, None, HEATS)
    (tmp_path / "calibration.json").write_text(json.dumps({"per_kind": heats}))
    (found,) = (item for item in headscope.check(tmp_path).findings if item.id == "HS407")
    assert told in found.message and headscope.check(tmp_path).verdict.value == "failed"


def test_files_that_say_nothing_are_no_decision_head(tmp_path: Path) -> None:
    save_language_model("Qwen2", tmp_path)
    for body in (
        {},
        {"slots": {}},
        {"slots": {"ranges": {"noul": [0]}, "num_slots": 3}},
        {"slots": {"ranges": {"a": [0, 2]}}},
    ):
        (tmp_path / "judge_config.json").write_text(json.dumps(body))
        assert headscope.inspect(tmp_path).checkpoint.decision is None
    assert headscope.inspect(tmp_path, num_labels=3).model.class_name == "Qwen2ForSequenceClassification"
