"""Which parameters the checkpoint gave, and which it did not."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from headscope.core.facts.stored.adapter import Carried
from headscope.core.facts.stored.checkpoint import Gap, TensorHeader
from headscope.core.facts.stored.unplaced import Unplaced, UnplacedReason, keys_by_module, look_of, modules_with

_NUMBER = re.compile(r"[0-9]{1,9}")


def layer_numbers(key: str) -> tuple[int, ...]:
    """Reads the numbers in a key, in their order: 3 for `encoder.layer.3.output.dense.bias`."""
    return tuple(int(part) for part in key.split(".") if _NUMBER.fullmatch(part))


def in_layer_order(key: str) -> list[tuple[bool, int, str]]:
    """Gives a sort key that orders keys by the numbers of their layers, so that 2 comes before 10."""
    return [(True, int(part), "") if _NUMBER.fullmatch(part) else (False, 0, part) for part in key.split(".")]


class ParameterStatus(StrEnum):
    """What loading the checkpoint does to one parameter.

    `ignored`: not in the checkpoint, and Transformers does not count it as missing (it makes it itself);
    `unknown`: the checkpoint could not be read whole, or a model in memory does not show it; `changed`: a model in
    memory holds other values than the load gave: trained, replaced or filled by an adapter since.
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

GIVEN_AT_LOAD = (ParameterStatus.LOADED, ParameterStatus.TIED)
"""The statuses of a parameter that the checkpoint gives."""


@dataclass(frozen=True, slots=True, order=True)
class Mismatch:
    """A parameter whose shape in the checkpoint differs from the model's: it is newly initialized."""

    parameter: str
    """The parameter, which is newly initialized."""
    checkpoint_shape: tuple[int, ...]
    """Its shape in the checkpoint."""
    model_shape: tuple[int, ...]
    """Its shape in the model."""


def modern_name(key: str) -> str:
    """A key with the names that Transformers gives to the LayerNorm weights of old checkpoints."""
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if key.endswith(old):
            return key.removesuffix(old) + new
    return key


def names_given_twice(names: Iterable[str]) -> tuple[str, ...]:
    """Finds the names that come more than once, in their order."""
    return tuple(name for name, count in Counter(names).items() if count > 1)


def stored_classes(stored: tuple[int, ...], built: tuple[int, ...], num_labels: int) -> int | None:
    """Reads the class count off a stored shape by the one axis in which it differs from the model's, or None."""
    differing = [axis for axis, size in enumerate(built) if size != stored[axis]] if len(stored) == len(built) else []
    if len(differing) != 1 or built[differing[0]] != num_labels:
        return None
    return stored[differing[0]] or None


@dataclass(frozen=True, slots=True, order=True)
class Tie:
    """A parameter that is the same tensor as `source` and takes its values."""

    parameter: str
    """The parameter."""
    source: str
    """The parameter whose tensor it is."""


@dataclass(frozen=True, slots=True, order=True)
class Rename:
    """A parameter that was loaded from checkpoint keys of other names (renamed, fused or split)."""

    parameter: str
    """The parameter in the model."""
    checkpoint_keys: tuple[str, ...]
    """The tensors of other names that fill it (renamed, fused or split)."""


@dataclass(frozen=True, slots=True, order=True)
class UnusedGroup:
    """Unused checkpoint keys of one origin: `description` is a word on what they were, or empty."""

    keys: tuple[str, ...]
    """Tensors of the checkpoint that nothing takes."""
    description: str
    """What they were, such as `masked-LM head`; empty where that is not known."""
    classes: tuple[str, ...] = ()
    """Classes of the family that would have used them."""
    reason: UnplacedReason = UnplacedReason.UNKNOWN
    """Why nothing takes them; those with a description alone are of another head."""


@dataclass(frozen=True, slots=True, order=True)
class DroppedGroup:
    """Unused checkpoint keys inside the model: this configuration leaves no place for them, and scores differ."""

    keys: tuple[str, ...]
    """Tensors of the checkpoint."""
    setting: str = ""
    """The field of the configuration under whose other value the class takes them, or empty."""


@dataclass(frozen=True, slots=True, order=True)
class ParameterOrigin:
    """One parameter or persistent buffer of the model, with its status and the checkpoint keys that fill it."""

    name: str
    """The name in the model."""
    shape: tuple[int, ...]
    """The sizes of its axes in the model."""
    dtype: str
    """Its number format."""
    count: int
    """How many numbers it holds."""
    status: ParameterStatus
    """What loading the checkpoint does to it."""
    checkpoint_keys: tuple[str, ...]
    """The tensors of the checkpoint that fill it; empty where none does."""
    in_base: bool
    """Whether it belongs to the base model."""
    is_buffer: bool = False
    """Whether it is a persistent buffer and no parameter."""
    adapter: Carried | None = None
    """How a PEFT adapter carries it: whole (`saved`) or as a change (`adapted`); null where it does not."""
    quantized: str | None = None
    """The number format that it is packed in; null where it is not."""


@dataclass(frozen=True, slots=True)
class WeightDiff:
    """What Transformers' own loader does with a checkpoint's keys.

    `new`, `mismatched` and `unused` equal Transformers' missing, mismatched and unexpected keys for the same load.
    """

    loaded: int
    """How many parameters and buffers the checkpoint fills."""
    new: tuple[str, ...]
    """Parameters that the checkpoint does not give: Transformers' missing keys."""
    mismatched: tuple[Mismatch, ...]
    """Parameters whose shape differs in the checkpoint: newly initialized."""
    unused: tuple[str, ...]
    """Tensors of the checkpoint that nothing takes: Transformers' unexpected keys."""
    tied: tuple[Tie, ...]
    """Parameters that are the same tensor as another one."""
    renamed: tuple[Rename, ...]
    """Parameters that were filled from tensors of other names."""
    unused_groups: tuple[UnusedGroup, ...] = ()
    """The unused tensors by what they were."""
    dropped: tuple[DroppedGroup, ...] = ()
    """The unused tensors inside the model: the configuration leaves no place for them."""
    parameters: tuple[ParameterOrigin, ...] = field(default=(), metadata={"json": None})
    gaps: tuple[Gap, ...] = field(default=(), metadata={"json": None})
    unused_tensors: tuple[TensorHeader, ...] = field(default=(), metadata={"json": None})

    def __repr__(self) -> str:
        """Shows how many there are of each: `dataclasses.asdict` shows all names."""
        counts = {name: len(getattr(self, name)) for name in ("new", "mismatched", "unused", "tied", "renamed")}
        shown = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        return f"<weights: {self.loaded:,} loaded{', ' if shown else ''}{shown}>"

    @property
    def lost(self) -> tuple[str, ...]:
        """Unused tensors that find no place: the model may have computed with them, and they are lost."""
        without = {key for item in self.unplaced if item.reason is UnplacedReason.UNKNOWN for key in item.tensors}
        return tuple(key for key in self.unused if key in without)

    @property
    def unplaced(self) -> tuple[Unplaced, ...]:
        """Every unused tensor, by its reason and its module; first what the configuration leaves out of the model."""
        if not self.unused:
            return ()  # asked for by every report, and most leave nothing
        dropped = {key: group.setting for group in self.dropped for key in group.keys}
        by_reason: dict[tuple[UnplacedReason, str], list[str]] = {}
        for key in self.unused:
            if key in dropped:
                what = f"a part of the model that {dropped[key] or 'the configuration'} leaves out"
                by_reason.setdefault((UnplacedReason.UNKNOWN, what), []).append(key)
        grouped = {key for group in self.unused_groups for key in group.keys}
        rest = UnusedGroup(tuple(key for key in self.unused if key not in grouped), "")
        for group in (*self.unused_groups, rest):
            is_of_head = group.reason is UnplacedReason.UNKNOWN and group.description
            reason = UnplacedReason.PRETRAINING_HEAD if is_of_head else group.reason
            keys = [key for key in group.keys if key not in dropped]
            by_reason.setdefault((reason, group.description), []).extend(keys)
        shapes = {item.key: item.shape for item in self.unused_tensors}
        own_modules = modules_with(item.name for item in self.parameters)
        return tuple(
            Unplaced(module, tuple(some), reason, what or (look_of(module, own) if len(own) == len(some) else ""))
            for (reason, what), keys in by_reason.items()
            for module, some in keys_by_module(keys, own_modules).items()
            for own in ({key: shapes[key] for key in some if key in shapes},)
        )

    @property
    def without_place(self) -> tuple[Unplaced, ...]:
        """Unused tensors of unknown reason, by module, less those that the configuration leaves out."""
        dropped = {key for group in self.dropped for key in group.keys}
        found = (item for item in self.unplaced if item.reason is UnplacedReason.UNKNOWN)
        return tuple(item for item in found if dropped.isdisjoint(item.tensors))

    @property
    def total(self) -> int:
        """Number of tensors of the class that a checkpoint has to give."""
        return self.loaded + len({*self.new, *(item.parameter for item in self.mismatched)})
