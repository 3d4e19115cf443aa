"""The callback on the saves of real training runs: whole saves raise no alarm, and each fault is caught."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import Trainer

import headscope
from headscope.errors import CheckFailed, UsageError
from tests.edits import edit_json
from tests.integrations.small import LABELS, Texts, arguments, ids, trained

HEAD = {"bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"}


def saving(write: Callable[[Any, Path], Any]) -> type[Trainer]:
    """A trainer that writes a model in its own way."""

    class Saving(Trainer):
        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
            write(self.model, Path(str(output_dir)))

    return Saving


def lora(model: Any, task: str | None = "SEQ_CLS", **given: Any) -> Any:
    return peft.get_peft_model(model, peft.LoraConfig(**{"task_type": task, "target_modules": ["query"], **given}))


# Healthy saves raise no alarm.

EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss"}
BEST = {**EVALUATED, "save_steps": 1, "load_best_model_at_end": True}
HEALTHY = {
    "every step": {"save_steps": 1},
    "last step": {"save_steps": 3},
    "last step beyond the interval": {"save_steps": 2},
    "epochs": {"save_strategy": "epoch", "max_steps": -1, "num_train_epochs": 2},
    "save_total_limit": {"save_steps": 1, "save_total_limit": 1},
    "best at the end": BEST,
    "best and limit": {**BEST, "save_total_limit": 1},
    "only the best": {**EVALUATED, "save_strategy": "best"},
    "model only": {"save_only_model": True},
    "bf16": {"bf16": True},
    "accumulated": {"gradient_accumulation_steps": 2, "max_steps": 2, "save_steps": 1},
    "no saves": {"save_strategy": "no"},
}


@pytest.mark.parametrize("settings", HEALTHY)
def test_a_healthy_run_raises_no_alarm(
    settings: str, model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    callback = headscope.HeadscopeCallback()
    with caplog.at_level(logging.WARNING, logger="headscope"):
        trained(model, tmp_path, callback, **HEALTHY[settings])
    assert not ids(callback)
    assert not [record for record in caplog.records if record.name == "headscope"]
    assert {result.verdict.value for result in callback.saves} == (set() if settings == "no saves" else {"passed"})
    assert all({item.name for item in result.tensors} == set(model.state_dict()) for result in callback.saves)
    assert callback.trained.verdict.value == "passed"


def with_frozen_pooler(model: Any) -> Any:
    model.bert.requires_grad_(False)
    return model


HEALTHY_MODELS = {
    "adapted": lora,
    "adapted_by_name": lambda model: lora(model, None, modules_to_save=["classifier"]),
    "in_bfloat16": lambda model: model.to(torch.bfloat16),
    "with_lora_in_the_head": lambda model: lora(model, target_modules=["query", "pooler.dense"]),
    "with_frozen_pooler": with_frozen_pooler,
}


@pytest.mark.parametrize("change", HEALTHY_MODELS)
def test_a_healthy_model_raises_no_alarm(change: str, model: Any, tmp_path: Path) -> None:
    callback = headscope.HeadscopeCallback(ignore=("HS6", "HS402"))
    trained(HEALTHY_MODELS[change](model), tmp_path, callback, eval_strategy="steps", eval_steps=1, save_steps=1,
            load_best_model_at_end=True)  # fmt: skip
    assert callback.saves
    assert not ids(callback), [str(result) for result in callback.saves]
    assert {result.verdict.value for result in callback.saves} == {"passed"}


def test_a_sharded_save_raises_no_alarm(model: Any, tmp_path: Path) -> None:
    callback = headscope.HeadscopeCallback()
    sharding = saving(lambda model, folder: model.save_pretrained(folder, max_shard_size="20kB"))
    trained(model, tmp_path, callback, sharding)
    assert len(list((tmp_path / "out" / "checkpoint-3").glob("model-*.safetensors"))) > 1
    assert not ids(callback)


def test_a_resumed_run_raises_no_alarm(model: Any, tmp_path: Path) -> None:
    trained(model, tmp_path, headscope.HeadscopeCallback(), max_steps=2)
    callback = headscope.HeadscopeCallback()
    again = Trainer(model, arguments(tmp_path, max_steps=4), train_dataset=Texts(), callbacks=[callback])
    again.train(resume_from_checkpoint=True)
    assert callback.saves
    assert not ids(callback)


def test_training_gives_the_same_numbers_with_and_without(tmp_path: Path, model: Any) -> None:
    results = []
    for callback in (headscope.HeadscopeCallback(), transformers.TrainerCallback()):
        transformers.set_seed(7)
        fresh = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "base", **LABELS)
        trained(fresh, tmp_path, callback)
        results.append(fresh.state_dict())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


# Each fault, made in a real run.


def base_alone(model: Any, folder: Path) -> None:
    model.bert.save_pretrained(folder)
    model.config.save_pretrained(folder)


def state_of_a_wrapper(model: Any, folder: Path) -> None:
    model.config.save_pretrained(folder)
    state = {f"model.{name}": item for name, item in model.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def without_names_of_classes(model: Any, folder: Path) -> None:
    model.save_pretrained(folder)
    edit_json(folder / "config.json", {}, without=("id2label", "label2id"))


def without_a_shard(model: Any, folder: Path) -> None:
    model.save_pretrained(folder, max_shard_size="20kB")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    (folder / index["weight_map"]["classifier.weight"]).unlink()


def ungathered(model: Any, folder: Path) -> None:
    """What ZeRO-3 leaves of weights that are not gathered."""
    model.config.save_pretrained(folder)
    state = {name: torch.empty(0) for name in model.state_dict()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


class Late(Trainer):
    """Saves what it copied before the last step."""

    def training_step(self, *given: Any, **named: Any) -> Any:
        self.older = {name: item.clone() for name, item in self.model.state_dict().items()}
        return super().training_step(*given, **named)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        self.model.save_pretrained(output_dir, state_dict=self.older)


Dropping = saving(base_alone)
FAULTS: dict[str, tuple[type[Trainer], str, set[str]]] = {
    "base alone": (Dropping, "HS711", {"classifier.weight", "classifier.bias"}),
    "state of a wrapper": (saving(state_of_a_wrapper), "HS712", HEAD),
    "late": (Late, "HS713 HS719", HEAD),
    "without names of classes": (saving(without_names_of_classes), "HS715", set()),
    "without a shard": (saving(without_a_shard), "HS717", set()),
    "ungathered": (saving(ungathered), "HS717", HEAD),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_save_fails_at_the_end_and_warns_at_once(
    fault: str, model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer_class, rules, names = FAULTS[fault]
    rule = rules.split()[0]
    callback = headscope.HeadscopeCallback()
    seen_at: list[int] = []

    class Watching(transformers.TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if rule in caplog.text:
                seen_at.append(state.global_step)

    with pytest.raises(CheckFailed, match=rule):
        trained(model, tmp_path, callback, trainer_class, others=[Watching()])
    assert seen_at == [2, 3]  # training went on after the first
    assert ids(callback) == rules.split()
    assert set(callback.saves[0].findings[0].parameters) >= names


def test_a_bad_save_can_stop_training_at_once(model: Any, tmp_path: Path) -> None:
    callback = headscope.HeadscopeCallback(stop_at_bad_save=True)
    with pytest.raises(CheckFailed, match="HS711"):
        trained(model, tmp_path, callback, Dropping)
    assert len(callback.saves) == 1
    assert not (tmp_path / "out" / "checkpoint-3").exists()


def test_a_bad_save_can_warn_only(model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = headscope.HeadscopeCallback(on_fail="warn")
    trained(model, tmp_path, callback, Dropping)
    assert "HS711" in caplog.text
    assert callback.saves[0].verdict.value == "failed"


def test_rules_can_be_chosen_and_ignored(model: Any, tmp_path: Path) -> None:
    trained(model, tmp_path, ignored := headscope.HeadscopeCallback(ignore=("HS711",)), Dropping)
    assert not ids(ignored)
    trained(model, tmp_path, unasked := headscope.HeadscopeCallback(select=("HS601",)), Dropping)
    assert not unasked.saves
    trained(model, tmp_path, off := headscope.HeadscopeCallback(verify_saves=False), Dropping)
    assert not off.saves
    with pytest.raises(CheckFailed, match="HS711"):
        trained(model, tmp_path, headscope.HeadscopeCallback(select=("HS711",)), Dropping)
    with pytest.raises(UsageError, match="HS799"):
        trained(model, tmp_path, headscope.HeadscopeCallback(select=("HS799",)))


@pytest.mark.parametrize("is_trained", [True, False])
def test_an_adapter_without_its_head_fails(is_trained: bool, model: Any, tmp_path: Path) -> None:
    wrapped = lora(model, None)
    wrapped.base_model.model.classifier.requires_grad_(is_trained)
    callback = headscope.HeadscopeCallback(ignore=("HS601", "HS602"))
    with pytest.raises(CheckFailed, match="HS714"):
        trained(wrapped, tmp_path, callback)
    finding = callback.saves[0].findings[0]
    assert set(finding.parameters) == {"classifier.weight", "classifier.bias"}
    assert "modules_to_save=['classifier']" in finding.remedy
    stored = load_file(tmp_path / "out" / "checkpoint-3" / "adapter_model.safetensors")
    assert not any("classifier" in key for key in stored)


def test_a_head_of_the_checkpoint_that_an_adapter_run_trained_fails(model: Any, tmp_path: Path) -> None:
    """The base checkpoint has a head, it was trained on, and the adapter lacks it: the digests tell."""
    model.save_pretrained(tmp_path / "whole")
    loaded = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "whole")
    wrapped = lora(loaded, None)
    loaded.classifier.requires_grad_(True)
    with pytest.raises(CheckFailed, match=r"HS714.*training"):
        trained(wrapped, tmp_path, headscope.HeadscopeCallback(ignore=("HS6",)))


def test_steps_after_the_last_save_are_a_warning(model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class NoSaveAtTheEnd(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            control.should_save = state.global_step == 2

    callback = headscope.HeadscopeCallback()
    trained(model, tmp_path, callback, others=[NoSaveAtTheEnd()])
    assert ids(callback) == ["HS713", "HS719"]
    assert {item.severity.value for result in callback.saves for item in result.findings} == {"warning"}
    assert "1 step before" in caplog.text


def test_a_save_by_hand_is_verified_by_one_call(model: Any, tmp_path: Path) -> None:
    trainer = trained(model, tmp_path, headscope.HeadscopeCallback(), save_strategy="no")
    trainer.save_model(str(tmp_path / "final"))
    assert headscope.verify_save(trainer.model, tmp_path / "final").verdict.value == "passed"
    bad = Dropping(model, arguments(tmp_path), train_dataset=Texts())
    bad.save_model(str(tmp_path / "bad"))
    assert [item.id for item in headscope.verify_save(bad.model, tmp_path / "bad").findings] == ["HS711"]


def test_other_processes_verify_nothing(model: Any, tmp_path: Path) -> None:
    callback = headscope.HeadscopeCallback()
    state = transformers.TrainerState(is_world_process_zero=False)
    for call in (callback.on_train_begin, callback.on_save, callback.on_train_end):
        call(arguments(tmp_path), state, None, model=model)
    assert (callback.result, callback.saves, callback.trained) == (None, (), None)


def test_a_save_that_cannot_be_read_is_not_determined(
    model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def zeros(model: Any, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"\x00" * 64)

    trained(model, tmp_path, headscope.HeadscopeCallback(), saving(zeros))
    assert "could not verify" in caplog.text
    with pytest.raises(CheckFailed, match="could not verify"):
        trained(model, tmp_path / "again", headscope.HeadscopeCallback(on_undetermined="raise"), saving(zeros))


# Whether the head was trained.


def only(parameters: Iterator[nn.Parameter]) -> tuple[Any, None]:
    return torch.optim.AdamW(list(parameters), lr=1e-2), None


def frozen(model: Any) -> dict[str, Any]:
    model.classifier.requires_grad_(False)
    return {}


def beside_the_optimizer(model: Any) -> dict[str, Any]:
    return {"optimizers": only(model.bert.parameters())}


def without_a_gradient(model: Any) -> dict[str, Any]:
    class Detached(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
            return model.bert(inputs["input_ids"]).last_hidden_state.square().mean()

    return {"trainer_class": Detached}


def without_a_rate(model: Any) -> dict[str, Any]:
    return {"learning_rate": 0.0}


UNTRAINED = {
    frozen: "requires_grad is False",
    beside_the_optimizer: "it is not in the optimizer",
    without_a_gradient: "no gradient reached it",
    without_a_rate: "its learning rate was 0",
}


@pytest.mark.parametrize("way", UNTRAINED, ids=lambda way: way.__name__)
def test_a_head_that_did_not_train_is_named_with_the_cause(way: Any, model: Any, tmp_path: Path) -> None:
    callback = headscope.HeadscopeCallback(on_fail="warn")
    trained(model, tmp_path, callback, **way(model))
    finding = next(item for item in callback.trained.findings if item.severity.value == "error")
    assert finding.id == "HS718"
    assert set(finding.parameters) >= {"classifier.weight", "classifier.bias"}
    assert UNTRAINED[way] in finding.message


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_gradient_of_zero_is_named_and_weight_decay_alone_is_no_training(
    weight_decay: float, model: Any, tmp_path: Path
) -> None:
    before = model.classifier.weight.detach().clone()
    model.classifier.weight.register_hook(torch.zeros_like)
    callback = headscope.HeadscopeCallback()
    with pytest.raises(CheckFailed, match=r"HS718.*classifier\.weight: .*gradient"):
        trained(model, tmp_path, callback, weight_decay=weight_decay)
    assert callback.trained.findings[0].parameters == ("classifier.weight",)
    assert torch.equal(before, model.classifier.weight) is not bool(weight_decay)


def test_updates_below_the_rounding_step_are_a_warning(model: Any, tmp_path: Path) -> None:
    with torch.no_grad():
        model.classifier.weight.fill_(100.0)
    callback = headscope.HeadscopeCallback(on_fail="warn")
    trained(model.to(torch.bfloat16), tmp_path, callback, learning_rate=1e-7)
    assert bool((model.classifier.weight == 100).all())
    finding = next(item for item in callback.trained.findings if "classifier.weight" in item.parameters)
    assert (finding.id, finding.severity.value) == ("HS718", "warning")
    assert "classifier.weight: " in finding.message and " updates " in finding.message


def test_what_was_ignored_at_the_start_is_no_fault_at_the_end(model: Any, tmp_path: Path) -> None:
    model.classifier.requires_grad_(False)
    callback = headscope.HeadscopeCallback(ignore=("HS601",))
    trained(model, tmp_path, callback)
    assert not callback.trained.findings


def test_the_norms_are_those_of_the_weights(model: Any, tmp_path: Path) -> None:
    before = float(model.classifier.weight.detach().norm())
    callback = headscope.HeadscopeCallback()
    trained(model, tmp_path, callback)
    after = float(model.classifier.weight.detach().norm())
    [note] = [note for note in callback.trained.notes if note.startswith("classifier.weight ")]
    assert note.endswith(f" {before:.4g} to {after:.4g}")
