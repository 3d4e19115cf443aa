"""A PyTorch file that holds a training run: Lightning's `.ckpt`, or a dict of one's own with the weights inside."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headscope.checkpoints.contents.weights import VARIANT_FILE
from headscope.checkpoints.formats.bytes import ByteSource
from headscope.checkpoints.formats.pickle.values import Opaque, PickledTensor
from headscope.checkpoints.formats.safetensors_header import read_safetensors_header
from headscope.checkpoints.formats.torch_file import headers_of, read_torch_headers, read_torch_value
from headscope.checkpoints.states.place import Found, ReadyAction, StatePlace, repair_by
from headscope.errors import HeadscopeError
from headscope.facts import CheckpointState, Repair, StateKind, TensorHeader
from headscope.facts.counting import counted, few_of

_USUAL = ("state_dict", "model_state_dict", "model", "module", "net", "weights")
_NOT_WEIGHTS = re.compile(r"(?:^|[^a-z])(?:opt(?:im)?(?:[^a-z]|$)|optimi[sz]er|sched|scaler)", re.IGNORECASE)
_OF_AN_OPTIMIZER = frozenset({"exp_avg", "exp_avg_sq", "momentum_buffer"})
_NAMES = 6
_LONGEST = 60
_MOST_FILES = 5
_SAFE = ".safetensors"
_CONFIG, _INDEX = "config.json", ".index.json"
WRITTEN = "model.safetensors"
"""The file that the repairs write."""
_READ = (WRITTEN, "pytorch_model.bin")
"""The names that from_pretrained looks for."""


@dataclass(frozen=True, slots=True)
class TrainingFile:
    """A file with the weights of a model under `path`, beside other things of a training run."""

    name: str
    path: tuple[str, ...]
    tensors: tuple[TensorHeader, ...]
    beside: tuple[str, ...]
    lightning: str
    imports: tuple[str, ...]


def find_training_file(place: StatePlace) -> Found | None:
    """The state of a place whose weights are inside a file of a training run: the last of several.

    Where there is none, a file that holds the weights alone, under a name that from_pretrained does not look for.
    """
    names = [name for name in place.top() if name.endswith((".ckpt", ".bin", ".pt", ".pth"))]
    first = sorted(names, key=_order, reverse=True)[:_MOST_FILES]
    return _inside_a_file(place, first, names) or _under_another_name(place, first) or _pickled_whole(place, first)


def _inside_a_file(place: StatePlace, first: Sequence[str], names: Sequence[str]) -> Found | None:
    for name in first:
        try:
            source = place.open(name)
        except HeadscopeError:
            continue
        found = read_training_file(source)
        if found is not None:
            others = [other for other in names if other != name and other.endswith(".ckpt")]
            return Found(state_of_training_file(found, others), found.tensors, WRITTEN)
    return None


def _under_another_name(place: StatePlace, names: Sequence[str]) -> Found | None:
    """The state of a place with one file of plain weights under a name of one's own: `best_model.pt`."""
    if _CONFIG not in place.top() or any(name.endswith(_INDEX) for name in place.top()):
        return None  # without a configuration that comes first, and an index names its shards
    files = [name for name in place.top() if name.endswith(_SAFE)][:_MOST_FILES]
    found = [(name, tensors) for name in (*files, *names) if (tensors := _plain_weights(place, name))]
    if not found or any(name in _READ or VARIANT_FILE.fullmatch(name) for name, _ in found):
        return None  # a variant is there to be asked for
    name, tensors = max(found, key=lambda item: len(item[1]))
    evidence = [
        f"{name} holds {counted(len(tensors), 'tensor')}, and no file has a name that from_pretrained looks for"
    ]
    evidence += [f"{few_of(other for other, _ in found if other != name)} beside it too"] if len(found) > 1 else []
    state = CheckpointState(
        StateKind.LIGHTNING,
        tool="",
        sentence=f"The weights are in {name}: from_pretrained looks for {' and '.join(_READ)} only.",
        evidence=tuple(evidence),
        repair=repair_by(
            f"Save the weights as {WRITTEN}:", CopyWeights(name) if name.endswith(_SAFE) else SaveInside(name)
        ),
    )
    return Found(state, tensors, WRITTEN)


_OF_MODULES = frozenset({"_parameters", "_modules"})
"""What every module of PyTorch pickles; any other call in a pickle is not a model, and headscope never advises loading
it.
"""


def _pickled_whole(place: StatePlace, names: Sequence[str]) -> Found | None:
    """The state of a place with a whole model in a pickle; its weights are in objects, which are not made."""
    for name in names:
        try:
            value, imported = read_torch_value(place.open(name))
        except HeadscopeError:
            continue
        if isinstance(value, Opaque) and isinstance(value.state, dict) and _OF_MODULES.issubset(value.state):
            return Found(_state_of_pickled(name, value, sorted(imported)))
    return None


def _state_of_pickled(name: str, value: Opaque, imported: Sequence[str]) -> CheckpointState:
    made = value.made_by.rpartition(".")[2][:_LONGEST]
    return CheckpointState(
        StateKind.LIGHTNING,
        tool="torch.save of a whole model",
        sentence=f"{name} holds a pickled {made}, not a state dict: from_pretrained cannot load it.",
        evidence=(f"the pickle makes a {value.made_by}", *on_imports(imported)),
        repair=repair_by(
            f"{_IF_TRUSTED}, load the model and save it:",
            SavePickledModel(name, is_of_transformers=value.made_by.startswith("transformers.")),
        ),
    )


def _plain_weights(place: StatePlace, name: str) -> tuple[TensorHeader, ...]:
    """The tensors of a file that holds nothing else; () for another."""
    try:
        source = place.open(name)
        return read_safetensors_header(source) if name.endswith(_SAFE) else read_torch_headers(source)[0]
    except HeadscopeError:
        return ()


def _order(name: str) -> tuple[bool, bool, tuple[int, ...]]:
    """The file that from_pretrained would take first, then the last one, then the one with the highest numbers."""
    numbers = tuple(int(number) for number in re.findall(r"\d{1,12}", name))
    return name == "pytorch_model.bin", name.startswith("last"), numbers


def read_training_file(source: ByteSource) -> TrainingFile | None:
    """The weights inside a file of a training run; None where the file is none, or is a plain dict of tensors."""
    try:
        value, names = read_torch_value(source)
    except HeadscopeError:
        return None
    if not isinstance(value, dict):
        return None
    found = max(_dicts_of_tensors(value), key=_rank, default=None)
    if found is None:
        return None
    path, tensors = found
    version = value.get("pytorch-lightning_version")
    beside = tuple(str(key)[:_LONGEST] for key in value if isinstance(key, str | int) and key != path[0])
    lightning = version[:_LONGEST] if isinstance(version, str) else ""
    return TrainingFile(source.name, path, headers_of(tensors, source.name), beside, lightning, tuple(sorted(names)))


def _dicts_of_tensors(value: Mapping[Any, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The dicts inside that map names to tensors, with the keys that lead to each; none that an optimizer keeps."""
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, dict) or len(path) >= 3:
            continue
        if _NOT_WEIGHTS.search(key) or not _OF_AN_OPTIMIZER.isdisjoint(item):
            continue
        if any(isinstance(name, str) and isinstance(one, PickledTensor) for name, one in item.items()):
            yield (*path, key), item
        else:
            yield from _dicts_of_tensors(item, (*path, key))


def _rank(found: tuple[tuple[str, ...], Any]) -> tuple[bool, int, int]:
    """Weights before averages of them, usual names before others, then the larger dict."""
    path, tensors = found
    usual = _USUAL.index(path[-1]) if path[-1] in _USUAL else len(_USUAL)
    return not any("ema" in part.lower() for part in path), -usual, len(tensors)


def state_of_training_file(found: TrainingFile, others: Sequence[str] = ()) -> CheckpointState:
    """The state of a checkpoint whose weights are inside a file of a training run."""
    place = place_in_dict(found.path)
    tool = f"Lightning {found.lightning}" if found.lightning else ""
    whose = f"a checkpoint of {tool}" if tool else "a checkpoint of a training loop"
    beside = ", ".join(found.beside[:_NAMES]) + (", ..." if len(found.beside) > _NAMES else "")
    return CheckpointState(
        StateKind.LIGHTNING,
        tool=tool,
        sentence=f"{found.name} is {whose}, not a plain state dict: from_pretrained cannot load it.",
        evidence=(
            f"the weights, {counted(len(found.tensors), 'tensor')}, are under {place}"
            + (f", beside {beside}" if beside else ""),
            *on_imports(found.imports),
            *([f"{few_of(others)} {'lies' if len(others) == 1 else 'lie'} beside it"] if others else []),
        ),
        repair=_repair(found),
    )


def _repair(found: TrainingFile) -> Repair:
    """Saves the weights alone; for the code, a pickle of other packages' objects needs the reader's trust."""
    only = not found.imports
    sentence = "Save the weights alone:" if only else f"{_IF_TRUSTED}, save the weights alone:"
    return repair_by(sentence, SaveInside(found.name, found.path, weights_only=only))


_IF_TRUSTED = "If you trust the file (loading it runs code of the packages it names)"
_READABLE = 6


def place_in_dict(path: Iterable[str | int]) -> str:
    """The place of a value in nested dicts, as code: `['state']['model']`."""
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
class CopyWeights(ReadyAction):
    """Gives a safetensors file the name that from_pretrained looks for."""

    file: str

    def code(self) -> str:
        """See `RepairAction`."""
        return f"import shutil\nshutil.copy({self.file!r}, {WRITTEN!r})"


@dataclass(frozen=True, slots=True)
class SavePickledModel(ReadyAction):
    """Saves the weights of a whole model in a pickle."""

    file: str
    is_of_transformers: bool

    def code(self) -> str:
        """See `RepairAction`."""
        saved = (
            "model.save_pretrained('.')"
            if self.is_of_transformers
            else "from safetensors.torch import save_model\n"
            f"save_model(model, {WRITTEN!r}, metadata={{'format': 'pt'}})"
        )
        return f"import torch\nmodel = torch.load({self.file!r}, map_location='cpu', weights_only=False)\n{saved}"


def on_imports(names: Sequence[str]) -> Iterator[str]:
    """What loading a pickle imports, as evidence; nothing for one that PyTorch loads with `weights_only=True`."""
    if names:
        more = ", ..." if len(names) > _READABLE else ""
        yield f"loading it imports {', '.join(names[:_READABLE])}{more}"
