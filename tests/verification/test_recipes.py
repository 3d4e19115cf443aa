"""The recipes around loads and saves, as they are printed, on checkpoints that bear the printed names."""

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import headscope
from headscope.shell.app import main
from tests.edits import edit_tensors
from tests.verification.tiny import TINY, adapted, loaded, with_adapter

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LABELS = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}


def printed(page: str, heading: str, language: str) -> list[str]:
    """The blocks of a language below a heading."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = [body for name, body in BLOCK.findall(section) if name == language]
    assert found, f"{page} has no {language} block below {heading!r}"
    return found


def commands(page: str, heading: str) -> list[str]:
    """The commands of headscope below a heading."""
    lines = [line for body in printed(page, heading, "sh") for line in body.splitlines()]
    return [line for line in lines if line.startswith("headscope ")]


def run(command: str) -> int:
    return main(shlex.split(os.path.expandvars(command))[1:])


def save(folder: str) -> None:
    BertForSequenceClassification(BertConfig(**TINY, **LABELS)).save_pretrained(folder)


def adapt(folder: str) -> None:
    """An adapter on `base`, with numbers that change something."""
    save("base")
    adapted(Path(folder), Path("base"), target_modules=["query"])


def without_classifier(folder: str) -> None:
    edit_tensors(
        Path(folder, "model.safetensors"),
        lambda state: {key: item for key, item in state.items() if "classifier" not in key},
    )


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHECKPOINT", "trained")


def lora_lost() -> None:
    """The head was trained, and `modules_to_save` was not given; the base model has none."""
    BertForSequenceClassification(BertConfig(**TINY)).bert.save_pretrained("base")
    model = BertForSequenceClassification.from_pretrained("base")
    peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"])).save_pretrained("path/to/adapter")


def merged() -> None:
    adapt("adapter")
    with_adapter(Path("base"), Path("adapter")).merge_and_unload().save_pretrained("merged")


def pushed() -> None:
    """A classifier as a softmax trains it: larger, with rows that sum to zero, and with a bias."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**TINY | {"hidden_size": 256}, **LABELS))
    with torch.no_grad():
        model.classifier.weight.mul_(3).sub_(model.classifier.weight.mean(0))
        model.classifier.bias.add_(torch.linspace(-0.05, 0.04, model.classifier.bias.numel()))
    model.save_pretrained("model")


RECIPES: list[tuple[str, str, Callable[[], None], Callable[[], None]]] = [
    ("recipes.md", "After LoRA", lambda: adapt("path/to/adapter"), lora_lost),
    ("recipes.md", "After a merge", merged, lambda: loaded(Path("base")).save_pretrained("merged")),
    (
        "verify.md", "In CI, before a push to the Hub", lambda: save("trained"), lambda: without_classifier("trained"),
    ),
    ("recipes.md", "Before a push to the Hub", pushed, lambda: without_classifier("model")),
]  # fmt: skip


@pytest.mark.parametrize(("page", "heading", "healthy", "lost"), RECIPES, ids=[item[1] for item in RECIPES])
def test_the_printed_commands_pass_and_fail(
    page: str, heading: str, healthy: Callable[[], None], lost: Callable[[], None]
) -> None:
    healthy()
    assert {command: run(command) for command in commands(page, heading)} == dict.fromkeys(commands(page, heading), 0)
    lost()
    verifying = [command for command in commands(page, heading) if command.startswith("headscope verify")]
    assert [run(command) for command in verifying] == [1] * len(verifying)


def test_the_printed_training_passes(tmp_path: Path) -> None:
    (code,) = printed("verify.md", "After a save", "py")
    save("trained")
    row = {"input_ids": torch.arange(9), "labels": torch.tensor(1)}
    names: dict[str, Any] = {
        "Trainer": Trainer,
        "headscope": headscope,
        "model": BertForSequenceClassification.from_pretrained("trained"),
        "args": TrainingArguments("out", max_steps=2, save_steps=1, report_to=[], use_cpu=True, disable_tqdm=True),
        "rows": [row] * 8,
    }
    exec(code, names)
    (callback,) = (item for item in names["trainer"].callback_handler.callbacks if hasattr(item, "saves"))
    assert [item.verdict.value for item in (*callback.saves, callback.trained)] == ["passed"] * 4
    assert Path("final/model.safetensors").is_file()
