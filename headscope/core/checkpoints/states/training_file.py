"""Weights that from_pretrained doesn't look for: in a file of a training run, under another name, in loose shards."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headscope.core.checkpoints.contents.weights import VARIANT_FILE
from headscope.core.checkpoints.formats.bytes import ByteSource
from headscope.core.checkpoints.formats.pickle.values import PickledTensor
from headscope.core.checkpoints.formats.safetensors_header import read_safetensors_header
from headscope.core.checkpoints.formats.torch_file import headers_of, read_torch_headers, read_torch_value
from headscope.core.checkpoints.states.files import is_weight_file, shard_sets
from headscope.core.checkpoints.states.held_tensors import (
    InDict,
    TensorGroup,
    groups_but,
    is_module,
    place_as_name,
    tensor_groups,
    value_at,
)
from headscope.core.checkpoints.states.place import Found, ReadyAction, StatePlace, found_between, repair_by
from headscope.core.facts import CheckpointState, StateKind, TensorHeader
from headscope.core.facts.counting import counted, few_of
from headscope.errors import HeadscopeError

_NAMES = 6
_LONGEST = 60
_MOST_FILES = 30
_SAFE = ".safetensors"
_CONFIG, _INDEX = "config.json", ".index.json"
WRITTEN = "model.safetensors"
"""The file that the repairs write."""
_READ = (WRITTEN, "pytorch_model.bin")
"""The names that from_pretrained looks for."""


@dataclass(frozen=True, slots=True)
class TrainingFile:
    """A file of a training run or with a pickled model: its value, what loading it imports, and all its tensors.

    `models` are the trained ones by what may be the model: a dict with their names, or a pickled module.
    """

    name: str
    value: Any
    imports: tuple[str, ...]
    groups: dict[InDict, TensorGroup]
    models: dict[InDict, tuple[TensorHeader, ...]]

    def options(self) -> list[tuple[str, Found]]:
        """Describes each of the dicts as the model, by its place."""
        return [
            (place_as_name(path), Found(_state_of(self, path), tensors, left_out=groups_but(self.groups, path)))
            for path, tensors in self.models.items()
        ]

    def record(self) -> tuple[int, str, bool]:
        """Reads from Lightning's ModelCheckpoint the step, the best file, and whether it monitors a number."""
        held = self.value if isinstance(self.value, dict) else {}
        callbacks, step = held.get("callbacks"), held.get("global_step")
        for item in callbacks.values() if isinstance(callbacks, dict) else ():
            path = item.get("best_model_path") if isinstance(item, dict) else None
            if isinstance(step, int) and isinstance(path, str) and path:
                return step, re.split(r"[/\\]", path)[-1], item.get("monitor") is not None
        return -1, "", False


_Options = dict[str, list[tuple[str, Found]]]
"""The models in files, by the name of the file and then by their place in it."""
SEVERAL_SETS = CheckpointState(
    StateKind.LIGHTNING, "", "Several sets of weights are here, and from_pretrained reads none of them.", ()
)


def find_training_file(place: StatePlace) -> Found | None:
    """Finds the state of a place with weights in training files, under other names, or in shards without an index.

    Of several models none is chosen, whatever their names are, unless a record of the training says which one is meant.
    """
    top = place.top()
    shards = {name for names in shard_sets(top) for name in names}
    names = [name for name in top if is_weight_file(name) and name not in shards][:_MOST_FILES]
    files: dict[str, TrainingFile] = {}
    for name in names:
        with suppress(HeadscopeError):
            file = None if name.endswith(_SAFE) else read_training_file(place.open(name))
            if file is not None:
                files[name] = file
    options: _Options = {name: file.options() for name, file in files.items()}
    options |= _under_other_names(place, [name for name in names if name not in files])
    named = [
        (_name_of(name, inside, is_one=len(several) == 1, is_alone=len(options) == 1), found)
        for name, several in options.items()
        for inside, found in several
    ]
    best = _best_of(files) if len(named) == len(files) else ""
    return found_between(named, SEVERAL_SETS, best)


def _name_of(file: str, inside: str, *, is_one: bool, is_alone: bool) -> str:
    """Names a model: by its file if it `is_one` there, by its place in it if no other file has a model."""
    if not inside or (is_one and not is_alone):
        return file
    return inside if is_alone and not is_one else f"{file}:{inside}"


def _best_of(files: Mapping[str, TrainingFile]) -> str:
    """Gives the file that Lightning's latest record names; "" if it names none.

    If no number was monitored, the best one is the one that was saved last, which has to be as late as all others.
    """
    records = [file.record() for file in files.values()]
    # An older file's record can't know of a better one that came later.
    latest = [record for record in records if record[0] == max(records)[0]]
    named = {best for _, best, is_monitored in latest if is_monitored or latest == records} & files.keys()
    return named.pop() if len(named) == 1 else ""


def _under_other_names(place: StatePlace, names: Sequence[str]) -> _Options:
    """Finds models in plain weights under other names (`best_model.pt`), and in shards without index."""
    if any(name.endswith(_INDEX) for name in place.top()):
        return {}  # it names its shards
    plain = {(name,): tensors for name in names if (tensors := plain_weights(place, name))}
    if any(name in _READ or VARIANT_FILE.fullmatch(name) for (name,) in plain):
        return {}  # a variant is there to be asked for
    if _CONFIG not in place.top() and len(plain) == 1:
        plain = {}  # without a configuration that comes first
    sets = [several for several in shard_sets(place.top()) if set(several) <= {*place.top()}]
    joined = {several: tuple(header for name in several for header in plain_weights(place, name)) for several in sets}
    return {files[0]: [("", _found_under(files, tensors))] for files, tensors in (plain | joined).items() if tensors}


def _found_under(files: tuple[str, ...], tensors: tuple[TensorHeader, ...]) -> Found:
    """Describes the state of weights that are whole in files which from_pretrained does not look for."""
    first, is_one = files[0], len(files) == 1
    where = first if is_one else f"{len(files):,} shards without their index, {first} and so on"
    state = CheckpointState(
        StateKind.LIGHTNING,
        tool="",
        sentence=f"The weights are in {where}: from_pretrained looks for {' and '.join(_READ)} only.",
        evidence=(
            f"{first if is_one else few_of(files)} {'holds' if is_one else 'hold'} {counted(len(tensors), 'tensor')}, "
            "and no file has a name that from_pretrained looks for",
        ),
        repair=repair_by(f"Save the weights as {WRITTEN}:", JoinFiles(files)),
    )
    return Found(state, tuple({header.key: header for header in tensors}.values()))


def plain_weights(place: StatePlace, name: str) -> tuple[TensorHeader, ...]:
    """Reads the tensors of a file that holds nothing else; () for another."""
    try:
        source = place.open(name)
        return read_safetensors_header(source) if name.endswith(_SAFE) else read_torch_headers(source)[0]
    except HeadscopeError:
        return ()


def read_training_file(source: ByteSource) -> TrainingFile | None:
    """Reads the models inside a file of a training run; None for another file, or a plain state dict."""
    try:
        value, names = read_torch_value(source)
        groups = tensor_groups(value)
        found = {path: headers_of(group.named, source.name) for path, group in groups.items()}
    except HeadscopeError:
        return None
    models = {
        path: headers
        for path, headers in found.items()
        if any(map(is_trained, headers)) and all(type(part) in {str, int} for part in path)
    }
    is_plain = isinstance(value, dict) and all(
        isinstance(key, str) and isinstance(item, PickledTensor) for key, item in value.items()
    )
    return None if is_plain or not models else TrainingFile(source.name, value, tuple(sorted(names)), groups, models)


def is_trained(header: TensorHeader) -> bool:
    """True if a tensor may hold what was learned: not a single number such as a loss, nor whole numbers."""
    return bool(header.shape) and "float" in header.dtype


def _state_of(file: TrainingFile, path: InDict) -> CheckpointState:
    """Describes the state of a checkpoint whose weights are at a place in a file of a training run.

    The code for a pickle of other packages' objects needs the reader's trust.
    """
    model = value_at(file.value, path)
    if is_module(model):
        return _state_of_pickled(file, path, model)
    held = file.value if isinstance(file.value, dict) else {}
    version, only = held.get("pytorch-lightning_version"), not file.imports
    tool = f"Lightning {version[:_LONGEST]}" if isinstance(version, str) else ""
    whose = f"a checkpoint of {tool}" if tool else "a checkpoint of a training loop"
    names = [str(key)[:_LONGEST] for key in held if isinstance(key, str | int) and key not in path[:1]]
    beside = f", beside {', '.join(names[:_NAMES])}{', ...' if len(names) > _NAMES else ''}" if names else ""
    step, best, _ = file.record()
    count, where = counted(len(file.models[path]), "tensor"), f"under {place_in_dict(path)}" if path else "at its top"
    record = [f"Lightning's record at step {step:,} names {best}"] if best == file.name else []
    sentence = "Save the weights alone:" if only else f"{_IF_TRUSTED}, save the weights alone:"
    return CheckpointState(
        StateKind.LIGHTNING,
        tool=tool,
        sentence=f"{file.name} is {whose}, not a plain state dict: from_pretrained cannot load it.",
        evidence=(f"the weights, {count}, are {where}{beside}", *on_imports(file.imports), *record),
        repair=repair_by(sentence, SaveInside(file.name, path, weights_only=only)),
    )


def _state_of_pickled(file: TrainingFile, path: InDict, model: Any) -> CheckpointState:
    made = model.made_by.rpartition(".")[2][:_LONGEST]
    where = f" under {place_in_dict(path)}" if path else ""
    return CheckpointState(
        StateKind.LIGHTNING,
        tool="torch.save of a whole model",
        sentence=f"{file.name} holds a pickled {made}{where}, not a state dict: from_pretrained cannot load it.",
        evidence=(f"the pickle makes a {model.made_by}", *on_imports(file.imports)),
        repair=repair_by(
            f"{_IF_TRUSTED}, load the model and save it:",
            SavePickledModel(file.name, is_of_transformers=model.made_by.startswith("transformers."), path=path),
        ),
    )


_IF_TRUSTED = "If you trust the file (loading it runs code of the packages it names)"
_READABLE = 6


def place_in_dict(path: Iterable[str | int]) -> str:
    """Writes the place of a value in nested dicts as code: `['state']['model']`."""
    return "".join(f"[{part!r}]" for part in path)


@dataclass(frozen=True, slots=True)
class SaveInside(ReadyAction):
    """Saves the state dict at a place in a pickled file; `weights_only` is PyTorch's option."""

    file: str
    path: tuple[str | int, ...] = ()
    weights_only: bool = True

    def code(self) -> str:
        """See `RepairAction`."""
        return (
            "import torch\n"
            "from safetensors.torch import save_file\n"
            f"state = torch.load({self.file!r}, map_location='cpu', weights_only={self.weights_only})"
            f"{place_in_dict(self.path)}\n"
            # Two names of one tensor can't be saved as one, and a training loop keeps numbers among the tensors.
            "state = {key: value.clone() for key, value in state.items() if torch.is_tensor(value)}\n"
            f"save_file(state, {WRITTEN!r}, metadata={{'format': 'pt'}})"
        )


@dataclass(frozen=True, slots=True)
class JoinFiles(ReadyAction):
    """Puts the tensors of files into the one that from_pretrained looks for."""

    files: tuple[str, ...]

    def code(self) -> str:
        """See `RepairAction`."""
        is_safe = self.files[0].endswith(_SAFE)
        load = "load_file(file)" if is_safe else "torch.load(file, map_location='cpu', weights_only=True)"
        return (
            f"{'' if is_safe else _IMPORT}from safetensors.torch import {'load_file, ' if is_safe else ''}save_file\n"
            f"state = {{}}\nfor file in {list(self.files)!r}:\n    part = {load}\n"
            "    assert state.keys().isdisjoint(part), f'{file} has a tensor of another file'\n"
            "    state |= {key: value.clone() for key, value in part.items()}\n"
            f"save_file(state, {WRITTEN!r}, metadata={{'format': 'pt'}})"
        )


_IMPORT = "import torch\n"


@dataclass(frozen=True, slots=True)
class SavePickledModel(ReadyAction):
    """Saves the weights of a whole model in a pickle."""

    file: str
    is_of_transformers: bool
    path: tuple[str | int, ...] = ()

    def code(self) -> str:
        """See `RepairAction`."""
        saved = (
            "model.save_pretrained('.')"
            if self.is_of_transformers
            else "from safetensors.torch import save_model\n"
            f"save_model(model, {WRITTEN!r}, metadata={{'format': 'pt'}})"
        )
        where = place_in_dict(self.path)
        return (
            f"import torch\nmodel = torch.load({self.file!r}, map_location='cpu', weights_only=False){where}\n{saved}"
        )


def on_imports(names: Sequence[str]) -> Iterator[str]:
    """Gives what loading a pickle imports, as evidence; nothing for one that PyTorch loads with `weights_only=True`."""
    if names:
        more = ", ..." if len(names) > _READABLE else ""
        yield f"loading it imports {', '.join(names[:_READABLE])}{more}"
