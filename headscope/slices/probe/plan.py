"""Options of a request to `probe`: input, problem, how rows are read and scored. Doesn't import torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headscope.core.facts import Task
from headscope.core.facts.heads.tasks import Input
from headscope.errors import UsageError
from headscope.slices.probe.facts.result import Problem

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
    dtype: str
    write_head: Path | None
    """The folder for the fitted classifier."""

    def __post_init__(self) -> None:
        """Raises UsageError for an invalid number."""
        for name, least in _FEWEST.items():
            value = getattr(self, name)
            if not least <= value < _MOST_SEED:
                raise UsageError(
                    f"{name} must be a whole number from {least}, not {value!r}", f"leave {name} out for its default"
                )
        if self.device == "meta":
            raise UsageError("probe runs the real weights, and the device is meta", "give cpu or cuda")


PROBLEM_NAMES = {
    Problem.SINGLE_LABEL: "single-label",
    Problem.MULTI_LABEL: "multi-label",
    Problem.REGRESSION: "regression",
}
"""The values of `problem_type`."""


def input_of(
    text_column: str | Iterable[str], image_column: str | None, audio_column: str | None
) -> tuple[Input, str | Iterable[str]]:
    """Gives the kind of input to classify, and its column. Raises UsageError unless exactly one kind is named."""
    columns = {Input.TEXT: text_column, Input.IMAGE: image_column, Input.AUDIO: audio_column}
    given = {kind: column for kind, column in columns.items() if column}
    if len(given) > 1:
        raise UsageError(f"columns of {' and of '.join(given)} were given", "give one kind of them")
    if not given:
        raise UsageError(
            "data was given without the column of its texts",
            "add --text-column, --image-column or --audio-column COLUMN",
        )
    return next(iter(given.items()))
