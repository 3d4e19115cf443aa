"""One forward pass: the tensors that were seen at each stage, and the scores that came out."""

from dataclasses import dataclass, field
from typing import Any

from headscope.core.facts.environment import Environment
from headscope.core.facts.heads.head import Shape
from headscope.core.facts.plain import to_dict
from headscope.core.facts.report import SCHEMA_VERSION, ModelFacts
from headscope.core.facts.seen import SeenStage
from headscope.core.facts.stored.checkpoint import CheckpointFacts, Gap


@dataclass(frozen=True, slots=True)
class LabelScore:
    """The score and the probability of one label; None where it is not a finite number."""

    label: str
    """The class."""
    logit: float | None
    """Its score; null where it is not a finite number."""
    probability: float | None
    """Its probability, or the score where there is no activation; null where it is not finite."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of one input, highest first."""

    input: str
    """What was scored."""
    scores: tuple[LabelScore, ...]
    """The score of each label, highest first."""


@dataclass(frozen=True, slots=True)
class ForwardReport:
    """What a forward pass showed. `logits_shape` is the shape of the scores."""

    tool_version: str
    environment: Environment
    checkpoint: CheckpointFacts
    model: ModelFacts
    device: str
    """Where the pass ran: `meta` has shapes and no values."""
    dtype: str
    """The number format in which the model ran."""
    inputs: tuple[tuple[str, Shape], ...]
    """The tensors that the model was given."""
    dummy_inputs: bool
    """Whether the inputs were made up: then no value says anything about the labels."""
    hidden_shape: Shape
    """The shape of the hidden states that the head reads."""
    stages: tuple[SeenStage, ...]
    """The stages of the head as they ran, in order."""
    logits_shape: Shape
    """The shape of the scores."""
    logits: tuple[tuple[float | None, ...], ...] = ()
    """The scores, a row for each input; null where one is not a finite number; empty on `meta`."""
    scored: tuple[Scored, ...] = ()
    """The scores of each input by label; empty for dummy inputs and on `meta`."""
    notes: tuple[str, ...] = ()
    not_determined: tuple[Gap, ...] = ()
    command: str = "forward"
    schema_version: str = field(default=SCHEMA_VERSION)

    def to_dict(self) -> dict[str, Any]:
        """Gives the report as plain JSON values; each stage's fields are beside its shape and statistics."""
        whole = to_dict(self)
        whole["stages"] = [
            entry.pop("stage") | {"shape": entry["shape"], "statistics": entry["statistics"]}
            for entry in whole["stages"]
        ]
        whole["inputs"] = [{"name": name, "shape": shape} for name, shape in whole["inputs"]]
        return whole
