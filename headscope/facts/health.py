"""Whether the classifier of a head was ever trained, as far as its own numbers show it."""

from dataclasses import dataclass
from enum import StrEnum


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


@dataclass(frozen=True, slots=True)
class InitialSpread:
    """The root mean squares that a class's own initialization gives its classifier; `bias` is None without a bias."""

    weight: float
    bias: float | None = None


@dataclass(frozen=True, slots=True)
class Spectrum:
    """The singular values of a matrix: the largest ones, and how many of equal size would carry as much.

    `top_z` is how far the largest is above that of random rows, in standard deviations; None for one row.
    """

    largest: tuple[float, ...]
    effective_rank: float
    top_z: float | None


@dataclass(frozen=True, slots=True)
class MatrixStatistics:
    """Statistics of a classifier's weight `[classes, features]`. A `z` counts standard deviations of a fresh draw.

    `mean_row` is the norm of the mean row over the mean norm of the rows; independent rows give `mean_row_expected`.
    `cosine` is the mean cosine between rows; `cosine_least` is the least that it can be, -1/(classes - 1). Both are
    None for one row. `initial_spread` is the standard deviation that the class's own initialization gives, and
    `spread_z` how far `spread` is from it; None where that is not known. `scheme` is the known initialization with the
    nearest spread, and `scheme_z` the distance from it. `rows_z`, `columns_z`: how unequal the norms of rows and
    columns are. `shape_z`: the kurtosis against that of a normal, a uniform and a truncated normal distribution.
    `draw_z`: how strongly the numbers are on the grid of PyTorch's generator, and `draw_share` how many of them about;
    None where it can't be tested.
    `dead_rows` hold one number throughout; `duplicate_rows` equal an earlier row; `zeros` counts the numbers of all
    other rows that are exactly zero. `precision` is the coarsest dtype that holds every number as it is; `distinct` is
    how many different numbers there are, in parts of what a draw has that was rounded to that dtype.
    """

    name: str
    dtype: str
    classes: int
    features: int
    spread: float
    mean: float
    largest: float
    kurtosis: float
    shape_z: float
    initial_spread: float | None
    spread_z: float | None
    scheme: str
    scheme_z: float
    mean_row: float | None
    mean_row_expected: float | None
    mean_row_z: float | None
    cosine: float | None
    cosine_least: float | None
    rows_z: float | None
    columns_z: float
    spectrum: Spectrum
    draw: str
    draw_z: float | None
    draw_share: float
    dead_rows: tuple[int, ...] = ()
    duplicate_rows: tuple[int, ...] = ()
    zeros: int = 0
    precision: str = ""
    distinct: float = 1.0


@dataclass(frozen=True, slots=True)
class BiasStatistics:
    """Statistics of a classifier's bias.

    `is_drawn`: it may be a draw of PyTorch's default for a linear layer; `is_constant`: it has several numbers, all the
    same and not zero, as some code sets them.
    """

    name: str
    zeros: int
    count: int
    largest: float
    spread: float
    is_drawn: bool
    is_constant: bool = False


@dataclass(frozen=True, slots=True)
class HeadHealth:
    """Whether the last classifier of a head was trained: a verdict, how sure it is, and what speaks for it.

    `confidence` is the calibrated probability of the verdict; None for `not_determined`, and where no statistics were
    needed. `reasons` are sentences, the most important first. `fresh`, `briefly_trained` and `trained` are the
    calibrated probabilities; None where no statistics were used. `mean_row_applies` says whether the loss is a softmax
    over the classes, so that training leaves the mean row in place; None where the loss is not known.
    """

    verdict: HealthVerdict
    confidence: float | None
    basis: HealthBasis
    reasons: tuple[str, ...]
    classifier: str = ""
    fresh: float | None = None
    briefly_trained: float | None = None
    trained: float | None = None
    mean_row_applies: bool | None = None
    weight: MatrixStatistics | None = None
    bias: BiasStatistics | None = None
    bytes_read: int = 0
