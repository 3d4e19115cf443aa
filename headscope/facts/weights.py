"""Which parameters the checkpoint gave, and which it did not."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from headscope.facts.adapter import Carried
from headscope.facts.checkpoint import TensorHeader, Unavailable


class ParameterStatus(StrEnum):
    """What loading the checkpoint does to one parameter.

    `ignored`: not in the checkpoint, and Transformers does not count it as missing (it makes it itself);
    `unknown`: the checkpoint could not be read whole, or a model in memory does not show it; `changed`: a model in
    memory holds other numbers than the load gave: trained, replaced or filled by an adapter since.
    """

    LOADED = "loaded"
    NEW = "new"
    MISMATCHED = "mismatched"
    TIED = "tied"
    IGNORED = "ignored"
    UNKNOWN = "unknown"
    CHANGED = "changed"


NEW_AT_LOAD = (ParameterStatus.NEW, ParameterStatus.MISMATCHED)
"""The statuses of a parameter that the load initializes at random."""


@dataclass(frozen=True, slots=True, order=True)
class Mismatch:
    """A parameter whose shape in the checkpoint differs from the model's: it is newly initialized."""

    parameter: str
    checkpoint_shape: tuple[int, ...]
    model_shape: tuple[int, ...]


def modern_name(key: str) -> str:
    """A key with the names that Transformers gives to the LayerNorm weights of old checkpoints."""
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if key.endswith(old):
            return key.removesuffix(old) + new
    return key


def stored_classes(stored: tuple[int, ...], built: tuple[int, ...], num_labels: int) -> int | None:
    """The class count of a stored shape, told by the one axis in which it differs from the model's; None for others."""
    differing = [axis for axis, size in enumerate(built) if size != stored[axis]] if len(stored) == len(built) else []
    if len(differing) != 1 or built[differing[0]] != num_labels:
        return None
    return stored[differing[0]] or None


@dataclass(frozen=True, slots=True, order=True)
class Tie:
    """A parameter that is the same tensor as `source` and takes its values."""

    parameter: str
    source: str


@dataclass(frozen=True, slots=True, order=True)
class Rename:
    """A parameter that was loaded from checkpoint keys of other names (renamed, fused or split)."""

    parameter: str
    checkpoint_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, order=True)
class UnusedGroup:
    """Unused checkpoint keys of one origin: `description` is a word on what they were, or empty.

    `classes` are the classes of the family that would have used them.
    """

    keys: tuple[str, ...]
    description: str
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class ParameterOrigin:
    """One parameter or persistent buffer of the model, with its status and the checkpoint keys that fill it.

    `adapter` says how a PEFT adapter carries it, where there is one and it does; `quantised` the number format
    that it is packed in, where it is.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    count: int
    status: ParameterStatus
    checkpoint_keys: tuple[str, ...]
    in_base: bool
    is_buffer: bool = False
    adapter: Carried | None = None
    quantised: str | None = None


@dataclass(frozen=True, slots=True)
class WeightDiff:
    """What Transformers' own loader does with a checkpoint's keys.

    `new`, `mismatched` and `unused` equal Transformers' missing, mismatched and unexpected keys for the
    same load. `parameters` holds every parameter in the model's order, the loaded ones included;
    `unused_tensors` the headers of the unused keys, where they are known.
    """

    loaded: int
    new: tuple[str, ...]
    mismatched: tuple[Mismatch, ...]
    unused: tuple[str, ...]
    tied: tuple[Tie, ...]
    renamed: tuple[Rename, ...]
    unused_groups: tuple[UnusedGroup, ...] = ()
    parameters: tuple[ParameterOrigin, ...] = field(default=(), metadata={"json": None})
    gaps: tuple[Unavailable, ...] = field(default=(), metadata={"json": None})
    unused_tensors: tuple[TensorHeader, ...] = field(default=(), metadata={"json": None})


_NUMBERED = re.compile(r"(.*?)\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class DroppedLayers:
    """A stack of layers, how many the checkpoint holds and the model has, and the keys that are left out."""

    path: str
    stored: int
    built: int
    keys: tuple[str, ...]


def dropped_layers(diff: WeightDiff) -> tuple[DroppedLayers, ...]:
    """The stacks that are shorter in the model than in the checkpoint, told by unused keys of the next numbers.

    A key counts where the model has the same tensor in its layer 0 and the checkpoint's number is beyond its last.
    """
    built = _stacks(item.name for item in diff.parameters)
    prefixes = {name.partition(".")[0] for name in built}
    unused: dict[str, dict[int, list[str]]] = {}
    for key in diff.unused:
        path, number, tensor = _split(key)
        # A base checkpoint has `encoder.layer.3`, where a classifier has `bert.encoder.layer.3`.
        stack = next((name for name in (path, *(f"{first}.{path}" for first in prefixes)) if name in built), "")
        if stack and tensor in built[stack].get(0, ()) and number > max(built[stack]):
            unused.setdefault(stack, {}).setdefault(number, []).append(key)
    return tuple(
        DroppedLayers(
            stack, max(numbers) + 1, max(built[stack]) + 1, tuple(key for keys in numbers.values() for key in keys)
        )
        for stack, numbers in sorted(unused.items())
    )


def _stacks(names: Iterable[str]) -> dict[str, dict[int, set[str]]]:
    """By the path of a stack: the tensors of each of its layers."""
    found: dict[str, dict[int, set[str]]] = {}
    for name in names:
        path, number, tensor = _split(name)
        if path:
            found.setdefault(path, {}).setdefault(number, set()).add(tensor)
    return found


def _split(name: str) -> tuple[str, int, str]:
    """`bert.encoder.layer.3.output.dense.weight` -> the stack, 3, the tensor; the outermost number counts."""
    match = _NUMBERED.fullmatch(name)
    return (match[1], int(match[2]), match[3]) if match else ("", 0, "")
