"""Changes of what was saved: fields of a JSON file, tensors of a safetensors file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

State = dict[str, torch.Tensor]


def edit_json(file: Path, fields: dict[str, Any], *, without: tuple[str, ...] = ()) -> None:
    """Other values for some fields, and others taken out."""
    kept = {name: value for name, value in json.loads(file.read_text()).items() if name not in without}
    file.write_text(json.dumps(kept | fields))


def edit_tensors(file: Path, change: Callable[[State], State | None]) -> None:
    """The tensors that `change` gives, or what it leaves of those that it gets."""
    state = load_file(file)
    changed = change(state) or state
    save_file({key: item.clone() for key, item in changed.items()}, file, metadata={"format": "pt"})
