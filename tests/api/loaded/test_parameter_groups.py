"""The groups for an optimizer, against what the loader reports, and against the decay of `Trainer`."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from families import FAMILIES
from transformers import PreTrainedModel, Trainer, TrainingArguments

import headscope
from headscope.errors import HeadscopeError, UsageError

NAMES = ("bert", "roberta", "distilbert", "deberta-v2", "albert", "electra", "gpt2", "llama", "t5", "bart", "vit")


def loaded(folder: Path, name: str, **options: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """A classifier with five classes on a checkpoint of the family's base or language model."""
    family = FAMILIES[name]
    family.build(family.language_model or family.base).save_pretrained(folder)
    cls = getattr(transformers, family.classifier)
    return cls.from_pretrained(folder, num_labels=5, output_loading_info=True, **options)


def by_name(model: torch.nn.Module, groups: list[dict[str, Any]] | None = None, **options: Any) -> dict[str, str]:
    """The group of each parameter."""
    groups = groups or headscope.parameter_groups(model, head_lr=1e-2, base_lr=1e-4, **options)
    names = {id(item): name for name, item in model.named_parameters()}
    found = [(names[id(item)], group["name"]) for group in groups for item in group["params"]]
    assert len(found) == len(dict(found))  # none is in two
    return dict(found)


@pytest.mark.parametrize("name", [name for name in NAMES if name in FAMILIES])
def test_new_parameters_are_those_that_the_loader_misses(name: str, tmp_path: Path) -> None:
    model, info = loaded(tmp_path, name)
    groups = headscope.parameter_groups(model, head_lr=1e-2, base_lr=1e-4, decay=0.1)
    found = by_name(model, groups)
    new = {at for at, kind in found.items() if kind.startswith("new")}
    absent = {at for at, _ in model.named_parameters()} - set(found)
    assert new == set(info["missing_keys"]) - absent
    assert {group["lr"] for group in groups if group["name"].startswith("new")} == {1e-2}
    assert {group["lr"] for group in groups if not group["name"].startswith("new")} <= {1e-4}
    assert not any(kind.startswith("unknown") for kind in found.values())
    rates = {id(item): group["lr"] for group in torch.optim.AdamW(groups).param_groups for item in group["params"]}
    assert len(rates) == len(found)
    if name != "vit":  # what no group holds has no gradient
        end = getattr(model.config, "eos_token_id", None)
        ids = torch.tensor([[*range(10, 20), 20 if end is None else min(end, 98)]])
        model(input_ids=ids, labels=torch.tensor([4])).loss.backward()
        assert all(item.grad is None for at, item in model.named_parameters() if at in absent)
    head = next(iter(new))
    assert {group["weight_decay"] for group in groups} == {0.1, 0.0}, head


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_decay_is_that_of_the_trainer(name: str, tmp_path: Path) -> None:
    model, _ = loaded(tmp_path / "base", name)
    groups = headscope.parameter_groups(model, head_lr=1e-2, base_lr=1e-4, decay=0.1)
    ours = {id(item): group["weight_decay"] for group in groups for item in group["params"]}
    trainer = Trainer(model, TrainingArguments(str(tmp_path / "out"), weight_decay=0.1, report_to=[]))
    trainer.create_optimizer()
    theirs = {id(item): group["weight_decay"] for group in trainer.optimizer.param_groups for item in group["params"]}
    assert ours == {at: theirs[at] for at in ours}


@pytest.mark.parametrize("decay", [None, 0.0, 0.3])
@pytest.mark.parametrize("given", [{}, {"weight_decay": 0.0}, {"weight_decay": 0.2}])
def test_the_optimizer_decays_as_it_was_told_to(decay: float | None, given: dict[str, float], tmp_path: Path) -> None:
    """What AdamW really does: with no gradient but zeros, a step only decays."""
    model, _ = loaded(tmp_path / "base", "bert")
    options = {} if decay is None else {"decay": decay}
    optimizer = torch.optim.AdamW(headscope.parameter_groups(model, head_lr=1e-2, base_lr=1e-2, **options), **given)
    decayed = {"bert.encoder.layer.0.output.dense.weight", "classifier.weight", "bert.pooler.dense.weight"}
    kept = {"bert.encoder.layer.0.output.LayerNorm.weight", "classifier.bias"}
    held = {name: item for name, item in model.named_parameters() if name in decayed | kept}
    for item in held.values():
        item.data.fill_(1.0)
        item.grad = torch.zeros_like(item)
    optimizer.step()
    rate = given.get("weight_decay", torch.optim.AdamW([torch.zeros(1)]).defaults["weight_decay"])
    rate = rate if decay is None else decay
    for name, item in held.items():
        expected = 1.0 if name in kept else 1.0 - 1e-2 * rate
        torch.testing.assert_close(item.data, torch.full_like(item, expected), msg=name)


def test_a_trainer_takes_an_optimizer_made_of_them(tmp_path: Path) -> None:
    model, _ = loaded(tmp_path / "base", "bert")
    before = {name: item.detach().clone() for name, item in model.named_parameters()}
    groups = headscope.parameter_groups(model, head_lr=1e-1, base_lr=1e-6)
    rows = [{"input_ids": torch.arange(10, 20), "labels": at % 5} for at in range(8)]
    arguments = TrainingArguments(
        str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=8, lr_scheduler_type="constant", report_to=[],
        use_cpu=True, max_grad_norm=0.0,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=rows, optimizers=(torch.optim.AdamW(groups), None)).train()
    moved = {name: float((item.detach() - before[name]).abs().max()) for name, item in model.named_parameters()}
    assert moved["classifier.weight"] == pytest.approx(1e-1, rel=1e-2)  # the first step of Adam is the rate
    assert 0 < moved["bert.encoder.layer.0.output.dense.weight"] < 2e-6


def test_frozen_and_unused_parameters_are_in_no_group(tmp_path: Path) -> None:
    model, _ = loaded(tmp_path, "bert")
    model.bert.encoder.requires_grad_(False)
    found = by_name(model)
    assert not any("encoder" in name for name in found)
    assert "classifier.weight" in found
    model.requires_grad_(False)
    with pytest.raises(UsageError, match="every parameter is frozen"):
        by_name(model)


def test_what_peft_adds_is_a_group(tmp_path: Path) -> None:
    model, _ = loaded(tmp_path, "bert")
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"]))
    found = by_name(adapted)
    trained = {name for name, item in adapted.named_parameters() if item.requires_grad}
    assert set(found) == trained
    assert {name for name, kind in found.items() if kind.startswith("adapter")} == {
        name for name in trained if "lora" in name
    }


def test_a_resized_embedding_is_not_called_loaded(tmp_path: Path) -> None:
    model, _ = loaded(tmp_path, "bert")
    model.resize_token_embeddings(120)
    found = by_name(model)
    assert found["bert.embeddings.word_embeddings.weight"] == "unknown"


def test_what_the_load_gave_has_to_be_known(tmp_path: Path) -> None:
    model, info = loaded(tmp_path, "bert")
    copied = type(model)(model.config)
    copied.load_state_dict(model.state_dict())
    for fresh in (FAMILIES["bert"].build(FAMILIES["bert"].classifier), copied):
        with pytest.raises(HeadscopeError, match="not known whether a checkpoint gave"):
            by_name(fresh)
    (tmp_path / "model.safetensors").unlink()
    found = by_name(model, loading_info=info)
    assert {name for name, kind in found.items() if kind.startswith("new")} == set(info["missing_keys"])


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ({"head_lr": 0, "base_lr": 1}, "must be a positive number"),
        ({"head_lr": 1, "base_lr": "x"}, "base_lr must be float, not str 'x'"),
        ({"head_lr": 1, "base_lr": float("inf")}, "must be a positive number"),
        ({"head_lr": 1, "base_lr": 1, "decay": -1}, "must be a positive number"),
        ({"head_lr": True, "base_lr": 1}, "head_lr must be float, not bool True"),
    ],
)
def test_rates_are_positive_numbers(rates: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        headscope.parameter_groups(torch.nn.Linear(2, 2), **rates)


def test_a_name_is_not_a_model() -> None:
    with pytest.raises(UsageError, match="takes a model in memory"):
        headscope.parameter_groups("bert-base-uncased", head_lr=1.0, base_lr=1.0)  # type: ignore[arg-type]
