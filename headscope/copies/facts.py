"""A changed copy of a checkpoint: its classes before and after, what was rewritten, and the proof of the change."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headscope.core.facts.plain import Derived, to_dict
from headscope.core.facts.report import SCHEMA_VERSION

STABILITY = "experimental"
"""What these classes say in JSON may change in a minor version."""


PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
"""The values of `problem_type` in config.json."""

HEAD_DTYPES = ("float32", "bfloat16", "float16")
"""The number formats that a last layer can get."""


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
    """`proven`: written, and every proof held; `planned`: a dry run; `refused`: not written, since a proof failed or
    the source contradicts itself."""

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
    """Its number format before."""
    dtype_after: str
    """Its number format after."""
    shape_before: tuple[int, ...]
    """Its shape before."""
    shape_after: tuple[int, ...]
    """Its shape after."""
    kept_rows_equal: bool | None = None
    """Whether the rows of kept and copied classes are equal byte by byte, in another number format as PyTorch converts
    them; null where a factor or a shift changes them, and before the proof."""


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
    """Whether all other tensors are equal byte by byte; of an adapter that was merged without another change, whether
    all tensors are those that PEFT merges."""
    not_proven: tuple[str, ...] = ()
    """Classes whose scores nothing promises: random rows."""
    reason: str = ""
    """What failed, or what in the source contradicts itself; empty for nothing."""

    @property
    def holds(self) -> bool:
        """True if every part was looked at and none failed."""
        parts = (self.loads, self.scores_equal, self.base_unchanged)
        return all(parts) and self.kept_rows_equal is not False


class FitKind(StrEnum):
    """What was fitted to labeled texts: one `temperature` for all logits, or `thresholds` of classes."""

    TEMPERATURE = "temperature"
    THRESHOLDS = "thresholds"


class FitMetric(StrEnum):
    """`nll`: the mean negative log likelihood; `ece`: the expected calibration error; `f1` of a class; `macro_f1`: its
    mean over the classes that the held-out texts have."""

    NLL = "nll"
    ECE = "ece"
    F1 = "f1"
    MACRO_F1 = "macro_f1"


class FitGain(StrEnum):
    """`better` or `worse`: the 95% interval of the change is below or above 0; `none`: it contains 0."""

    BETTER = "better"
    WORSE = "worse"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure of the held-out texts, and its 95% interval from resampled texts."""

    value: float
    """The figure."""
    low: float
    """The lower end of its 95% interval (bootstrap, percentiles)."""
    high: float
    """The upper end of its 95% interval."""


@dataclass(frozen=True, slots=True)
class FitFigure:
    """A figure of the held-out texts before and after the fit."""

    metric: FitMetric
    """Which figure."""
    label: str
    """Of which class; empty for all."""
    before: Estimate
    """With the scores of before."""
    after: Estimate
    """With the fitted scores."""
    change: Estimate
    """After minus before, on the same resampled texts."""


@dataclass(frozen=True, slots=True)
class FittedThreshold:
    """The probability from which a class is chosen."""

    label: str
    """The class."""
    probability: float
    """From where on it is chosen."""


@dataclass(frozen=True, slots=True)
class EditFit:
    """A temperature or thresholds that were fitted to one part of labeled texts, and figures of the other part."""

    kind: FitKind
    """What was fitted."""
    temperature: float | None
    """The temperature; null for thresholds."""
    thresholds: tuple[FittedThreshold, ...]
    """The thresholds; empty for a temperature."""
    not_fitted: tuple[str, ...]
    """Classes that keep 0.5, because the fitting part has too few texts with or without them."""
    fitting_texts: int
    """How many texts it was fitted to."""
    held_out_texts: int
    """How many other texts the figures are of."""
    skipped: int
    """How many rows have no label."""
    truncated: int
    """How many texts were longer than the model takes, and cut."""
    seed: int
    """Of the sample, the split and the bootstrap."""
    bins: int
    """Of equal width, for the expected calibration error."""
    resamples: int
    """Of the bootstrap."""
    figures: tuple[FitFigure, ...]
    """The one that was fitted comes first."""

    @Derived
    def gain(self) -> FitGain:
        """Whether the held-out texts show that the fit is better, by the first figure."""
        first = self.figures[0]
        is_loss = first.metric in (FitMetric.NLL, FitMetric.ECE)
        if first.change.low <= 0 <= first.change.high:
            return FitGain.NONE
        return FitGain.BETTER if (first.change.high < 0) == is_loss else FitGain.WORSE


@dataclass(frozen=True, slots=True)
class AdapterMerge:
    """An adapter that was merged into its base model, before all other changes."""

    method: str
    """PEFT's name of its method, such as `LORA`."""
    base: str
    """The folder of the base model."""
    saved: tuple[str, ...]
    """Parameters that the adapter holds whole, such as the head's."""
    max_difference: float
    """The largest difference of a score of the merged checkpoint from that of the base with the adapter beside it."""
    tolerance: float
    """The difference that the rounding of merged weights explains."""
    inputs: int
    """Vectors of scores that were compared."""


class FoldKind(StrEnum):
    """What computed the scores before a fold, and with which library the proof ran it: `chain`: modules of
    sentence-transformers; `tokens`: rows of a language model, with Transformers; `value`: a value head of TRL; `class`:
    a class of Transformers; `setfit`: a pickled classifier of scikit-learn on a body of sentence-transformers,
    which ran the body."""

    CHAIN = "chain"
    TOKENS = "tokens"
    VALUE = "value"
    CLASS = "class"
    SETFIT = "setfit"


@dataclass(frozen=True, slots=True)
class FoldedParameter:
    """A parameter of the result that the head before the fold gave."""

    name: str
    """Its name in the result."""
    sources: tuple[str, ...]
    """The parameters that it was made of; empty for ones, zeros or the identity."""
    is_copied: bool
    """Whether it has the values of one of these, and was not computed."""


@dataclass(frozen=True, slots=True)
class HeadFold:
    """A head that was written into the parameters of another class, before all other changes."""

    kind: FoldKind
    """What computed the scores before."""
    class_before: str
    """The class that computed them."""
    formula_before: str
    """Its formula."""
    formula: str
    """The formula of the class that computes them now."""
    parameters: tuple[FoldedParameter, ...]
    """The parameters that the head gave."""
    settings: tuple[EditedField, ...] = ()
    """The fields of the configuration that choose this arithmetic."""
    to_do: tuple[str, ...] = ()
    """What the library did beside the arithmetic, which is now up to the caller, in sentences."""
    proven_with: str = ""
    """The library that scored the texts before the fold, with its version; empty for a dry run."""
    inputs: int = 0
    """Vectors of scores that were compared."""
    max_difference: float | None = None
    """The largest difference of a score; null for a dry run."""
    tolerance: float | None = None
    """The difference that rounding explains."""


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
    labels_before: tuple[str, ...]
    """The classes before the edit, in order."""
    proof: EditProof
    """What was proven."""
    labels: tuple[EditedLabel, ...] = ()
    """The classes after the edit, in order; empty where they stay."""
    tensors: tuple[EditedTensor, ...] = ()
    """The stored tensors that were rewritten."""
    settings: tuple[EditedField, ...] = ()
    """The fields of config.json that were changed."""
    temperature: float = 1.0
    """What logits are divided by."""
    exact: tuple[str, ...] = ()
    """What holds exactly, up to rounding, in sentences."""
    approximate: tuple[str, ...] = ()
    """What holds only approximately, in sentences."""
    left_out: tuple[str, ...] = ()
    """What stays behind in the source: files that may hold the old head, and what isn't part of a model."""
    fit: EditFit | None = None
    """What was fitted to labeled texts; null without `--fit`."""
    merge: AdapterMerge | None = None
    """The adapter that was merged first; null without `--merge-adapter`."""
    fold: HeadFold | None = None
    """The head that was folded first; null without `--as`."""
    head_from: str = ""
    """The checkpoint whose head was written into an adapter; empty without `--adapter-head`."""
    is_dry_run: bool = False
    """Whether nothing was to be written."""
    backup: str = ""
    """The folder with the checkpoint as it was; empty without `--in-place`."""
    command: str = "edit"
    schema_version: str = SCHEMA_VERSION

    @Derived
    def verdict(self) -> EditVerdict:
        """Whether the result was written and proven."""
        if self.proof.reason or not (self.is_dry_run or self.proof.holds):
            return EditVerdict.REFUSED
        return EditVerdict.PLANNED if self.is_dry_run else EditVerdict.PROVEN

    def to_dict(self) -> dict[str, Any]:
        """Gives the report as plain JSON values."""
        return to_dict(self)
