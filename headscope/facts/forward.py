"""One forward pass: the tensors that were seen at each stage, and the scores that came out."""

from dataclasses import dataclass, field
from typing import Any

from headscope.facts.checkpoint import CheckpointFacts, Unavailable
from headscope.facts.environment import Environment
from headscope.facts.head import Shape, Stage
from headscope.facts.plain import to_dict
from headscope.facts.report import SCHEMA_VERSION, ModelFacts


@dataclass(frozen=True, slots=True)
class Statistics:
    """The values of one tensor. The numbers are None where no value is finite; `nan` and `inf` count the others."""

    min: float | None
    mean: float | None
    max: float | None
    std: float | None
    nan: int
    inf: int


@dataclass(frozen=True, slots=True)
class SeenStage:
    """A stage as it ran: `shape` is that of its result, in numbers on a real device, by names on meta."""

    stage: Stage
    shape: Shape
    statistics: Statistics | None = None


@dataclass(frozen=True, slots=True)
class LabelScore:
    """The score and the probability of one label; None where it is not a finite number."""

    label: str
    logit: float | None
    probability: float | None


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of one input, highest first."""

    input: str
    scores: tuple[LabelScore, ...]


@dataclass(frozen=True, slots=True)
class ForwardReport:
    """What a forward pass showed. `logits_shape` is the shape of the scores.

    `invented_inputs` says that the inputs were made up: the values then say nothing about the labels, and `scored` is
    empty, as it is on meta.
    """

    tool_version: str
    environment: Environment
    checkpoint: CheckpointFacts
    model: ModelFacts
    device: str
    dtype: str
    inputs: tuple[tuple[str, Shape], ...]
    invented_inputs: bool
    hidden_shape: Shape
    stages: tuple[SeenStage, ...]
    logits_shape: Shape
    logits: tuple[tuple[float | None, ...], ...] = ()
    scored: tuple[Scored, ...] = ()
    notes: tuple[str, ...] = ()
    not_determined: tuple[Unavailable, ...] = ()
    command: str = "forward"
    schema_version: str = field(default=SCHEMA_VERSION)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON values; each stage's fields are beside its shape and statistics."""
        whole = to_dict(self)
        whole["stages"] = [
            entry.pop("stage") | {"shape": entry["shape"], "statistics": entry["statistics"]}
            for entry in whole["stages"]
        ]
        whole["inputs"] = [{"name": name, "shape": shape} for name, shape in whole["inputs"]]
        return whole
