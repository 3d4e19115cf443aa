"""Which vector of a checkpoint classifies labeled texts best: each candidate's score, and what the scores come to."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headscope.core.facts.plain import to_dict
from headscope.core.facts.report import SCHEMA_VERSION
from headscope.core.facts.stored.checkpoint import Gap
from headscope.slices.probe.facts.data import FeatureNumbers, HeadInput, LabelFacts, Loading, ProbeClass

STABILITY = "experimental"
"""What these classes say in JSON may change in a minor version."""


class Vector(StrEnum):
    """How one vector is made of a text's hidden states.

    Padding is never read. `first_token`, `last_non_pad_token` and `eos_token` are one position; `masked_mean` and `max`
    are taken over all tokens of the text, special tokens included; `mean_and_max` is both, one behind the other.
    `first_last_mean` averages the means of layer 1 and of the last layer; `last_four_concat` and `last_four_average`
    read the first token of the last four layers. `pooler` is the output of the base model's own pooler, and `head` what
    enters the classifier of the checkpoint's class.
    """

    FIRST_TOKEN = "first_token"
    MASKED_MEAN = "masked_mean"
    LAST_NON_PAD_TOKEN = "last_non_pad_token"
    EOS_TOKEN = "eos_token"
    MAX = "max"
    MEAN_AND_MAX = "mean_and_max"
    FIRST_LAST_MEAN = "first_last_mean"
    LAST_FOUR_CONCAT = "last_four_concat"
    LAST_FOUR_AVERAGE = "last_four_average"
    POOLER = "pooler"
    HEAD = "head"


class Problem(StrEnum):
    """What the labels are, in the words of Transformers' `problem_type`.

    `single_label_classification`: one class for each text; `multi_label_classification`: any number of classes;
    `regression`: a number.
    """

    SINGLE_LABEL = "single_label_classification"
    MULTI_LABEL = "multi_label_classification"
    REGRESSION = "regression"


class Metric(StrEnum):
    """What a score is; each text is predicted by a fold that never saw it.

    `accuracy`: the share of texts whose class is predicted; `macro_f1`: F1 of each class, averaged over the classes;
    `r2`: the share of the variance of the numbers that is predicted, which is below 0 for predictions worse than their
    mean.
    """

    ACCURACY = "accuracy"
    MACRO_F1 = "macro_f1"
    R2 = "r2"


@dataclass(frozen=True, slots=True)
class Score:
    """A score with the 95% interval of a bootstrap over the texts."""

    metric: Metric
    """What the score is."""
    mean: float
    """The score."""
    low: float
    """The lower end of its 95% interval (bootstrap over the texts)."""
    high: float
    """The upper end of its 95% interval."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One vector and its score; `low` and `high` are the 95% interval of a bootstrap over the texts.

    `logme` and `knn` are second opinions, which choose nothing.
    """

    name: str
    """The name, such as `masked_mean-11`."""
    layer: int | None
    """The index of its hidden states; null for vectors of several layers or of none."""
    pooling: Vector
    """How the vector is made of the hidden states."""
    metric: Metric
    """What the score is."""
    mean: float
    """The score: predictions of all folds together."""
    low: float
    """The lower end of its 95% interval (bootstrap over the texts)."""
    high: float
    """The upper end of its 95% interval."""
    size: int
    """Numbers in the vector."""
    new: tuple[str, ...] = ()
    """Weights on the way to the vector that the checkpoint doesn't give."""
    same_as: str | None = None
    """An earlier candidate with the same values; null where there is none."""
    others: tuple[Score, ...] = ()
    """Further scores of the same predictions."""
    logme: float | None = None
    """The LogME score, higher is better; null where it was not computed."""
    knn: float | None = None
    """The main score when the nearest training texts give the label; null where it was not computed."""


class OpinionKind(StrEnum):
    """A second opinion on the candidates."""

    LOGME = "logme"
    KNN = "knn"


@dataclass(frozen=True, slots=True)
class Opinion:
    """How a second opinion ranks the candidates: the one that it likes best, and Spearman's correlation of ranks."""

    name: OpinionKind
    """Which cheaper score."""
    best: str
    """The name of the candidate that it ranks first."""
    rank_correlation: float | None
    """Spearman's correlation with the main score; null for fewer than three candidates."""


class BaselineKind(StrEnum):
    """What a vector has to beat.

    `majority`: the most frequent class; `mean`: the mean of the numbers; `every_label`: all classes for every text;
    `tfidf`: a linear model on the words of the texts; `checkpoint`: the checkpoint's own predictions.
    """

    MAJORITY = "majority"
    MEAN = "mean"
    EVERY_LABEL = "every_label"
    TFIDF = "tfidf"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Baseline:
    """The score of a baseline on the same texts."""

    name: BaselineKind
    """Which baseline."""
    metric: Metric
    """What the score is."""
    mean: float
    """The score."""
    low: float
    """The lower end of its 95% interval (bootstrap over the texts)."""
    high: float
    """The upper end of its 95% interval."""
    others: tuple[Score, ...] = ()
    """Further scores of the same predictions."""


@dataclass(frozen=True, slots=True)
class Selected:
    """The score of the choice itself: each fold is predicted with the vector that was best on the other folds.

    The best of the candidates was chosen by the scores that are shown for it, so its own score is a little too good.
    This one is not.
    """

    mean: float
    """The score when each fold is predicted with the vector that is best on the other folds."""
    low: float
    """The lower end of its 95% interval (bootstrap over the texts)."""
    high: float
    """The upper end of its 95% interval."""
    names: tuple[str, ...]
    """The vector that was chosen for each fold."""


class Standing(StrEnum):
    """How the best vector compares: `better`, `not_better`, or `undecided`, which is "cannot be told apart"."""

    BETTER = "better"
    NOT_BETTER = "not_better"
    UNDECIDED = "undecided"


FALSE_ALARMS = 0.064
"""How often `better` was found in 1,000 simulations without a difference; docs/probe.md describes them."""


@dataclass(frozen=True, slots=True)
class Versus:
    """The best vector against another score, on the same texts.

    The probability is that of a sign-flip test of pairs with the largest of all differences as its statistic, so the
    choice among the candidates is accounted for. The test takes the fitted models as they are, so it finds a difference
    that isn't there more often than its limit of 0.05 says.
    """

    against: str
    """What the best is compared with: a candidate or a baseline."""
    difference: float
    """The score of the best less the other one."""
    low: float
    """The lower end of its 95% interval (bootstrap over the texts), without a correction for the choice."""
    high: float
    """The upper end of its 95% interval."""
    p_value: float
    """The probability of such a difference by chance, corrected for the choice among the candidates."""
    verdict: Standing
    """`better` (p of at most 0.05), `undecided`, or `not_better`."""
    false_alarms: float = FALSE_ALARMS
    """How often `better` was found in simulations without a difference, where 0.05 is due."""


class Start(StrEnum):
    """A loss beside the loss of an untrained head: `fresh` is as large, `below` and `above` clearly differ."""

    FRESH = "fresh"
    BELOW = "below"
    ABOVE = "above"


@dataclass(frozen=True, slots=True)
class StartingLoss:
    """The loss with which training would start, on the texts, with a 95% interval."""

    loss: float
    """The mean loss of the head on the texts."""
    low: float
    """The lower end of its 95% interval (bootstrap over the texts)."""
    high: float
    """The upper end of its 95% interval."""
    uninformed: float
    """The loss of an untrained head."""
    standing: Start
    """`fresh` (as large, within 10%), `below` or `above`."""
    new_head: bool
    """Whether the head is new, drawn with an output for each class."""


class Advised(StrEnum):
    """Whether something is advised; `open` is "not determined"."""

    YES = "yes"
    NO = "no"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class ProbeFirst:
    """Whether to train the head alone before the whole model (linear probing, then fine-tuning), and why."""

    advised: Advised
    """`yes`, `no`, or `open`: not determined."""
    reason: str
    """Why."""


class HeadLayout(StrEnum):
    """Where a fitted classifier was written.

    `own`: into the parameters of the checkpoint's class, in a whole checkpoint; `module`: beside a Python module that
    loads the base model and makes the vector.
    """

    OWN = "own"
    MODULE = "module"


@dataclass(frozen=True, slots=True)
class WrittenHead:
    """The classifier that was fitted on all rows and written, and the proof: a separate process loads and runs it."""

    folder: str
    """Where it was written."""
    layout: HeadLayout
    """`own` or `module`."""
    vector: str
    """The candidate that it classifies."""
    score: Score
    """The score of classifiers fitted alike, each on texts that it wasn't fitted on."""
    parameters: tuple[str, ...]
    """The parameters that hold it."""
    why_module: str = ""
    """Why the parameters of the class can't hold it; empty where they do."""
    inputs: int = 0
    """How many rows the proof ran."""
    max_difference: float | None = None
    """The largest difference between its scores and those of the fitted classifier; null where nothing was compared."""
    tolerance: float | None = None
    """The difference that rounding explains."""
    failure: str = ""
    """Why it isn't proven, and so wasn't written; empty where it is."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Which vector classifies the texts best: the candidates, the baselines, and what is certain about the best."""

    tool_version: str
    reference: str
    data: str
    """The file or folder of the labeled texts, as it was named."""
    texts: int
    """How many texts were used."""
    available: int
    """How many labeled rows the data have."""
    distinct: int
    """How many different texts were used; equal texts stay in one fold."""
    classes: tuple[ProbeClass, ...]
    """The classes of the data, with the number of their texts."""
    folds: int
    """Number of folds of the cross-validation."""
    seed: int
    """The seed of the sample, the folds, the bootstrap, the tests, and weights that the checkpoint lacks."""
    device: str
    """Where the model ran."""
    padded: bool
    """Whether texts of different lengths shared a batch; false where padding would change the vectors."""
    layers: int
    """How many layers the model has; layer 0 is the embeddings."""
    candidates: tuple[Candidate, ...]
    """Every vector that was scored."""
    baselines: tuple[Baseline, ...]
    """What a vector has to beat."""
    best: str
    """The name of the candidate with the highest score, the first of several."""
    head: str | None
    """The name of the candidate that is the input of the head; null where it could not be determined."""
    selected: Selected
    """The score to expect on new texts when the best vector is chosen."""
    versus: tuple[Versus, ...]
    """The best candidate against the head's input and the baselines."""
    problem: Problem = Problem.SINGLE_LABEL
    """What the labels are: one class for each text, several, or a number."""
    opinions: tuple[Opinion, ...] = ()
    """How cheaper scores rank the candidates. They choose nothing."""
    labels: LabelFacts | None = None
    """What the labels look like, and which of them may be wrong."""
    start: StartingLoss | None = None
    """The loss that training starts with; null where the head's outputs don't stand for the labels."""
    probe_first: ProbeFirst | None = None
    """Whether to train the head alone before the whole model."""
    head_input: HeadInput | None = None
    """What the head of the class reads; null where its input could not be determined."""
    left_out: tuple[Gap, ...] = ()
    """Candidates and baselines that this model or these texts don't have."""
    notes: tuple[str, ...] = ()
    not_determined: tuple[Gap, ...] = ()
    numbers: FeatureNumbers | None = None
    """What the pass over the texts shows beside the scores."""
    loading: Loading | None = None
    """How the model was loaded."""
    written: WrittenHead | None = None
    """The classifier that was written; null without `--write-head`."""
    schema_version: str = SCHEMA_VERSION
    command: str = "probe"

    def candidate(self, name: str) -> Candidate:
        """Gives the candidate of a name."""
        return next(item for item in self.candidates if item.name == name)

    def against(self, name: str) -> Versus | None:
        """Gives the comparison of the best with a candidate or a baseline; None if there is none."""
        return next((item for item in self.versus if item.against == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Gives the result as plain JSON values."""
        return to_dict(self)
