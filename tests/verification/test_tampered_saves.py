"""Saves and adapters that were tampered with: the faults that verify must find, and those that a load hides."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForTokenClassification,
    BertModel,
    TrainerControl,
    TrainerState,
)

import headscope
from headscope.core.facts.verdict import Verdict
from headscope.shared.loaded.facts import TensorStatus
from tests.edits import edit_json, edit_tensors
from tests.verification.tiny import (
    METHODS,
    TINY,
    drawn_lora,
    ids,
    loaded,
    lost_in_a_load,
    saved_adapter,
    with_adapter,
)


def on_save(model: Any, folder: Path, verify_saves: Any = True) -> Any:
    """What the callback says of a save: it saw the model before, and the checkpoint is the folder given."""
    callback = headscope.HeadscopeCallback(on_fail="warn", verify_saves=verify_saves, ignore=("HS1", "HS2", "HS6"))
    arguments = SimpleNamespace(output_dir=folder.parent)
    callback.on_train_begin(arguments, TrainerState(), TrainerControl(), model=model)  # type: ignore[arg-type]
    callback.on_save(arguments, TrainerState(global_step=1), TrainerControl(), model=model)  # type: ignore[arg-type]
    return callback.saves[-1]


@pytest.fixture
def folder(model: Any, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path / "checkpoint-1")
    return tmp_path / "checkpoint-1"


# Saves: what is in the folder, against the live model, by `verify_save` and by the callback.

Change = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def without(part: str) -> Change:
    return lambda state: {key: item for key, item in state.items() if part not in key}


def behind(prefix: str) -> Change:
    return lambda state: {prefix + key: item for key, item in state.items()}


def put(name: str, number: float) -> Change:
    return lambda state: state | {name: torch.full_like(state[name], number)}


def as_name(old: str, new: str) -> Change:
    return lambda state: {key.replace(old, new): item for key, item in state.items()}


def swapped(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    names = {"layer.0.": "layer.1.", "layer.1.": "layer.0."}
    return {next((key.replace(a, b) for a, b in names.items() if a in key), key): item for key, item in state.items()}


LAYER = "bert.encoder.layer.1."
SAVES: dict[str, tuple[Change, set[str]]] = {
    "without a layer": (without(LAYER), {"HS719"}),
    "without the embeddings": (without("bert.embeddings."), {"HS719"}),
    "without one bias": (without(f"{LAYER}output.dense.bias"), {"HS719"}),
    "without the pooler": (without("pooler"), {"HS711"}),
    "without the head": (without("classifier"), {"HS711"}),
    "without anything of the base": (lambda state: {k: v for k, v in state.items() if k[0] == "c"}, {"HS711", "HS719"}),
    "a layer under another name": (as_name("encoder.layer.1.", "encoder.blocks.1."), {"HS712"}),
    "as it was written": (lambda state: state, set()),
    "a layer zeroed": (put(f"{LAYER}output.dense.weight", 0), {"HS719"}),
    "a norm changed": (put(f"{LAYER}output.LayerNorm.weight", 2), {"HS719"}),
    "NaN in the base": (put(f"{LAYER}output.dense.weight", float("nan")), {"HS719"}),
    "layers swapped": (swapped, {"HS719"}),
    "embeddings cut": (
        lambda state: state | {"bert.embeddings.word_embeddings.weight": torch.zeros(98, 32)}, {"HS719"},
    ),
    "the classifier zeroed": (put("classifier.weight", 0), {"HS713"}),
    "without one bias of the head": (without("classifier.bias"), {"HS711"}),
    "one weight of the head renamed": (as_name("classifier.weight", "score.weight"), {"HS712"}),
    "three classes": (
        lambda state: state | {"classifier.weight": torch.zeros(3, 32), "classifier.bias": torch.zeros(3)}, {"HS713"},
    ),
    "placeholders of ZeRO-3": (
        lambda state: state | dict.fromkeys(("classifier.weight", "classifier.bias"), torch.empty(0)), {"HS717"},
    ),
    "older names that the loader knows": (
        lambda state: as_name("LayerNorm.weight", "LayerNorm.gamma")(as_name("Norm.bias", "Norm.beta")(state)), set(),
    ),
    "behind model.": (behind("model."), {"HS712"}),
    "behind module.": (behind("module."), {"HS712"}),
    "behind _orig_mod.": (behind("_orig_mod."), {"HS712"}),
    "behind 0.auto_model.": (behind("0.auto_model."), {"HS712"}),
}  # fmt: skip


@pytest.mark.parametrize("saved_as", ["safetensors", "bin"])
@pytest.mark.parametrize("case", SAVES)
def test_a_save_that_was_tampered_with_fails(case: str, saved_as: str, model: Any, folder: Path) -> None:
    change, rules = SAVES[case]
    edit_tensors(folder / "model.safetensors", change)
    if saved_as == "bin":
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    result, seen = headscope.verify_save(model, folder), on_save(model, folder)
    lost = lost_in_a_load(folder, model)
    for each in (result, seen):
        assert set(ids(each)) == rules, str(each)
        assert {name for finding in each.findings for name in finding.parameters} == lost
        assert each.verdict is (Verdict.FAILED if rules else Verdict.PASSED)
        assert each.bytes_read


@pytest.mark.parametrize("case", ["without a layer", "without the embeddings", "embeddings cut", "without the head"])
def test_with_the_head_alone_what_is_missing_is_still_found(case: str, model: Any, folder: Path) -> None:
    change, rules = SAVES[case]
    edit_tensors(folder / "model.safetensors", change)
    for result in (headscope.verify_save(model, folder, head=True), on_save(model, folder, "head")):
        assert set(ids(result)) == rules, str(result)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["classifier.weight", "bert.encoder.layer.0.output.dense.bias"])
def test_numbers_that_are_lost_in_both_never_pass(name: str, number: float, model: Any, tmp_path: Path) -> None:
    with torch.no_grad():
        model.get_parameter(name)[0] = number
    folder = tmp_path / "checkpoint-1"
    model.save_pretrained(folder)
    for result in (headscope.verify_save(model, folder), on_save(model, folder)):
        assert ids(result) == ["HS720"], str(result)
        assert result.findings[0].parameters == (name,)
    assert headscope.verify(loaded(folder), folder).verdict is Verdict.FAILED


def test_a_step_after_the_save_and_another_models_folder_are_seen(model: Any, folder: Path) -> None:
    model.bert.embeddings.LayerNorm.bias.data += 1e-3  # what a step of a frozen head leaves
    assert ids(headscope.verify_save(model, folder)) == ["HS719"]
    other = BertForTokenClassification(BertConfig(**TINY))
    assert headscope.verify_save(other, folder).verdict is Verdict.FAILED


# Adapters: what PEFT saves, and what it loads.


@pytest.fixture
def lora(saved: Path) -> Any:
    return drawn_lora(saved, target_modules=["query", "value"])


@pytest.fixture
def adapter(lora: Any, tmp_path: Path) -> Path:
    lora.save_pretrained(tmp_path / "checkpoint-1")
    return tmp_path / "checkpoint-1"


def test_a_healthy_adapter_passes(lora: Any, adapter: Path, tmp_path: Path) -> None:
    """PEFT's unused copy of the classifier is not part of what the scores need."""
    for result in (headscope.verify_save(lora, adapter), on_save(lora, adapter)):
        assert (result.verdict, ids(result)) == (Verdict.PASSED, []), str(result)
        assert result.scope.adapter_only
        assert sum("lora_" in item.name for item in result.tensors) == 8
    # Without a classifier: only the adapter gives one.
    BertModel(BertConfig(**TINY)).save_pretrained(tmp_path / "base")
    result = headscope.verify(with_adapter(tmp_path / "base", adapter), tmp_path / "base", adapter=adapter)
    lost = [item.name for item in result.tensors if item.status is TensorStatus.RANDOM]
    assert lost == ["bert.pooler.dense.weight", "bert.pooler.dense.bias"] or not lost, lost
    assert not any("original_module" in item.name for item in result.tensors)


ADAPTERS: dict[str, tuple[Change, set[str]]] = {
    "without half of its tensors": (without("layer.1."), {"HS719"}),
    "without lora_B": (without("lora_B"), {"HS719"}),
    "without one tensor": (without("layer.0.attention.self.query.lora_A"), {"HS719"}),
    "without the classifier": (without("classifier"), {"HS714"}),
    "with zeros": (put("base_model.model.bert.encoder.layer.0.attention.self.query.lora_B.weight", 0), {"HS719"}),
    "with NaN": (
        put("base_model.model.bert.encoder.layer.0.attention.self.query.lora_B.weight", float("nan")), {"HS719"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ADAPTERS)
def test_an_adapter_that_was_tampered_with_fails(case: str, lora: Any, adapter: Path) -> None:
    change, rules = ADAPTERS[case]
    edit_tensors(adapter / "adapter_model.safetensors", change)
    for result in (headscope.verify_save(lora, adapter), on_save(lora, adapter)):
        assert set(ids(result)) == rules, str(result)
        assert result.verdict is Verdict.FAILED


SETTINGS: dict[str, Any] = {
    "lora_alpha": 99,
    "use_rslora": True,
    "target_modules": ["query"],
    "layers_to_transform": [0],
    "fan_in_fan_out": True,
    "task_type": "CAUSAL_LM",
    "alpha_pattern": {"query": 1},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_an_edited_setting_of_the_adapter_is_named(name: str, lora: Any, adapter: Path) -> None:
    edit_json(adapter / "adapter_config.json", {"lora_dropout": 0.5})  # only training reads it
    assert headscope.verify_save(lora, adapter).verdict is Verdict.PASSED
    edit_json(adapter / "adapter_config.json", {name: SETTINGS[name]})
    for result in (headscope.verify_save(lora, adapter), on_save(lora, adapter)):
        assert ids(result) == ["HS710"], str(result)
        assert name in result.findings[0].message


def test_a_trained_tensor_that_the_adapter_leaves_out_is_named(lora: Any, tmp_path: Path) -> None:
    norm = lora.base_model.model.bert.encoder.layer[0].output.LayerNorm
    norm.weight.requires_grad_(True)
    lora.save_pretrained(tmp_path / "checkpoint-1")
    result = headscope.verify_save(lora, tmp_path / "checkpoint-1")
    assert ids(result) == ["HS719"]
    assert "the adapter leaves" in result.findings[0].message


@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"prefixes"}))  # with these, BERT has no forward
def test_every_method_of_peft_passes_and_loses_nothing_unseen(method: str, saved: Path, tmp_path: Path) -> None:
    model = saved_adapter(method, saved, tmp_path / "a")
    result = headscope.verify_save(model, tmp_path / "a")
    assert (result.verdict, ids(result)) == (Verdict.PASSED, []), str(result)
    file = tmp_path / "a" / "adapter_model.safetensors"
    state = load_file(file)
    added = sorted(key for key in state if "classifier" not in key)  # PEFT copies the base's where the file lacks it
    for key in added[:: max(1, len(added) // 3)]:
        save_file({name: item for name, item in state.items() if name != key}, file, metadata={"format": "pt"})
        assert headscope.verify_save(model, tmp_path / "a").verdict is not Verdict.PASSED, key
