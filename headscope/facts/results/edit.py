"""A changed copy of a checkpoint: its classes before and after, what was rewritten, and the proof of the change."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headscope.facts.plain import Derived, to_dict
from headscope.facts.results.report import SCHEMA_VERSION

STABILITY = "experimental"
"""What these classes say in JSON may change in a minor version."""


PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
"""The values of `problem_type` in config.json."""


class LabelOrigin(StrEnum):
    """Where the row of a class comes from.

    `kept`: the class's own row; `copied`: that of another class; `zero`: zeros; `mean`: the mean of all rows;
    `random`: what the class of Transformers puts into a fresh classifier; `merged`: the mean of the rows of several.
    """

    KEPT = "kept"
    COPIED = "copied"
    ZERO = "zero"
    MEAN = "mean"
    RANDOM = "random"
    MERGED = "merged"


class EditVerdict(StrEnum):
    """`proven`: written, and every proof held; `planned`: a dry run; `refused`: not written, a proof failed."""

    PROVEN = "proven"
    PLANNED = "planned"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class EditedLabel:
    """One class after the edit."""

    name: str
    """Its name."""
    origin: LabelOrigin
    """Where its row comes from."""
    source: int | None = field(default=None, metadata={"json": "from"})
    """The index before the edit of the one class that it comes from; null for none and for several."""
    name_before: str = ""
    """The name of that class before the edit; empty where there is none."""
    merged: tuple[int, ...] = ()
    """The indices before the edit of the classes that were merged into it."""
    shift: float = 0.0
    """What is added to its logit, before the temperature."""


@dataclass(frozen=True, slots=True)
class EditedTensor:
    """A stored tensor that was rewritten."""

    name: str
    """Its key in the checkpoint."""
    parameter: str
    """The parameter that it fills."""
    axis: int
    """The axis of the classes."""
    dtype: str
    """Its number format, which stays."""
    shape_before: tuple[int, ...]
    """Its shape before."""
    shape_after: tuple[int, ...]
    """Its shape after."""
    kept_rows_equal: bool | None = None
    """Whether the rows of kept and copied classes are equal byte by byte; null where a factor or a shift changes them,
    and before the proof."""


@dataclass(frozen=True, slots=True)
class EditedField:
    """A field of config.json that was changed, as JSON; empty where it was or is absent."""

    name: str
    """The field."""
    before: str
    """Its value before."""
    after: str
    """Its value after."""


@dataclass(frozen=True, slots=True)
class EditProof:
    """What a separate process found when it read the source and the result from disk; null: not looked at."""

    loads: bool | None = None
    """Whether Transformers' loader finds what it found before: no more missing, mismatched or unused keys."""
    kept_rows_equal: bool | None = None
    """Whether rows that the edit keeps are equal byte by byte."""
    scores_equal: bool | None = None
    """Whether the head gives the scores that the change promises, on random hidden states and the given texts."""
    max_difference: float | None = None
    """The largest difference of a score from the promised one."""
    tolerance: float | None = None
    """The difference that rounding explains."""
    inputs: int = 0
    """Vectors of scores that were compared."""
    texts: int = 0
    """Of these, how many are those of texts that the whole model read."""
    base_unchanged: bool | None = None
    """Whether all other tensors are equal byte by byte."""
    not_proven: tuple[str, ...] = ()
    """Classes whose scores nothing promises: random rows."""
    reason: str = ""
    """What failed; empty if nothing did."""

    @property
    def holds(self) -> bool:
        """Whether every part was looked at and none failed."""
        parts = (self.loads, self.scores_equal, self.base_unchanged)
        return all(parts) and self.kept_rows_equal is not False


@dataclass(frozen=True, slots=True)
class EditReport:
    """What `edit` did to a checkpoint, or would do."""

    tool_version: str
    source: str
    """The checkpoint, as it was named."""
    output: str
    """The folder that was written, as it was named."""
    model_class: str
    """The class of Transformers that the checkpoint was edited as."""
    labels: tuple[EditedLabel, ...]
    """The classes after the edit, in order."""
    labels_before: tuple[str, ...]
    """The classes before the edit, in order."""
    tensors: tuple[EditedTensor, ...]
    """The stored tensors that were rewritten."""
    settings: tuple[EditedField, ...]
    """The fields of config.json that were changed."""
    temperature: float
    """What logits are divided by."""
    exact: tuple[str, ...]
    """What holds exactly, up to rounding, in sentences."""
    approximate: tuple[str, ...]
    """What holds only approximately, in sentences."""
    left_out: tuple[str, ...]
    """Files of the source that were not copied, because they hold the old head in another format."""
    proof: EditProof
    """What was proven."""
    is_dry_run: bool = False
    """Whether nothing was to be written."""
    command: str = "edit"
    schema_version: str = SCHEMA_VERSION

    @Derived
    def verdict(self) -> EditVerdict:
        """Whether the result was written and proven."""
        if self.is_dry_run:
            return EditVerdict.PLANNED
        return EditVerdict.PROVEN if self.proof.holds else EditVerdict.REFUSED

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return to_dict(self)
