"""Heads side by side."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headscope.core.facts.export import ExportComparison
from headscope.core.facts.heads.head import Stage
from headscope.core.facts.plain import to_dict
from headscope.core.facts.report import SCHEMA_VERSION, Report


class Aspect(StrEnum):
    """In what heads are compared as a whole."""

    CLASS = "class"
    TASK = "task"
    POOLING = "pooling"
    OPERATIONS = "operations"
    FORMULA = "formula"
    CLASSES = "classes"
    LABELS = "labels"
    PROBLEM_TYPE = "problem type"
    LOSS = "loss"
    ACTIVATION = "activation"
    DTYPE = "dtype"
    MODEL_SIZE = "model size"
    HEAD_SIZE = "head size"


_ROLES = {
    "activation": (
        "tanh", "relu", "gelu", "silu", "sigmoid", "elu", "selu", "leaky_relu", "hardtanh", "hardswish",
        "mish", "softplus",
    ),
    "normalization": ("layer_norm", "batch_norm", "group_norm", "rms_norm", "instance_norm", "normalize"),
    "positions": ("select", "index", "gather", "slice", "mean", "max", "amax"),
}  # fmt: skip
_ROLE = {operation: role for role, operations in _ROLES.items() for operation in operations}


def role_of(operation: str) -> str:
    """Gives the role of an operation, which puts stages of different heads side by side: `tanh` and `relu` activate."""
    return _ROLE.get(operation, operation)


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which heads differ: what it is, and its value for each of them as text."""

    what: str
    """In what the heads differ."""
    values: tuple[str, ...]
    """Its value for each model, as text."""
    aspect: Aspect | None = field(default=None, metadata={"json": None})
    """What they differ in as a whole; None for a difference in one parameter."""


@dataclass(frozen=True, slots=True)
class SameValues:
    """Whether the stored values of a parameter are the same, bit by bit; None where they were not read, and why."""

    parameter: str
    """The parameter of the heads."""
    identical: bool | None
    """Whether its stored values are the same, bit by bit; null where they were not read."""
    reason: str = ""
    """Why they were not read; otherwise empty."""
    largest_difference: float | None = None
    """The largest difference between the first model and any other; null if there is none."""
    largest_value: float | None = None
    """The largest absolute number of the first model, to compare the difference with."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several examinations and where they differ."""

    tool_version: str
    command: str
    reports: tuple[Report, ...]
    """The examination of each model, in the order given."""
    differences: tuple[Difference, ...]
    """Everything in which the heads differ; empty where they do not."""
    stages: tuple[tuple[Stage | None, ...], ...] = field(default=(), metadata={"json": None})
    values: tuple[SameValues, ...] = ()
    """Whether the stored values of the heads are the same; empty without `--values`, or where none can be compared."""
    values_reason: str = ""
    """Why no values could be compared although that was requested; otherwise empty."""
    exports: tuple[ExportComparison, ...] = ()
    """GGUF and ONNX files beside the first of the reports; empty where none was given."""
    schema_version: str = SCHEMA_VERSION

    @property
    def is_determined(self) -> bool:
        """True if every checkpoint and every export could be read and compared."""
        reports = not any(report.not_determined for report in self.reports)
        return reports and all(item.is_determined for item in self.exports)

    @property
    def differs(self) -> bool:
        """True if heads differ, their stored values where those were compared, or an export lost something."""
        values = any(item.identical is False for item in self.values)
        return values or bool(self.differences) or any(item.differs for item in self.exports)

    def to_dict(self) -> dict[str, Any]:
        """Gives the comparison as plain JSON values."""
        return to_dict(self)
