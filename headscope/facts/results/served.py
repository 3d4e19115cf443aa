"""What a running engine gives for texts, compared with what the checkpoint gives."""

from dataclasses import dataclass

AS_IT_IS = "as it is"
"""The name of the checkpoint's own head among the variants of it."""


@dataclass(frozen=True, slots=True)
class ClassChanges:
    """How often the engine predicts another class: the share of the texts, with a 95% interval (Wilson)."""

    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ServedExplanation:
    """What the engine computes: `activation(scale * logits + offset)` of a variant of the head.

    It gave all scores, also those of texts that it wasn't chosen by, and no other variant did.
    """

    variant: str
    """The variant of the checkpoint's head, in words."""
    activation: str
    """What the engine applies to the scores: `softmax`, `sigmoid`, `tanh` or `none`."""
    order: tuple[int, ...]
    """For each score of the engine, the class of the checkpoint."""
    scale: float
    offset: float


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
    """What the tolerance allows for: `float32` or `half`."""
    class_changes: ClassChanges | None
    """Null if the scores name no class, as with one score for each text."""
    texts: int
    reason: str
    """Why it could not be determined, or why there is no explanation."""
    notes: tuple[str, ...]
    not_looked_at: tuple[str, ...]
