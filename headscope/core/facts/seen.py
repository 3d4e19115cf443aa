"""The tensors that one forward pass showed."""

from dataclasses import dataclass

from headscope.core.facts.heads.head import Shape, Stage


@dataclass(frozen=True, slots=True)
class Statistics:
    """The values of one tensor. The numbers are None where no value is finite; `nan` and `inf` count the others."""

    min: float | None
    """The smallest finite value; null where none is finite."""
    mean: float | None
    """The mean of the finite values; null where none is."""
    max: float | None
    """The largest finite value; null where none is finite."""
    std: float | None
    """The standard deviation of the finite values; null where none is."""
    nan: int
    """How many values are not numbers."""
    inf: int
    """How many values are infinite."""


@dataclass(frozen=True, slots=True)
class SeenStage:
    """A stage as it ran: `shape` is that of its result, in numbers on a real device, by names on meta."""

    stage: Stage
    """The stage; in JSON its fields are on the same level as the others."""
    shape: Shape
    """The shape of its result: numbers on a real device, names on `meta`."""
    statistics: Statistics | None = None
    """The values of its result; null on `meta`."""
