"""Loads in which a head may get lost: for what `strict` stops them, and files and adapters without the head."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification as Auto

import headscope
from headscope.errors import HeadNotLoaded

CLASSIFIER = {"classifier.weight", "classifier.bias"}
POOLER = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}


def lost_in(load: Callable[[], Any], **options: Any) -> set[str]:
    """The parameters for which a load is stopped; empty if it isn't."""
    try:
        with headscope.strict(**options):
            kept = [load()]  # a model that nobody keeps is judged no more
        kept.clear()
    except HeadNotLoaded as err:
        return set(err.parameters)
    return set()


def without(folder: Path, *parts: str, name: str = "model.safetensors") -> Path:
    """The folder after its weights have lost the tensors whose names hold one of the parts."""
    state = load_file(folder / name)
    kept = {key: value for key, value in state.items() if not any(part in key for part in parts)}
    assert len(kept) < len(state)
    save_file(kept, folder / name, metadata={"format": "pt"})
    return folder


def adapter(saved: Path, folder: Path, **settings: Any) -> Path:
    """An adapter of a base model; with a task type it has a classifier."""
    import peft

    base = Auto.from_pretrained(saved / "base", num_labels=2)
    peft.get_peft_model(base, peft.LoraConfig(target_modules=["query"], **settings)).save_pretrained(folder)
    return folder
