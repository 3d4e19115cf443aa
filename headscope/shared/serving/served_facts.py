"""What a running engine gives for texts, compared with what the checkpoint gives."""

from dataclasses import dataclass, field
from typing import Any

from headscope.core.facts.plain import Derived, to_dict
from headscope.core.facts.report import SCHEMA_VERSION
from headscope.core.facts.verdict import Verdict

STABILITY = "experimental"
"""What these classes say in JSON may change in a minor version."""
FROM_FILE = "file"
"""The protocol of scores that were read from a file."""


@dataclass(frozen=True, slots=True)
class ClassChanges:
    """How often the engine predicts another class: the share of the texts, with a 95% interval (Wilson)."""

    share: float
    """The share of these texts."""
    low: float
    """The lower end of the interval for the share of all such texts."""
    high: float
    """Its upper end."""


@dataclass(frozen=True, slots=True)
class ServedExplanation:
    """What the engine computes: `activation(scale * logits + offset)` of a variant of the head.

    It gave all scores, also those of texts that it wasn't chosen by, and no other variant did.
    """

    variant: str
    """The variant of the checkpoint's head, in words; `as it is` for the head itself."""
    formula: str
    """Its expression; empty if the head has no proven one."""
    activation: str
    """What the engine applies to the scores: `softmax`, `sigmoid`, `tanh` or `none`."""
    order: tuple[int, ...]
    """For each score of the engine, the class of the checkpoint."""
    scale: float
    """The factor on the logits; 1 for none."""
    offset: float
    """What is added to them; 0 for nothing."""
    is_sum: bool = field(default=False, metadata={"json": None})
    """Whether the expression is a sum or a difference, so that a factor needs parentheses around it."""
    is_without_segments: bool = field(default=False, metadata={"json": None})
    """Whether the variant reads inputs whose segment IDs are all 0."""


@dataclass(frozen=True, slots=True)
class ServedScores:
    """Scores of an engine, compared with those of the checkpoint for the same texts."""

    same: bool | None
    """Whether they are equal within `tolerance`; null if that could not be determined."""
    explanation: ServedExplanation | None
    """What the engine computes; null if no single variant gives its scores."""
    max_difference: float | None
    """The largest difference of a score."""
    tolerance: float | None
    """The largest difference that counts as equal."""
    precision: str
    """What the tolerance allows for: rounding in `float32`, `float16` or `bfloat16`; empty if nothing was compared."""
    class_changes: ClassChanges | None
    """Null if the scores name no class, as with one score for each text."""
    texts: int
    """How many texts, or pairs of texts, were compared."""
    reason: str
    """Why it could not be determined, or why there is no explanation."""
    notes: tuple[str, ...]
    """What was left out, and what the scores can't tell apart."""
    not_looked_at: tuple[str, ...]
    """What the comparison doesn't cover."""


@dataclass(frozen=True, slots=True)
class ServedReport:
    """What a running engine gives for texts, compared with what a checkpoint gives."""

    tool_version: str
    reference: str
    url: str
    """The address of the server, without its query; empty for an engine that was run."""
    engine: str
    """The engine that was run, or that the server says it is, or its protocol."""
    engine_version: str
    """Its version; empty if it doesn't tell."""
    protocol: str
    """How the scores were requested, as `--protocol` takes it; `process` for an engine that was run, `file` for scores
    in a file."""
    model_class: str
    """The class of Transformers that computed the checkpoint's scores."""
    formula: str
    """What that class computes; empty if it could not be determined."""
    activation: str
    """What belongs on its scores, as in `inspect`."""
    requested: str
    """What was requested: `scores`, as the engine gives them by default, or `logits`."""
    longest: int
    """The tokens of the longest text, as the checkpoint's tokenizer makes them."""
    served: ServedScores
    """The comparison."""
    command: str = "verify-served"
    schema_version: str = SCHEMA_VERSION

    @Derived
    def verdict(self) -> Verdict:
        """`passed` for the same scores, `failed` for others, `not_determined` if they could not be compared."""
        verdicts = {True: Verdict.PASSED, False: Verdict.FAILED, None: Verdict.NOT_DETERMINED}
        return verdicts[self.served.same]

    def to_dict(self) -> dict[str, Any]:
        """Gives the report as plain JSON values."""
        return to_dict(self)
