"""Scores of a model in memory beside those of a fresh load: changes that no tensor shows, and healthy models."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from torch import nn

import headscope
from headscope.checks import trial_process
from headscope.core.facts.verdict import Verdict
from headscope.integrations.gate import TrainingGate
from headscope.shared.trial.deciding import OFF
from tests.edits import edit_json
from tests.verdicts.models import trained
from tests.verification.tiny import adapted, drawn_lora, ids, loaded


@pytest.fixture(autouse=True)
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh loads, made in this process: a process for each would take seconds."""
    monkeypatch.delenv(OFF)
    if "in_a_process" not in request.node.name:
        monkeypatch.setattr(trial_process, "_call_worker", lambda worker, size, function, *given: function(*given))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    trained("bert").model.save_pretrained(folder)
    return folder


def _other_epsilon(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1.0


def _other_activation(model: Any) -> None:
    for layer in model.bert.encoder.layer:
        layer.intermediate.intermediate_act_fn = nn.ReLU()


def _dropout(module: nn.Module, given: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    return (nn.functional.dropout(given[0], 0.5, True),)


CHANGES: dict[str, Callable[[Any], object]] = {
    "a hook": lambda model: model.classifier.register_forward_hook(lambda module, given, scores: scores.flip(-1)),
    "a hidden weight": lambda model: vars(model.classifier).update(weight=model.classifier.weight.detach() * 3),
    "another epsilon": _other_epsilon,
    "always dropping": lambda model: model.classifier.register_forward_pre_hook(_dropout),
    "another activation": _other_activation,
    "causal": lambda model: vars(model.config).update(is_decoder=True),
    "failing": lambda model: vars(model).update(forward=lambda **given: 1 / 0),
    "another forward of the head": lambda model: vars(model.classifier).update(
        forward=lambda hidden: nn.functional.linear(hidden, model.classifier.weight)
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_no_tensor_shows_is_found_by_the_scores(case: str, stored: Path) -> None:
    model = loaded(stored)
    CHANGES[case](model)
    found = headscope.verify(model, stored)
    assert ids(found) == ["HS709"], str(found)
    assert headscope.verify(model, stored, head=True).scores is None


@pytest.mark.parametrize("change", ["eval", "train", "bfloat16", "double"])
def test_a_model_as_it_was_loaded_passes(change: str, stored: Path) -> None:
    model = getattr(loaded(stored), change)()
    mode, state = model.training, torch.get_rng_state()
    found = headscope.verify(model, stored)
    assert "HS709" not in ids(found), str(found)
    assert found.scores is not None and found.scores.inputs == 16 and found.scores.differing == 0
    assert model.training == mode and torch.equal(torch.get_rng_state(), state)
    assert any("train mode" in note for note in found.notes) == mode


def test_a_switched_off_adapter_is_found(stored: Path, tmp_path: Path) -> None:
    adapted(tmp_path, stored, target_modules=["query"])
    model: Any = peft.AutoPeftModelForSequenceClassification.from_pretrained(tmp_path, num_labels=3)
    assert ids(headscope.verify(model, tmp_path)) == []
    for module in model.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module._active_adapter = []
    assert ids(headscope.verify(model, tmp_path)) == ["HS709"]


def test_why_scores_are_not_compared_is_a_note(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OFF, "1")
    found = headscope.verify(loaded(stored), stored)
    assert found.verdict is Verdict.PASSED
    assert any(OFF in note for note in found.notes) and found.scores is not None and found.scores.reason
    monkeypatch.delenv(OFF)
    monkeypatch.setattr("psutil.virtual_memory", type("Memory", (), {"available": 1000}))
    assert any("half of the free memory" in note for note in headscope.verify(loaded(stored), stored).notes)


# ---- saves


def test_layers_that_were_cut_from_the_live_model_are_found(stored: Path, tmp_path: Path) -> None:
    model = loaded(stored)
    model.bert.encoder.layer = model.bert.encoder.layer[:1]
    model.save_pretrained(tmp_path)
    found = headscope.verify_save(model, tmp_path)
    assert ids(found) == ["HS721", "HS723"], str(found)
    _, info = transformers.BertForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    named = next(item for item in found.findings if item.id == "HS723").parameters
    assert set(named) == set(info["missing_keys"])
    assert ids(headscope.verify_save(model, tmp_path, reload=False)) == ["HS723"]


@pytest.mark.parametrize(
    "fields",
    [{"model_type": "roberta"}, {"type_vocab_size": 1}, {"hidden_act": "relu"}, {"problem_type": "regression"}],
)
def test_a_saved_configuration_that_is_another_one_is_found(
    fields: dict[str, Any], stored: Path, tmp_path: Path
) -> None:
    model = loaded(stored)
    model.save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", fields)
    found = headscope.verify_save(model, tmp_path, reload=False)
    assert ids(found) == ["HS722"] and next(iter(fields)) in found.findings[0].message
    reloaded = headscope.verify_save(model, tmp_path)
    assert ("HS721" in ids(reloaded)) == ("type_vocab_size" in fields or "hidden_act" in fields), str(reloaded)


def test_a_merged_model_in_the_folder_of_its_adapter_is_found(stored: Path, tmp_path: Path) -> None:
    model = drawn_lora(stored, target_modules=["query"])
    model.save_pretrained(tmp_path)
    assert ids(headscope.verify_save(model, tmp_path)) == []
    merged = model.merge_and_unload()
    merged.save_pretrained(tmp_path)
    assert ids(headscope.verify_save(merged, tmp_path)) == ["HS721"]


def test_a_healthy_save_passes_in_a_process(stored: Path, tmp_path: Path) -> None:
    model = deepcopy(loaded(stored)).train()
    model.save_pretrained(tmp_path)
    found = headscope.verify_save(model, tmp_path)
    assert (found.verdict, ids(found), found.notes) == (Verdict.PASSED, [], ())
    assert found.scores is not None and (found.scores.inputs, found.scores.differing) == (16, 0)
    assert "scores of 16 random inputs: equal" in " ".join(str(found).split())


def test_the_end_of_a_training_loads_its_save_again(stored: Path, tmp_path: Path) -> None:
    model = loaded(stored)
    gate = TrainingGate(on_fail="warn")
    gate.begin(model, torch.optim.SGD(model.parameters(), 0.1))
    model.save_pretrained(tmp_path)
    gate.saved(model, tmp_path)
    gate.saved(model, tmp_path, is_last=True)
    assert [result.scores is not None for result in gate.saves] == [False, True]
    each = TrainingGate(on_fail="warn", verify_saves="reload")
    each.begin(model, torch.optim.SGD(model.parameters(), 0.1))
    each.saved(model, tmp_path)
    assert each.saves[0].scores is not None and each.saves[0].scores.inputs == 16
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "bert"
