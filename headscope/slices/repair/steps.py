"""One step of a repair: the states of a folder, and the tensors and files of its repaired copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from headscope.copies.carried import INDEXES
from headscope.copies.writing import NewTensor, size_of_tensor
from headscope.core.checkpoints.states.deepspeed import MergeZero
from headscope.core.checkpoints.states.distributed import MergeDistributed
from headscope.core.checkpoints.states.files import is_weight_file
from headscope.core.checkpoints.states.folders import TakeFolder
from headscope.core.checkpoints.states.peft_keys import MergePeft
from headscope.core.checkpoints.states.training_file import JoinFiles, SaveInside, SavePickledModel
from headscope.core.checkpoints.states.wrapped_keys import RenameKeys
from headscope.core.facts import (
    CheckpointKind,
    CheckpointManifest,
    CheckpointState,
    Report,
    StateKind,
    WeightFile,
    WeightsFormat,
)
from headscope.core.facts.stored.states import RepairAction
from headscope.core.source.checkpoint import examine_weights
from headscope.core.source.reading.reading import read_checkpoint
from headscope.core.source.request import Request
from headscope.core.source.stored_tensors import StoredFiles, open_stored_files
from headscope.errors import HeadscopeError, Unsupported
from headscope.slices.repair.split_weights import split_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHARD = 5_000_000_000
"""The size of a weight file, as in Transformers."""


@dataclass(frozen=True, slots=True)
class RepairWish:
    """Options for what the checkpoint doesn't hold, and for how the result is written."""

    config: str = ""
    """A folder, a file or a Hub ID with config.json, or with PEFT's adapter_config.json."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings by name: of LoraConfig, or of the configuration."""
    labels: tuple[str, ...] = ()
    takes_defaults: bool = False
    """Whether settings that no shape tells are the class's defaults."""
    take: tuple[str, ...] = ()
    """The models that are meant where several may be: prefixes of keys, places in files, files or folders."""
    link: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class RepairStep:
    """A checkpoint in some states: the request, the folder, the states, and the report if it can be examined."""

    request: Request
    folder: Path
    states: tuple[CheckpointState, ...]
    report: Report | None

    @property
    def actions(self) -> list[RepairAction]:
        """Actions of this step: all of them, up to one that needs the result of those before."""
        found = [state.repair.action for state in self.states if state.repair and state.repair.action]
        until = next((at for at, action in enumerate(found) if at and isinstance(action, MergePeft)), len(found))
        return found[:until]

    @property
    def writes_config(self) -> bool:
        """True if this step only adds a configuration."""
        return any(state.kind is StateKind.NO_CONFIG for state in self.states)


def states_in(request: Request, folder: Path) -> RepairStep:
    """Finds the states of the checkpoint in a folder. Raises the examination's error if the checkpoint is in none."""
    wanted = replace(request, location=replace(request.location, reference=str(folder)), cache=False)
    try:
        report = examine_weights(wanted, None)
    except HeadscopeError as err:
        if not isinstance(err.state, CheckpointState):
            raise
        return RepairStep(wanted, folder, (err.state.taking(request.take),), None)
    return RepairStep(wanted, folder, report.checkpoint.states, report)


def repaired_tensors(step: RepairStep) -> tuple[CheckpointManifest, StoredFiles, dict[str, NewTensor]]:
    """Gives the tensors of a step's result by key, and what `write_weights` needs to write them.

    Raises a HeadscopeError where the files can't be read, Unsupported where two tensors would get one name.
    """
    first, *rest = step.actions
    manifest = CheckpointManifest(str(step.folder), CheckpointKind.LOCAL, WeightsFormat.TORCH, {}, (), ())
    tensors = split_tensors(first, step.folder)
    if tensors is None:
        stored = read_checkpoint(step.request, None)
        manifest = replace(stored, format=WeightsFormat.TORCH)  # written again, whatever the format was
        files = open_stored_files(step.request, stored)[0]
        tensors = {
            header.key: NewTensor(header, partial(files.whole, header) if header.data is None else None)
            for header in stored.tensors
        }
        rest = [first, *rest]
    else:
        files = open_stored_files(step.request, manifest)[0]
        tensors = _assign_shards(tensors)
    for action in rest:
        if isinstance(action, RenameKeys):
            tensors = _rename_tensors(tensors, action)
    names = dict.fromkeys(item.header.file for item in tensors.values())
    headers = tuple(item.header for item in tensors.values())
    return replace(manifest, tensors=headers, files=tuple(map(WeightFile, names))), files, tensors


def _rename_tensors(tensors: Mapping[str, NewTensor], action: RenameKeys) -> dict[str, NewTensor]:
    named = [(new, item) for key, item in tensors.items() if (new := action(key)) is not None]
    found = dict(named)
    if len(found) < len(named):  # a dict keeps the last of two
        raise Unsupported("two tensors would get the same name", "rename the keys by hand")
    return {key: replace(item, header=replace(item.header, key=key)) for key, item in found.items()}


def _assign_shards(tensors: Mapping[str, NewTensor]) -> dict[str, NewTensor]:
    """Assigns each tensor to a weight file."""
    found, held, file = {}, 0, 1
    for key, item in tensors.items():
        size = size_of_tensor(item.header)
        if held and held + size > _SHARD:
            held, file = 0, file + 1
        held += size
        found[key] = replace(item, header=replace(item.header, file=str(file)))
    return found


def replaced_files(step: RepairStep, names: Sequence[str]) -> set[str]:
    """Names the files whose weights a step writes in another form, and files that only belong to those."""
    match step.actions[0]:
        case SaveInside(file=file) if "/" in file:  # the step folder of DeepSpeed
            return set(_deepspeed_files(file.rpartition("/")[0], names))
        case SaveInside(file=file) | SavePickledModel(file=file):
            return {file}
        case MergeZero(step=folder):
            return set(_deepspeed_files(folder, names))
        case MergeDistributed(folder=folder):
            inside = (name for name in names if PurePath(name).parent == PurePath(folder))
            return {name for name in inside if PurePath(name).name == ".metadata" or PurePath(name).suffix == ".distcp"}
        case RenameKeys(files=files) | MergePeft(files=files) | JoinFiles(files=files):
            return {*files, INDEXES[not files[0].endswith(".safetensors")]}
    return set()


def kept_files(step: RepairStep, names: Sequence[str]) -> list[str]:
    """Lists the files of a folder that a step copies unchanged, under their names."""
    # PEFT merges in a process that saves the whole model, with these files.
    written = {"config.json", "generation_config.json"} if isinstance(step.actions[0], MergePeft) else set()
    replaced = replaced_files(step, names) | written
    return [name for name in names if name not in replaced]


def kept_weights(step: RepairStep, names: Sequence[str]) -> tuple[str, ...]:
    """Lists the weight files that a step copies: a loader prefers other files, or somebody chose others."""
    if not step.actions or step.writes_config or isinstance(step.actions[0], TakeFolder):
        return ()
    return tuple(name for name in kept_files(step, names) if is_weight_file(PurePath(name).name))


def _deepspeed_files(folder: str, names: Sequence[str]) -> Iterator[str]:
    root = PurePath(folder).parent
    beside = {str(root / "latest"), str(root / "zero_to_fp32.py")} if folder else set()
    for name in names:
        is_part = name.startswith(f"{folder}/") if folder else name.endswith(("_model_states.pt", "_optim_states.pt"))
        if is_part or name in beside:
            yield name


def files_taken(action: TakeFolder, names: Sequence[str]) -> list[str]:
    """Lists the files to take from the chosen folder, by their names there."""
    inside = [name.removeprefix(f"{action.folder}/") for name in names if name.startswith(f"{action.folder}/")]
    return [name for name in inside if not any(fnmatchcase(name, pattern) for pattern in action.without)]
