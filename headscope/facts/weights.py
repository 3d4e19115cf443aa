"""Which parameters the checkpoint gave, and which it did not."""

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
class DroppedGroup:
    """Unused checkpoint keys inside the model: this configuration leaves no place for them, and scores differ.

    `setting` is the field of the configuration under whose other value the class takes them, "" where none was found.
    """

    keys: tuple[str, ...]
    setting: str = ""


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
    dropped: tuple[DroppedGroup, ...] = ()
    parameters: tuple[ParameterOrigin, ...] = field(default=(), metadata={"json": None})
    gaps: tuple[Unavailable, ...] = field(default=(), metadata={"json": None})
    unused_tensors: tuple[TensorHeader, ...] = field(default=(), metadata={"json": None})
