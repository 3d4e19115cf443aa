"""Whether the classifier of a head was ever trained, as far as its own values show it."""

from dataclasses import dataclass
from enum import StrEnum

STABILITY = "experimental"
"""What these classes say in JSON may change in a minor version."""


class HealthVerdict(StrEnum):
    """What the numbers of a classifier show.

    `fresh`: as initialized. `briefly_trained`: trained, but no more than a little shows: few steps, or a small learning
    rate. `trained`: far from its initialization. `collapsed`: its scores can't tell the classes apart.
    """

    FRESH = "fresh"
    BRIEFLY_TRAINED = "briefly_trained"
    TRAINED = "trained"
    COLLAPSED = "collapsed"
    NOT_DETERMINED = "not_determined"


class HealthBasis(StrEnum):
    """What a verdict rests on.

    `status`: the checkpoint doesn't give the classifier. `draw`: the numbers are those that PyTorch's generator draws.
    `statistics`: a calibrated model of the statistics. `values`: the numbers themselves, such as zeros or NaN.
    `unread`: they could not be read, or are not those that the classifier computes with. `none`: no linear classifier.
    """

    STATUS = "status"
    DRAW = "draw"
    STATISTICS = "statistics"
    VALUES = "values"
    UNREAD = "unread"
    NONE = "none"


MOST_INITIALIZED = 16_000_000
"""The spread of a classifier of more numbers isn't measured: they would all be drawn for it."""


@dataclass(frozen=True, slots=True)
class InitialSpread:
    """The root mean squares that a class's own initialization gives its classifier; `bias` is None without a bias."""

    weight: float
    bias: float | None = None


@dataclass(frozen=True, slots=True)
class Spectrum:
    """The singular values of a matrix: the largest ones, and how many of equal size would carry as much."""

    largest: tuple[float, ...]
    """The largest singular values, eight at most."""
    effective_rank: float
    """How many singular values of equal size would carry as much."""
    top_z: float | None
    """How far the largest is above that of random rows; null for one row."""


@dataclass(frozen=True, slots=True)
class MatrixStatistics:
    """Statistics of a classifier's weight `[classes, features]`. A `z` counts standard deviations of a fresh draw."""

    name: str
    """The parameter."""
    dtype: str
    """The dtype of its values."""
    classes: int
    """Number of rows."""
    features: int
    """Number of columns."""
    spread: float
    """Root mean square of the numbers."""
    mean: float
    """Mean of the numbers."""
    largest: float
    """The largest absolute number."""
    kurtosis: float
    """Fourth moment over the square of the second: 3 for normal, 1.8 for uniform draws."""
    shape_z: float
    """Distance of the kurtosis from that of the nearest usual distribution."""
    initial_spread: float | None
    """The spread that the class's own initialization gives; null if not known."""
    spread_z: float | None
    """Distance of the spread from that; null if not known."""
    scheme: str
    """The known initialization with the nearest spread."""
    scheme_z: float
    """Distance of the spread from that."""
    mean_row: float | None
    """Norm of the mean row over the mean norm of the rows; null for one row."""
    mean_row_expected: float | None
    """What independent rows give: one over the root of the classes."""
    mean_row_z: float | None
    """Distance of the mean row from that of independent rows; negative after softmax training."""
    cosine: float | None
    """Mean cosine between rows; null for one row."""
    cosine_least: float | None
    """The least that it can be, -1/(classes - 1)."""
    rows_z: float | None
    """How unequal the norms of the rows are; null for one row."""
    columns_z: float
    """How unequal the norms of the columns are."""
    spectrum: Spectrum
    """The singular values."""
    draw: str
    """The kind of draw that the numbers were compared with."""
    draw_z: float | None
    """How strongly the numbers are on the grid of PyTorch's generator; null where that can't be tested."""
    draw_share: float
    """About which part of the numbers is on it."""
    dead_rows: tuple[int, ...] = ()
    """Rows that hold one number throughout, from 0."""
    duplicate_rows: tuple[int, ...] = ()
    """Rows that equal an earlier one, from 0."""
    zeros: int = 0
    """How many numbers of the rows that are not dead are exactly zero."""
    precision: str = ""
    """The coarsest dtype that holds every value as it is; `dtype`, unless the numbers were rounded."""
    distinct: float = 1.0
    """How many different values there are, in parts of what a random draw of this precision has."""


@dataclass(frozen=True, slots=True)
class BiasStatistics:
    """Statistics of a classifier's bias."""

    name: str
    """The parameter."""
    zeros: int
    """How many of its values are zero."""
    count: int
    """How many numbers it has."""
    largest: float
    """The largest absolute number."""
    spread: float
    """Root mean square of the numbers."""
    is_drawn: bool
    """Whether it may be a draw of PyTorch's default for a linear layer."""
    is_constant: bool = False
    """Whether it holds one number, not zero, several times."""


@dataclass(frozen=True, slots=True)
class HeadHealth:
    """Whether the last classifier of a head was trained: a verdict, how sure it is, and what speaks for it."""

    verdict: HealthVerdict
    """What its values show; `briefly_trained`: trained, but no more than a little shows."""
    confidence: float | None
    """The calibrated probability of the verdict; null for `not_determined`."""
    basis: HealthBasis
    """What the verdict rests on; verdicts from `status` and `values` are facts, and their confidence is 1."""
    reasons: tuple[str, ...]
    """What speaks for the verdict, or why there is none, the most important first."""
    classifier: str = ""
    """The weight that was judged; empty if there is none."""
    fresh: float | None = None
    """Calibrated probability that it was never trained; null without statistics."""
    briefly_trained: float | None = None
    """Calibrated probability that it moved by less than a quarter of its initial size."""
    trained: float | None = None
    """Calibrated probability that it moved by more than that."""
    mean_row_applies: bool | None = None
    """Whether the loss is a softmax over the rows, which leaves the mean row in place; null if the loss is not
    known."""
    weight: MatrixStatistics | None = None
    """Statistics of the weight; null if it was not measured."""
    bias: BiasStatistics | None = None
    """Statistics of the bias; null without one, or if it was not measured."""
    bytes_read: int = 0
    """Bytes of numbers that were read for this."""
