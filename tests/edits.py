"""Changes of what was saved: fields of a JSON file, tensors of a safetensors file; and their proof in this process."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file, save_file

State = dict[str, torch.Tensor]
_Task = TypeVar("_Task")
_Proof = TypeVar("_Proof")


def prove_in_this_process(prove: Callable[[_Task], _Proof], task: _Task, environment: Mapping[str, str]) -> _Proof:
    """Stands for `headscope.copies.proving.prove_in_process`."""
    return prove(task)


def edit_json(file: Path, fields: dict[str, Any], *, without: tuple[str, ...] = ()) -> None:
    """Other values for some fields, and others taken out."""
    kept = {name: value for name, value in json.loads(file.read_text()).items() if name not in without}
    file.write_text(json.dumps(kept | fields))


def contents(folder: Path) -> dict[str, bytes]:
    """What the files of a folder hold."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def edit_tensors(file: Path, change: Callable[[State], object]) -> None:
    """The tensors that `change` gives, or what it leaves of those that it gets if it gives something else."""
    state = load_file(file)
    changed = change(state)
    state = changed if isinstance(changed, dict) else state
    save_file({key: item.clone() for key, item in state.items()}, file, metadata={"format": "pt"})
