"""Checkpoints of torch.distributed.checkpoint (DCP), which FSDP writes too: `.metadata` beside `*.distcp`."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

from headscope.core.checkpoints.formats.pickle.interpreter import read_pickle
from headscope.core.checkpoints.formats.pickle.values import Global, Opaque
from headscope.core.checkpoints.states.held_tensors import groups_in_words, place_as_name
from headscope.core.checkpoints.states.place import Found, ReadyAction, StatePlace, found_between, repair_by
from headscope.core.checkpoints.states.training_file import WRITTEN, SaveInside, is_trained, on_imports, place_in_dict
from headscope.core.facts import CheckpointState, Repair, StateKind, TensorHeader
from headscope.core.facts.counting import counted
from headscope.core.facts.stored.location import is_file_name
from headscope.errors import HeadscopeError, Unsupported

_METADATA = ".metadata"
_DATA = ".distcp"

Path = tuple[str | int, ...]


def find_distributed(place: StatePlace) -> Found | None:
    """Finds the state of a place with a distributed checkpoint in it or in a folder of it.

    Checkpoints of optimizers alone don't count if there are others.
    """
    listed = {"": place.top()} | {folder: place.inside(folder) for folder in place.folders()}
    folders = [
        folder for folder, names in listed.items() if _METADATA in names and any(name.endswith(_DATA) for name in names)
    ]
    found = {folder: list(_models_in(place, folder)) for folder in folders}
    models = {folder: held for folder, held in found.items() if any(item.tensors != () for _, item in held)} or found
    options = [
        (":".join(filter(None, (folder if len(models) > 1 else "", inside))) or folder or ".", item)
        for folder, held in models.items()
        for inside, item in held
    ]
    several = CheckpointState(StateKind.DISTRIBUTED, "", "Several models are here as distributed checkpoints.", ())
    return found_between(options, several)


def _models_in(place: StatePlace, folder: str) -> Iterator[tuple[str, Found]]:
    """Finds a distributed checkpoint's models by their places in the saved dict; no tensors if it can't be read."""
    inside = place.within(folder) if folder else place
    files = [name for name in inside.names if name.endswith(_DATA)]
    evidence = [f"{folder or 'the folder'} holds {_METADATA} and {counted(len(files), f'{_DATA} file')}"]
    tool = "FSDP (torch.distributed.checkpoint)" if "fsdp" in folder else "torch.distributed.checkpoint"
    sentence = f"The weights are a distributed checkpoint of {tool}, which from_pretrained does not read."
    try:
        metadata, imported = _read_metadata(inside.text(_METADATA))
        described = metadata.get("state_dict_metadata")
        items = described.values() if isinstance(described, dict) else ()
        groups = _trained_tensors(metadata)
    except HeadscopeError as err:
        evidence.append(f"its metadata cannot be read: {err.message}")
        yield "", Found(CheckpointState(StateKind.DISTRIBUTED, tool, sentence, tuple(evidence)))
        return
    # Numbers, paths and settings are stored beside the tensors as separate pickles.
    has_objects = any(isinstance(item, Opaque) and item.made_by.endswith(".BytesStorageMetadata") for item in items)
    for path, tensors in groups.items():
        under = f" under {place_in_dict(path)}" if path else ""
        said = [*evidence, f"its metadata lists {counted(len(tensors), 'tensor')} of the model{under}"]
        said += on_imports(imported)
        repair = _build_repair(folder or ".", path, weights_only=not has_objects) if tensors else None
        state = CheckpointState(StateKind.DISTRIBUTED, tool, sentence, tuple(said), repair)
        others = {name: [header.shape for header in held] for name, held in groups.items() if held and name != path}
        yield place_as_name(path), Found(state, tensors, WRITTEN, groups_in_words(others))


def _read_metadata(content: bytes) -> tuple[dict[Any, Any], tuple[str, ...]]:
    """Reads the attributes of the pickled metadata, and what loading it imports; none of its objects is made."""
    imported: set[str] = set()
    found = read_pickle(io.BytesIO(content), _METADATA, imported)
    state = found.state if isinstance(found, Opaque) and found.made_by.endswith(".Metadata") else None
    return (state if isinstance(state, dict) else {}), tuple(sorted(imported))


def _trained_tensors(metadata: dict[Any, Any]) -> dict[Path, tuple[TensorHeader, ...]]:
    """Groups the trained tensors by their place in the saved dict, under the keys that they have there."""
    groups: dict[Path, list[TensorHeader]] = {}
    # An optimizer keeps what it has of each weight beside its `param_groups`, whatever both are in.
    planned = metadata.get("planner_data")
    paths = [_path_of(key, planned) for key in planned] if isinstance(planned, dict) else []
    states = {(*path[: path.index("param_groups")], "state") for path in paths if "param_groups" in path}
    for _, path, header in _stored_headers(metadata):
        if states.isdisjoint(path[:length] for length in range(len(path) + 1)):
            groups.setdefault(path, []).append(header)
    found = {path: tuple(headers) for path, headers in groups.items() if any(map(is_trained, headers))}
    return found or {(): ()}


def _stored_headers(metadata: dict[Any, Any]) -> Iterator[tuple[str, Path, TensorHeader]]:
    """Gives the tensors by their keys in the files: the place of each in the saved dict, and its header there."""
    described, planned = metadata.get("state_dict_metadata"), metadata.get("planner_data")
    for key, item in described.items() if isinstance(described, dict) else ():
        facts = _attributes_of(item)
        if isinstance(key, str) and is_shape(shape := facts.get("size")):
            path = _path_of(key, planned)
            yield key, path[:-1], TensorHeader(str(path[-1]), _read_dtype(facts), shape, WRITTEN)


def _path_of(key: str, planned: Any) -> Path:
    """Finds a tensor in the saved dict."""
    path = planned.get(key) if isinstance(planned, dict) else None
    return path if isinstance(path, tuple) and path and all(isinstance(part, str | int) for part in path) else (key,)


def _attributes_of(item: Any) -> dict[Any, Any]:
    return item.state if isinstance(item, Opaque) and isinstance(item.state, dict) else {}


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part of a tensor: its place in the tensor, and in which bytes of which file it was saved."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    at: int
    length: int


def stored_parts(content: bytes, path: Path) -> dict[TensorHeader, list[StoredPart]]:
    """Reads the tensors at a place in the saved dict with their parts, from the content of `.metadata`.

    Raises Malformed if it can't be read, Unsupported for parts that aren't PyTorch files.
    """
    metadata, _ = _read_metadata(content)
    described: Any = metadata.get("state_dict_metadata")
    stored = metadata.get("storage_data")
    headers = {key: header for key, place, header in _stored_headers(metadata) if place == path}
    sizes = {
        (key, facts.get("offsets")): facts.get("sizes")
        for key in headers
        for facts in map(_attributes_of, _attributes_of(described[key]).get("chunks") or ())
    }
    found: dict[TensorHeader, list[StoredPart]] = {header: [] for header in headers.values()}
    for index, info in stored.items() if isinstance(stored, dict) else ():
        place, where = _attributes_of(index), _attributes_of(info)
        key = place.get("fqn")
        if key not in headers:
            continue
        begin = place.get("offset")
        facts: list[Any] = [begin, sizes.get((key, begin)), *map(where.get, ("relative_path", "offset", "length"))]
        part = StoredPart(*facts)
        # Transformed parts, such as compressed ones, don't hold the tensor's own bytes.
        if not _is_plain(part) or where.get("transform_descriptors"):
            raise Unsupported(f"{key} isn't stored as a plain part of a file", "merge the parts with PyTorch")
        found[headers[key]].append(part)
    return found


def _is_plain(part: StoredPart) -> bool:
    numbers = (part.at, part.length)
    return (
        is_shape(part.offsets) and is_shape(part.sizes) and len(part.offsets) == len(part.sizes)
        and is_file_name(part.file) and all(type(number) is int and number >= 0 for number in numbers)
    )  # fmt: skip


def is_shape(value: Any) -> TypeGuard[tuple[int, ...]]:
    """True if a value from a pickle is the shape of a tensor."""
    return isinstance(value, tuple) and all(type(size) is int and 0 <= size < 2**63 for size in value)


def _read_dtype(facts: dict[Any, Any]) -> str:
    """Reads the dtype in the properties of a tensor: the first of the values in them, as they are pickled."""
    properties = facts.get("properties")
    values = properties.state if isinstance(properties, Opaque) else None
    first = values[0] if isinstance(values, tuple) and values else None
    # PyTorch's default, for a dtype that can't be read.
    return first.name if isinstance(first, Global) and first.module == "torch" else "float32"


@dataclass(frozen=True, slots=True)
class MergeDistributed(ReadyAction):
    """Merges the parts of a distributed checkpoint; the weights are at `path` in the saved dict."""

    folder: str
    path: tuple[str | int, ...]
    weights_only: bool

    def code(self) -> str:
        """See `RepairAction`."""
        return (
            "import os\n"
            "from torch.distributed.checkpoint.format_utils import dcp_to_torch_save\n"
            f"dcp_to_torch_save({self.folder!r}, 'merged.pt')\n"
            f"{SaveInside('merged.pt', self.path, self.weights_only).code()}\n"
            "os.remove('merged.pt')"
        )


def _build_repair(folder: str, path: Path, *, weights_only: bool) -> Repair:
    unpickled = "its .metadata" if weights_only else "its .metadata and the objects beside the weights"
    return repair_by(
        f"If you trust the checkpoint (PyTorch unpickles {unpickled}, which can run code), merge the parts into "
        "one file of weights:",
        MergeDistributed(folder, path, weights_only),
    )
