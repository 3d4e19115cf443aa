"""Checkpoints of torch.distributed.checkpoint (DCP), which FSDP writes too: `.metadata` beside `*.distcp`."""

import io
from collections.abc import Iterator
from typing import Any, TypeGuard

from headscope.checkpoints.formats.pickle.interpreter import read_pickle
from headscope.checkpoints.formats.pickle.values import Global, Opaque
from headscope.checkpoints.states.place import Found, StatePlace
from headscope.checkpoints.states.training_file import WRITTEN, code_to_save, on_imports, place_in_dict
from headscope.errors import HeadscopeError
from headscope.facts import CheckpointState, Repair, StateKind, TensorHeader
from headscope.facts.counting import counted

_METADATA = ".metadata"
_DATA = ".distcp"

Path = tuple[str | int, ...]


def find_distributed(place: StatePlace) -> Found | None:
    """The state of a place with a distributed checkpoint in it or in a folder of it; that of the model comes first."""
    folders = [folder for folder in ("", *place.folders()) if _is_one(place, folder)]
    if not folders:
        return None
    folder = min(folders, key=lambda name: ("optim" in name, name))
    inside = place.within(folder) if folder else place
    files = [name for name in inside.names if name.endswith(_DATA)]
    evidence = [f"{folder or 'the folder'} holds {_METADATA} and {counted(len(files), f'{_DATA} file')}"]
    tensors, has_objects = None, False
    try:
        metadata, imported = _metadata(inside)
        path, tensors = _tensors(metadata)
        has_objects = _has_objects(metadata)
        under = f" under {place_in_dict(path)}" if path else ""
        evidence.append(f"its metadata lists {counted(len(tensors), 'tensor')} of the model{under}")
        evidence += on_imports(imported)
    except HeadscopeError as err:
        evidence.append(f"its metadata cannot be read: {err.message}")
        path = ()
    is_fsdp = "fsdp" in folder
    tool = "FSDP (torch.distributed.checkpoint)" if is_fsdp else "torch.distributed.checkpoint"
    state = CheckpointState(
        StateKind.DISTRIBUTED,
        tool=tool,
        sentence=f"The weights are a distributed checkpoint of {tool}, which from_pretrained does not read.",
        evidence=tuple(evidence),
        repair=_repair(folder or ".", path, weights_only=not has_objects) if tensors else None,
    )
    return Found(state, tensors or None, WRITTEN)


def _is_one(place: StatePlace, folder: str) -> bool:
    names = place.inside(folder) if folder else place.top()
    return _METADATA in names and any(name.endswith(_DATA) for name in names)


def _metadata(place: StatePlace) -> tuple[dict[Any, Any], tuple[str, ...]]:
    """The attributes of the pickled metadata, and what loading it imports; nothing of it is made."""
    imported: set[str] = set()
    found = read_pickle(io.BytesIO(place.text(_METADATA)), _METADATA, imported)
    state = found.state if isinstance(found, Opaque) and found.made_by.endswith(".Metadata") else None
    return (state if isinstance(state, dict) else {}), tuple(sorted(imported))


def _tensors(metadata: dict[Any, Any]) -> tuple[Path, tuple[TensorHeader, ...]]:
    """Where the model's tensors are in the saved dict, and their headers under the keys that they have there."""
    groups: dict[Path, list[TensorHeader]] = {}
    for path, header in _stored(metadata):
        if not _is_of_an_optimizer(path):
            groups.setdefault(path, []).append(header)
    best = max(groups, key=lambda path: len(groups[path]), default=None)
    return ((), ()) if best is None else (best, tuple(groups[best]))


def _has_objects(metadata: dict[Any, Any]) -> bool:
    """Whether objects are stored beside the tensors, as separate pickles: numbers, paths, settings."""
    described = metadata.get("state_dict_metadata")
    items = described.values() if isinstance(described, dict) else ()
    return any(isinstance(item, Opaque) and item.made_by.endswith(".BytesStorageMetadata") for item in items)


def _is_of_an_optimizer(path: Path) -> bool:
    """Whether a place in the saved dict is one that optimizers and schedulers write: `optimizer`, `state`, a number."""
    return any(
        isinstance(part, int) or part == "state" or any(word in part for word in ("optim", "sched")) for part in path
    )


def _stored(metadata: dict[Any, Any]) -> Iterator[tuple[Path, TensorHeader]]:
    described, planned = metadata.get("state_dict_metadata"), metadata.get("planner_data")
    for key, item in described.items() if isinstance(described, dict) else ():
        facts = item.state if isinstance(item, Opaque) else None
        if not isinstance(key, str) or not isinstance(facts, dict) or not _is_shape(shape := facts.get("size")):
            continue
        path = planned.get(key) if isinstance(planned, dict) else None
        path = (
            path if isinstance(path, tuple) and path and all(isinstance(part, str | int) for part in path) else (key,)
        )
        yield path[:-1], TensorHeader(str(path[-1]), _dtype(facts), shape, WRITTEN)


def _is_shape(value: Any) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(type(size) is int and 0 <= size < 2**63 for size in value)


def _dtype(facts: dict[Any, Any]) -> str:
    """The dtype in the properties of a tensor: the first of the values in them, as they are pickled."""
    properties = facts.get("properties")
    values = properties.state if isinstance(properties, Opaque) else None
    first = values[0] if isinstance(values, tuple) and values else None
    return first.name if isinstance(first, Global) and first.module == "torch" else "float32"


def _repair(folder: str, path: Path, *, weights_only: bool) -> Repair:
    code = (
        "import os\n"
        "from torch.distributed.checkpoint.format_utils import dcp_to_torch_save\n"
        f"dcp_to_torch_save({folder!r}, 'merged.pt')\n"
        f"{code_to_save('merged.pt', path, weights_only=weights_only)}\n"
        "os.remove('merged.pt')"
    )
    unpickled = "its .metadata" if weights_only else "its .metadata and the objects beside the weights"
    return Repair(
        f"If you trust the checkpoint (PyTorch unpickles {unpickled}, which can run code), merge the parts into "
        "one file of weights:",
        code,
    )
