"""The files of a save: the weight files of a folder, or one file, with the configuration if one is beside them."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscope.core.checkpoints.checkpoint_files import FileReader
from headscope.core.checkpoints.contents.adapter import ADAPTER_CONFIG
from headscope.core.checkpoints.contents.sentence import MODULES
from headscope.core.checkpoints.contents.weights import (
    StoredWeights,
    read_adapter_weights,
    read_weight_file,
    read_weights,
)
from headscope.core.checkpoints.formats.config_file import parse_list, parse_object
from headscope.core.checkpoints.local import Folder
from headscope.core.checkpoints.manifest import manifest_of_weights
from headscope.core.checkpoints.states.place import StatePlace, names_below
from headscope.core.checkpoints.states.recognize import recognize
from headscope.core.checkpoints.states.training_file import read_training_file
from headscope.core.facts import CheckpointKind, CheckpointManifest, WeightFile, WeightsFormat
from headscope.core.facts.stored.checkpoint import CONFIG
from headscope.errors import HeadscopeError, NotFound

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_SETFIT_HEAD = "model_head.pkl"


@dataclass(frozen=True, slots=True)
class SavedPart:
    """Weights of a save.

    `prefix` is before the names of its tensors in the live model; None for the model of Transformers inside.
    """

    files: FileReader
    manifest: CheckpointManifest
    prefix: str | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """A save as its files show it.

    `config` is the saved config.json, None if there is none. `shard_of` gives the shard of each key in an index;
    `missing_shards` are not there. `pickled_head` is the file of a classifier in a pickle, "" for none. `state` says
    what the save is instead, if no weights could be read.
    """

    parts: tuple[SavedPart, ...]
    config: dict[str, Any] | None
    is_adapter: bool = False
    shard_of: tuple[tuple[str, str], ...] = ()
    missing_shards: tuple[str, ...] = ()
    pickled_head: str = ""
    state: str = ""


def read_save(path: Path, adapter: str = "default") -> Saved:
    """Reads the weights of a save, from headers alone; `adapter` picks one of several adapters of PEFT.

    Raises NotFound for a place that is not there, and a HeadscopeError for a file that is not what its name says.
    """
    if path.is_file():
        return _read_saved_file(path)
    if not path.is_dir():
        raise NotFound(f"{path} does not exist", "give the folder or the file that the save wrote")
    folder = Folder(path)
    names = set(folder.names())
    nested = path / adapter
    if ADAPTER_CONFIG not in names and not names.intersection((*_WEIGHTS, *_INDEXES)) and nested.is_dir():
        folder, names = Folder(nested), set(Folder(nested).names())  # PEFT puts every adapter but `default` there
    if ADAPTER_CONFIG in names and not names.intersection((*_WEIGHTS, *_INDEXES)):
        settings = parse_object(folder.read_text(ADAPTER_CONFIG), ADAPTER_CONFIG)
        weights = read_adapter_weights(folder)
        return Saved(
            (_build_part(folder, path, weights, config=settings, kind=CheckpointKind.ADAPTER),), None, is_adapter=True
        )
    config = parse_object(folder.read_text(CONFIG), CONFIG) if CONFIG in names else None
    weights = read_weights(folder, config or {})
    if weights.format is WeightsFormat.NONE and MODULES not in names:
        return _read_other_form(path, folder, names, config)
    return Saved(
        parts=(_build_part(folder, path, weights, config=config), *_read_module_parts(folder, path, names)),
        config=config,
        shard_of=tuple(_read_shard_map(folder, names)),
        missing_shards=tuple(file.name for file in weights.files if file.size is None),
        pickled_head=_SETFIT_HEAD if _SETFIT_HEAD in names else "",
    )


def _build_part(
    folder: Folder,
    path: Path,
    weights: StoredWeights,
    *,
    config: dict[str, Any] | None = None,
    kind: CheckpointKind = CheckpointKind.LOCAL,
    prefix: str | None = None,
) -> SavedPart:
    return SavedPart(FileReader(folder, True), manifest_of_weights(str(path), kind, config or {}, 0, weights), prefix)


def _read_saved_file(path: Path) -> Saved:
    """Reads one weight file, or the file of a training run, whose weights lie deeper."""
    folder = Folder(path.parent)
    if path.suffix != ".safetensors":
        found = read_training_file(folder.open(path.name))
        # Nothing tells which of several models the live one should equal.
        if found is not None and len(found.models) > 1:
            return Saved((), None, state=f"{path.name} holds several sets of weights")
        if found is not None:
            files = (WeightFile(path.name, path.stat().st_size),)
            weights = StoredWeights(WeightsFormat.TORCH, next(iter(found.models.values())), files)
            return Saved((_build_part(folder, path, weights),), None)
    return Saved((_build_part(folder, path, read_weight_file(folder, path.name)),), None)


def _read_other_form(path: Path, folder: Folder, names: Iterable[str], config: dict[str, Any] | None) -> Saved:
    """Reads the file of a training run inside a folder; names the state of anything else."""
    inside = sorted(name for name in names if name.endswith(".ckpt"))
    if len(inside) == 1:
        return _read_saved_file(path / inside[0])
    found = recognize(StatePlace(str(path.resolve()), names_below(path), folder.open))
    state = found.state.sentence if found is not None else "it holds no weight file that headscope reads"
    return Saved((), config, state=state)


def _read_module_parts(folder: Folder, path: Path, names: Iterable[str]) -> Iterable[SavedPart]:
    """Reads the modules of sentence-transformers that have their own folders; prefixes are their names in the chain."""
    entries: list[Any] = []
    # The parts are an addition: an invalid modules.json must not hide the weights of the model.
    with suppress(HeadscopeError):
        entries = parse_list(folder.read_text(MODULES), MODULES) if MODULES in names else []
    for entry in entries:
        name, below = (entry.get("name"), entry.get("path")) if isinstance(entry, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(below, str) or not below or ".." in below.split("/"):
            continue
        inside = path / below
        found = [file for file in _WEIGHTS if (inside / file).is_file()]
        # A link could lead out of the save.
        if found and inside.resolve().is_relative_to(path.resolve()):
            place = Folder(inside)
            is_model = (inside / "config.json").is_file() and "Transformer" in str(entry.get("type"))
            weights = read_weight_file(place, found[0])
            yield _build_part(place, inside, weights, prefix=None if is_model else f"{name}.")


def _read_shard_map(folder: Folder, names: set[str]) -> Iterable[tuple[str, str]]:
    """Reads the shard of each key from an index; an invalid index was refused before."""
    for name in _INDEXES:
        # Transformers prefers the single file, so an index beside it says nothing.
        if name in names and not names.intersection(_WEIGHTS):
            found = parse_object(folder.read_text(name), name).get("weight_map")
            return ((str(key), str(file)) for key, file in found.items()) if isinstance(found, dict) else ()
    return ()
