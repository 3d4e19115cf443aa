"""Which vector of a checkpoint classifies labeled texts best: each candidate's score, and what the scores come to."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headscope.facts.checkpoint import Unavailable
from headscope.facts.plain import to_dict
from headscope.facts.report import SCHEMA_VERSION


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


class Input(StrEnum):
    """What is classified."""

    TEXT = "text"
    IMAGE = "image"
    AUDIO = "audio"

    @property
    def noun(self) -> str:
        """What one of them is called."""
        return "sound" if self is Input.AUDIO else self.value

    @property
    def one(self) -> str:
        """The noun with its article."""
        return f"an {self.noun}" if self is Input.IMAGE else f"a {self.noun}"


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
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """One vector and its score; `low` and `high` are the 95% interval of a bootstrap over the texts.

    `layer` is the index of the hidden states (0: the embeddings); None for vectors of several layers or of none.
    `new` are weights on the way to the vector that the checkpoint doesn't give. `same_as` names an earlier candidate
    with the same numbers. `others` are further scores of the same predictions.

    `logme` and `knn` are second opinions, which choose nothing: the logarithm of the maximum evidence of a Bayesian
    linear model, a text and a label (LogME, higher is better), and the main score of predicting the label of the
    nearest training texts.
    """

    name: str
    layer: int | None
    pooling: Vector
    metric: Metric
    mean: float
    low: float
    high: float
    size: int
    new: tuple[str, ...] = ()
    same_as: str | None = None
    others: tuple[Score, ...] = ()
    logme: float | None = None
    knn: float | None = None


class OpinionKind(StrEnum):
    """A second opinion on the candidates."""

    LOGME = "logme"
    KNN = "knn"


@dataclass(frozen=True, slots=True)
class Opinion:
    """How a second opinion ranks the candidates: the one that it likes best, and Spearman's correlation of the ranks.

    `rank_correlation` is with the main score; None where there are fewer than three candidates, or all are alike.
    """

    name: OpinionKind
    best: str
    rank_correlation: float | None


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
    metric: Metric
    mean: float
    low: float
    high: float
    others: tuple[Score, ...] = ()


@dataclass(frozen=True, slots=True)
class Selected:
    """The score of the choice itself: each fold is predicted with the vector that was best on the other folds.

    `best` of the candidates was chosen by the scores that are shown for it, so its own score is a little too good. This
    one is not. `names` are the vectors that were chosen, fold by fold.
    """

    mean: float
    low: float
    high: float
    names: tuple[str, ...]


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

    `difference` is how much better it is, with a 95% interval (bootstrap over pairs). `p_value` is the probability that
    the best of as many candidates is so much better if none differs from `against`: a sign-flip test of pairs, with
    the largest of all differences as its statistic. So the choice among the candidates is accounted for. The test takes
    the fitted models as they are, so it finds a difference that isn't there more often than its limit of 0.05 says:
    `false_alarms` is the measured rate.
    """

    against: str
    difference: float
    low: float
    high: float
    p_value: float
    verdict: Standing
    false_alarms: float = FALSE_ALARMS


@dataclass(frozen=True, slots=True)
class HeadInput:
    """What the head of the class reads: its pooling, and the module whose input is the candidate `head`."""

    class_name: str
    pooling: str
    classifier: str
    new: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeClass:
    """A class of the data and how many texts of it were used."""

    label: str
    texts: int


@dataclass(frozen=True, slots=True)
class VectorNumbers:
    """What the numbers of one candidate look like over all texts.

    `anisotropy` is the mean cosine between the vectors of two texts, None where a vector is zero. `dead` counts the
    dimensions that have the same value for every text. `padding` is how much padding changes the vectors of the
    shortest and of the longest text, relative to their largest number; None where it was not measured.
    """

    name: str
    anisotropy: float | None
    dead: int
    padding: float | None = None


@dataclass(frozen=True, slots=True)
class LayerNumbers:
    """What the first token of a text is worth in one layer, averaged over the texts of two tokens or more.

    `first_share` is the norm of its hidden state over the sum of the norms of all tokens of the text. `cosine_without`
    is the cosine between the mean over the tokens and the mean without the first.
    """

    layer: int
    first_share: float
    cosine_without: float


@dataclass(frozen=True, slots=True)
class Precision:
    """The dtype that the model ran in.

    `stored` is that of the checkpoint's weights. `change` is the largest change of a vector of `texts` sample texts
    against float32, relative to its largest number, and `tolerance` what is allowed; None where nothing was compared.
    """

    dtype: str
    stored: str
    change: float | None = None
    tolerance: float | None = None
    texts: int = 0


@dataclass(frozen=True, slots=True)
class FeatureNumbers:
    """What the pass over the texts shows, beside the scores.

    `fewest_tokens` and `most_tokens` are those of a text before it is cut; None for images and sounds. `truncated`
    counts the texts with more than `max_tokens`, which is None where neither the tokenizer nor the model names a limit.
    `reused` says that the vectors are those of an earlier run.
    """

    vectors: tuple[VectorNumbers, ...]
    layers: tuple[LayerNumbers, ...]
    precision: Precision
    fewest_tokens: int | None = None
    most_tokens: int | None = None
    max_tokens: int | None = None
    truncated: int = 0
    reused: bool = False


@dataclass(frozen=True, slots=True)
class Loading:
    """How the model was loaded: what `from_pretrained` takes.

    `base` is the module of the class that makes the hidden states; empty where that is the class itself.
    """

    reference: str
    revision: str | None
    subfolder: str | None
    model_class: str
    encoder_decoder: bool = False
    remote_code: bool = False
    input: Input = Input.TEXT
    base: str = ""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of a regression."""

    lowest: float
    highest: float
    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A text that is in the data with different labels. `rows` are row numbers of the file, from 1."""

    text: str
    labels: tuple[str, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Suspect:
    """A row whose label may be wrong: the best vector predicts another with confidence.

    `row` is its number in the file, from 1; `loss` is its cross-entropy or squared error, out of fold.
    """

    row: int
    text: str
    given: str
    predicted: str
    loss: float


@dataclass(frozen=True, slots=True)
class LabelFacts:
    """What the labels of the texts that were used look like.

    `ratio` is the number of texts of the largest class for each text of the smallest; None for numbers. `numbers` are
    those of a regression. `repeated` counts texts that are in the data again; `contradicting` counts texts with
    different labels, and `contradictions` are the first of them. `suspects` are the rows with the largest losses that
    are predicted wrongly (in regression: the largest losses), the largest first.
    """

    ratio: float | None
    numbers: Numbers | None
    repeated: int
    contradicting: int
    contradictions: tuple[Contradiction, ...]
    suspects: tuple[Suspect, ...]


class Start(StrEnum):
    """A loss beside the loss of an untrained head: `fresh` is as large, `below` and `above` clearly differ."""

    FRESH = "fresh"
    BELOW = "below"
    ABOVE = "above"


@dataclass(frozen=True, slots=True)
class StartingLoss:
    """The loss with which training would start, on the texts, with a 95% interval.

    `uninformed` is the loss of an untrained head: the logarithm of the number of classes, of 2 for several
    labels, and the variance of the numbers in regression. `new_head` says that the head was drawn for these classes.
    """

    loss: float
    low: float
    high: float
    uninformed: float
    standing: Start
    new_head: bool


class Advised(StrEnum):
    """Whether something is advised; `open` is "not determined"."""

    YES = "yes"
    NO = "no"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class ProbeFirst:
    """Whether to train the head alone before the whole model (linear probing, then fine-tuning), and why."""

    advised: Advised
    reason: str


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Which vector classifies the texts best: the candidates, the baselines, and what is certain about the best.

    `available` counts the labeled rows of the file, `texts` those that were used. `best` and `head` are names of
    candidates; `head` is None where the input of the head could not be determined. `start` is None where the head's
    outputs don't stand for the labels; `probe_first` says what follows for training. `left_out` says which candidates
    this model or these texts don't have.
    """

    tool_version: str
    reference: str
    data: str
    texts: int
    available: int
    distinct: int
    classes: tuple[ProbeClass, ...]
    folds: int
    seed: int
    device: str
    padded: bool
    layers: int
    candidates: tuple[Candidate, ...]
    baselines: tuple[Baseline, ...]
    best: str
    head: str | None
    selected: Selected
    versus: tuple[Versus, ...]
    problem: Problem = Problem.SINGLE_LABEL
    opinions: tuple[Opinion, ...] = ()
    labels: LabelFacts | None = None
    start: StartingLoss | None = None
    probe_first: ProbeFirst | None = None
    head_input: HeadInput | None = None
    left_out: tuple[Unavailable, ...] = ()
    notes: tuple[str, ...] = ()
    not_determined: tuple[Unavailable, ...] = ()
    numbers: FeatureNumbers | None = None
    loading: Loading | None = None
    schema_version: str = SCHEMA_VERSION
    command: str = "probe"

    def candidate(self, name: str) -> Candidate:
        """The candidate of a name."""
        return next(item for item in self.candidates if item.name == name)

    def against(self, name: str) -> Versus | None:
        """The comparison of the best with a candidate or a baseline; None where there is none."""
        return next((item for item in self.versus if item.against == name), None)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain JSON values."""
        return to_dict(self)
