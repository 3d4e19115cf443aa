"""Decision models: the class's own layout, and a head beside a language model, against JevForDecision itself."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

import headscope
from headscope.core.facts.report import LoadVerdict
from headscope.errors import Malformed
from tests.edits import edit_json
from tests.families import FAMILIES
from tests.scorers import save_language_model
from tests.verdicts.runs import make_tokenizer

if not hasattr(transformers, "JevForDecision"):
    pytest.skip("this Transformers has no decision models", allow_module_level=True)
TYPES = {"noul": [0, 2], "score": [2, 8], "choice": [8, 24]}
HEATS = {"noul": 1.2, "score": 0.9, "choice": 1.1}


def _saved(folder: Path, softcap: float | None, heats: dict[str, Any]) -> Any:
    """As `save_pretrained` of the class writes it."""
    text = save_language_model("Llama", folder / "text").config.to_dict()
    config = transformers.JevConfig(hidden_size=16, softcap=softcap, text_config=text)
    model = transformers.JevForDecision(config).eval()
    for value in model.proj.parameters():
        value.data = torch.randn(value.shape) * 3
    model.decision_config.temperature = heats
    model.save_pretrained(folder)
    make_tokenizer("protein", "Llama").save_pretrained(folder)
    return model


def _beside(folder: Path, head: str, scores: int, **files: Any) -> Any:
    """A language model with the head and its files beside it."""
    save_language_model("Qwen2", folder)
    make_tokenizer("protein", "Qwen2").save_pretrained(folder)
    weights = {"proj.weight": torch.randn(scores, 16) * 3, "proj.bias": torch.randn(scores) * 3}
    save_file(weights, folder / f"{head}.safetensors")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return transformers.AutoModelForDecision.from_pretrained(folder).eval()


def _judged(folder: Path, softcap: float | None = None, heats: Any = HEATS) -> Any:
    slots = {"num_slots": 24, "verbalizers": [f"w{at}" for at in range(24)], "ranges": TYPES}
    judge = {"slots": slots, "softcap": softcap}
    return _beside(folder, "head", 24, judge_config=judge, calibration={"per_kind": heats})


def _coded(folder: Path, softcap: float | None, heats: dict[str, Any]) -> Any:
    """One code for each option."""
    return _beside(folder, "readout", 6, decision_config={"codes": list("ABCDEF"), "temperature": 1.3})


@pytest.mark.parametrize(
    ("save", "softcap"), [(_saved, None), (_saved, 4.0), (_judged, None), (_judged, 4.0), (_coded, None)]
)
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


def _answer(model: Any, kind: int) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([[3, 4, 5]]), torch.tensor([[2]]), torch.tensor([[2]]), torch.tensor([[kind]]))


def _fails_in_transformers(folder: Path) -> bool:
    """Whether Transformers refuses the files, or a question of each type fails, or gets scores that are not finite."""
    try:
        model = transformers.AutoModelForDecision.from_pretrained(folder).eval()
        model.decision_config.logits_processors  # noqa: B018 - it makes them of the temperatures
        found = [_answer(model, kind) for kind in range(3)]
    except Exception:
        return True
    return not all(len(item) == 2 and item.isfinite().all() for item in found)


@pytest.mark.parametrize(
    ("slots", "files", "told"),
    [
        ({}, {"per_kind": {"noul": 1.2, "score": 0.9}}, "choice has no temperature"),
        ({}, {"per_kind": {**HEATS, "rank": 2.0}}, "rank has a temperature, which Transformers doesn't know"),
        ({}, {"per_kind": {**HEATS, "noul": 0.0}}, "the temperature of noul is '0.0'"),
        ({}, {"per_kind": {**HEATS, "noul": "1.2"}}, "the temperature of noul is '1.2', not a positive number"),
        ({}, {}, "calibration.json gives no temperatures"),
        ({"ranges": {"noul": [0, 2], "choice": [8, 24]}}, {"per_kind": HEATS}, "score has no rows"),
        ({"ranges": TYPES | {"choice": [23, 40]}}, {"per_kind": HEATS}, "the rows of choice are 23 to 39"),
    ],
)
def test_files_that_transformers_fails_with(slots: Any, files: Any, told: str, tmp_path: Path) -> None:
    _judged(tmp_path)
    judge = json.loads((tmp_path / "judge_config.json").read_text())
    judge["slots"] |= slots
    (tmp_path / "judge_config.json").write_text(json.dumps(judge))
    (tmp_path / "calibration.json").write_text(json.dumps(files))
    (found,) = (item for item in headscope.check(tmp_path).findings if item.id == "HS407")
    assert told in found.message and headscope.check(tmp_path).verdict.value == "failed"
    is_silent = "rank has" in told or "choice has no" in told  # it ignores the one, and takes 1 for the other
    assert _fails_in_transformers(tmp_path) is not is_silent


def test_a_soft_cap_of_zero(tmp_path: Path) -> None:
    assert not _answer(_judged(tmp_path, 0.0), 0).any()
    assert "HS407" in {item.id for item in headscope.check(tmp_path).findings}


def test_an_adapter_beside_a_decision_head_is_not_green(tmp_path: Path) -> None:
    _judged(tmp_path)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    result = headscope.check(tmp_path, run=True, ignore=["HS502"])
    assert result.verdict.value == "not_determined"


def test_decision_files_beside_another_class_leave_it_alone(tmp_path: Path) -> None:
    FAMILIES["bert"].build("BertForSequenceClassification").save_pretrained(tmp_path)
    (tmp_path / "decision_config.json").write_text(json.dumps({"codes": ["A", "B"], "temperature": 1.0}))
    for file in (None, "head.safetensors"):
        if file is not None:
            save_file({"proj.weight": torch.zeros(2, 16)}, tmp_path / file)
        report = headscope.inspect(tmp_path)
        assert (report.model.class_name, report.weights.new) == ("BertForSequenceClassification", ())
        assert "HS407" not in {item.id for item in report.findings}
    save_language_model("Qwen2", tmp_path / "plain")
    (tmp_path / "plain" / "decision_config.json").write_text(json.dumps({"codes": ["A", "B"], "temperature": 1.0}))
    assert headscope.inspect(tmp_path / "plain").model.class_name == "Qwen2ForSequenceClassification"


def test_sizes_beyond_all_models_are_refused_before_they_are_built(tmp_path: Path) -> None:
    _judged(tmp_path)
    edit_json(tmp_path / "config.json", {"num_hidden_layers": 3000, "layer_types": None})
    with pytest.raises(Malformed, match="3,000 layers"):
        headscope.inspect(tmp_path)


@pytest.mark.parametrize("text", ["[1]", "{", ""])
def test_a_file_that_is_no_object(text: str, tmp_path: Path) -> None:
    _judged(tmp_path)
    (tmp_path / "calibration.json").write_text(text)
    assert "HS407" in {item.id for item in headscope.check(tmp_path).findings}


def test_files_that_say_nothing_are_no_decision_head(tmp_path: Path) -> None:
    save_language_model("Qwen2", tmp_path)
    save_file({"proj.weight": torch.zeros(2, 16)}, tmp_path / "head.safetensors")
    for body in ("{oops", "[]", "{}", '{"slots": {}}', '{"slots": {"ranges": {"noul": [0]}, "num_slots": 3}}'):
        (tmp_path / "judge_config.json").write_text(body)
        with pytest.raises(Malformed, match="describes no decision head"):
            headscope.inspect(tmp_path)
        assert _fails_in_transformers(tmp_path)
    assert headscope.inspect(tmp_path, num_labels=3).model.class_name == "Qwen2ForSequenceClassification"
