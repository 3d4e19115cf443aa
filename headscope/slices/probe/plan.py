"""Options of a request to `probe`: input, problem, how rows are read and scored. Doesn't import torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from headscope.core.facts import Task
from headscope.core.facts.heads.tasks import Input
from headscope.errors import UsageError
from headscope.slices.probe.facts.result import Problem

DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
"""The dtypes that the model may run in."""

ProblemName = Literal["single-label", "multi-label", "regression"]
"""What the labels of `probe` are."""

TASK_OF = {
    Input.TEXT: Task.SEQUENCE_CLASSIFICATION,
    Input.IMAGE: Task.IMAGE_CLASSIFICATION,
    Input.AUDIO: Task.AUDIO_CLASSIFICATION,
}
"""The task whose classes have a head on vectors of the whole input."""


_FEWEST = {"limit": 10, "folds": 2, "seed": 0, "batch_size": 1}
_MOST_SEED = 2**32


@dataclass(frozen=True, slots=True)
class Plan:
    """Options for reading and scoring the texts."""

    limit: int
    folds: int
    seed: int
    device: str
    batch_size: int
    dtype: str = "auto"
    write_head: Path | None = None
    """The folder for the fitted classifier."""

    def __post_init__(self) -> None:
        """Raises UsageError for an invalid number."""
        for name, least in _FEWEST.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value < _MOST_SEED:
                raise UsageError(
                    f"{name} must be a whole number from {least}, not {value!r}", f"leave {name} out for its default"
                )
        if self.device == "meta":
            raise UsageError("probe runs the real weights, and the device is meta", "give cpu or cuda")
        if self.dtype not in get_args(DtypeName):
            raise UsageError(f"no such dtype: {self.dtype!r}", f"dtypes: {', '.join(get_args(DtypeName))}")


_PROBLEMS = {
    "single-label": Problem.SINGLE_LABEL,
    "multi-label": Problem.MULTI_LABEL,
    "regression": Problem.REGRESSION,
}


def problem_named(name: ProblemName | None) -> Problem | None:
    """Gives the problem with this name. Raises UsageError for an unknown name."""
    if name is not None and name not in _PROBLEMS:
        raise UsageError(f"no such problem type: {name!r}", f"problem types: {', '.join(_PROBLEMS)}")
    return None if name is None else _PROBLEMS[name]


def input_of(
    text_column: str | Iterable[str], image_column: str | None, audio_column: str | None
) -> tuple[Input, str | Iterable[str]]:
    """Gives the kind of input to classify, and its column. Raises UsageError unless exactly one kind is named."""
    columns = {Input.TEXT: text_column, Input.IMAGE: image_column, Input.AUDIO: audio_column}
    given = {kind: column for kind, column in columns.items() if column}
    if len(given) > 1:
        raise UsageError(f"columns of {' and of '.join(given)} were given", "give one kind of them")
    for kind, column in given.items():
        if kind is not Input.TEXT and not isinstance(column, str):
            raise UsageError(f"{kind.value}_column must be a name, not {column!r}", "give one column")
        return kind, column
    raise UsageError(
        "data was given without the column of its texts", "add --text-column, --image-column or --audio-column COLUMN"
    )
