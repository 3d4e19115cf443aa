"""From the statistics of a classifier to whether it was trained; docs/health.md says how the numbers were found."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from headscope.core.facts.counting import counted
from headscope.core.facts.health import (
    BiasStatistics,
    HeadHealth,
    HealthBasis,
    HealthVerdict,
    InitialSpread,
    MatrixStatistics,
)

ENOUGH, ENOUGH_FRESH = 0.9, 0.97
"""The calibrated probabilities from which a verdict is given: that it was trained, and that it is fresh."""
FROZEN_BIAS = 0.1
"""How much less often a training leaves the bias at zero than it changes it: bias=False in an optimizer's groups, a
merged adapter. An assumption, and on the safe side: a bias of zeros alone shows nothing."""
LITTLE = 0.25
"""A weight that moved by less than this part of its initial size counts as briefly trained."""
SURE = 0.999
"""The highest confidence that is given: a table of some thousand heads shows no more."""
DECISIVE = 0.99
"""The confidence from which a fresh head is an error: at most one trained head of a thousand in the table has it."""
_ON_GRID, _ON_GRID_EVEN = 4.5, 6.5
"""From here on Rayleigh's test shows a draw: exp(-4.5**2), one in 600 million at random. More for `uniform_`, whose
even grid a step of Adam may keep: it moves all numbers alike, at times by whole steps."""
_TELLING = 640
"""From 640 numbers on, a normal draw is on the grid by more than that: 0.37 * sqrt(numbers / 2) is 6.6 +- 0.7."""
_WHOLE = 0.95
"""The estimated share of numbers on the grid from which the whole weight is taken for a draw. Less would call a head
fresh of which training changed a row in twenty."""
_SAME = 1e-3
"""Rows that differ from their mean by less than this part are one row. A choice: the rows of a short training differ by
more, and what rounding leaves of equal rows is less in float32 and float16."""
_ORTHOGONAL = 1e-5
"""How far from orthonormal the rows of a fresh orthogonal draw in float32 may be: 4e-7 was seen, up to 50 x 4,096."""
_FITS = 4.0
"""Standard deviations up to which a statistic is that of a fresh draw: 6 of 100,000 are beyond. Several statistics are
looked at for each head, so 2 or 3 would be exceeded by chance too often."""
_UNIFORM, _NORMAL = 1.8, 3.0
"""The kurtosis of a uniform and of a normal distribution."""
_OFFSET, _OFFSET_Z = 0.5, 6.0
"""The statistics assume a draw around zero. A mean beyond half the spread shows that it was not one; in a small matrix,
only a mean that chance does not give either, in standard errors."""
_SPARSE = 0.05
"""The share of exact zeros that makes a weight sparse: a dense draw has next to none, so this is on the safe side."""
_FEW_VALUES = 0.5
"""A weight with less than half of the different values that a draw of its precision has was rounded to few steps."""
_BIAS_SHOWS = 0.5
"""How much a bias has to show of training, from 0 to 1, to count as a sign alone: halfway between the two below."""
_BESIDE, _ALONE = 0.1, 3.0
"""Training moves bias and weight alike. A bias up to the first part of the weight's spread may have been trained beside
it; one of the second part would leave signs in the weight, or code has set it."""
_NEAR = 1.3
"""Words only: the factor up to which a spread "fits". In a small matrix, 4 standard deviations may be a larger one."""


class _Measure(StrEnum):
    """Statistics that are compared with those of a fresh draw; none of them depends on the draw's spread."""

    MEAN_ROW = "the mean row"
    ROWS = "the spread of the rows' norms"
    COLUMNS = "the spread of the columns' norms"
    SHAPE = "the distribution of the numbers"
    SPECTRUM = "the largest singular value"


@dataclass(frozen=True, slots=True)
class Signs:
    """Signs of training in a classifier: the terms of the two models that give the probabilities.

    `bias_moved`: a bias is not where it begins: 1 up to a tenth of the weight's values, because training moves both
    alike, and less for a larger one, which code may have set alone. `bias_zero`: it is exactly zero. `outside`: a
    uniform draw with numbers beyond its bounds; `inside`: one without. `off_grid`: numbers in float32, enough to show a
    draw of PyTorch on the CPU, that are none.
    All others are logarithms, log(1 + z). `mean_row` is that of the mean row; `others` that of the
    rows, the columns, the spectrum and the shape of the distribution, the largest and only what exceeds chance;
    `departure` the largest of all five. `has_spread`: the class tells the spread that a fresh weight has, and `spread`
    is the distance from it; `distance` that from the nearest usual initialization. `size` is the logarithm of the part
    by which the weight seems to have changed.
    """

    bias_moved: float
    bias_zero: bool
    outside: bool
    inside: bool
    off_grid: bool
    mean_row: float
    others: float
    departure: float
    has_spread: bool
    spread: float
    distance: float
    size: float

    @property
    def of_change(self) -> tuple[float, ...]:
        """Terms of the first model, which gives the probability that the classifier changed at all."""
        return (
            self.bias_moved,
            self.outside,
            self.inside,
            self.off_grid,
            self.mean_row,
            self.others,
            self.has_spread,
            self.spread,
        )

    @property
    def of_zeros(self) -> float:
        """Summand for a bias of zeros in the score of the first model: training may have left the bias out."""
        return math.log(FROZEN_BIAS) if self.bias_zero else 0.0

    @property
    def of_size(self) -> tuple[float, ...]:
        """Terms of the second model, which gives the probability that it changed by more than a little."""
        return (self.size, self.departure, self.distance)


def signs_of(weight: MatrixStatistics, bias: BiasStatistics | None, initial: InitialSpread | None) -> Signs:
    """Gives the signs of training that the statistics of a classifier show."""
    is_default = _is_default_draw(weight)
    found = departures(weight)
    others = max(z for name, z in found.items() if name is not _Measure.MEAN_ROW)
    spread_z = _usable_spread_z(weight)
    count = weight.classes * weight.features
    moved = 0.0
    if bias is not None and _is_bias_moved(bias, initial, is_default):
        # 1 up to a tenth of the weight's spread, 0 from 3 times it.
        part = bias.largest / weight.spread
        moved = max(0.0, min(1.0, math.log(_ALONE / part) / math.log(_ALONE / _BESIDE)))
    # A number at the bound may be rounded up, and is then beyond it without any training.
    bound = _default_bound(weight) * (1 + {"bfloat16": 2**-8, "float16": 2**-11}.get(weight.precision, 1e-6))
    return Signs(
        bias_moved=moved,
        bias_zero=bias is not None and bias.zeros == bias.count,
        outside=is_default and weight.largest > bound,
        inside=is_default and weight.largest <= bound,
        off_grid=weight.draw_z is not None and not _is_on_grid(weight) and count >= _TELLING,
        mean_row=math.log1p(found.get(_Measure.MEAN_ROW, 0.0)),
        others=math.log1p(max(0.0, others - _FITS)),
        departure=math.log1p(max(found.values())),
        has_spread=spread_z is not None,
        spread=math.log1p(spread_z or 0.0),
        distance=math.log1p(abs(weight.scheme_z)),
        size=math.log(max(_relative_change(weight), 0.01)),
    )


def departures(weight: MatrixStatistics) -> dict[_Measure, float]:
    """Gives each statistic's distance from that of a fresh draw, in standard deviations.

    Only statistics that don't depend on the initial spread: the class may not tell that one.
    """
    between = _UNIFORM <= weight.kurtosis <= _NORMAL  # as a normal draw has it, cut anywhere: up to a uniform one
    found = {
        _Measure.MEAN_ROW: weight.mean_row_z,
        _Measure.ROWS: max(0.0, weight.rows_z or 0.0),  # an orthogonal draw has it below chance
        _Measure.COLUMNS: max(0.0, weight.columns_z),
        _Measure.SHAPE: 0.0 if between else weight.shape_z,
        _Measure.SPECTRUM: max(0.0, weight.spectrum.top_z or 0.0),
    }
    return {name: abs(z) for name, z in found.items() if z is not None}


def _usable_spread_z(weight: MatrixStatistics) -> float | None:
    """Gives the distance of the spread from the class's own initialization, in standard deviations.

    None if the class doesn't tell its initialization. None too if the spread is far from it and fits another usual
    initialization: other code may have drawn the weight, and then the distance says nothing about training.
    """
    if weight.spread_z is None or (abs(weight.spread_z) >= _FITS > abs(weight.scheme_z)):
        return None
    return abs(weight.spread_z)


def _is_default_draw(weight: MatrixStatistics) -> bool:
    """True if a weight looks like the uniform draw of PyTorch's default for a linear layer, or one near it."""
    count = weight.classes * weight.features
    # The logarithm of the spread of n drawn numbers has the variance (kurtosis - 1) / 4n: 1.8 - 1 for a uniform draw.
    spread = math.log(weight.spread / (_default_bound(weight) / math.sqrt(3))) / math.sqrt(0.8 / (4 * count))
    shape = (weight.kurtosis - _UNIFORM) / math.sqrt(1.45 / count)
    return abs(spread) < _FITS and abs(shape) < _FITS


def _default_bound(weight: MatrixStatistics) -> float:
    # nn.Linear draws from kaiming_uniform_(a=sqrt(5)), whose bounds are +-1 / sqrt(in_features).
    return 1 / math.sqrt(weight.features)


def _is_bias_moved(bias: BiasStatistics, initial: InitialSpread | None, is_default: bool) -> bool:
    """True if no usual initialization leaves a bias with these numbers.

    One number throughout may be set by code. A draw may be that of PyTorch's default, unless the class sets its biases
    to zero and the weight isn't such a draw either.
    """
    begins_at_zero = initial is not None and initial.bias == 0
    may_be_drawn = bias.is_constant or (bias.is_drawn and (is_default or not begins_at_zero))
    return bias.zeros < bias.count and not may_be_drawn


def _relative_change(weight: MatrixStatistics) -> float:
    """Estimates how far the weight moved, in parts of its initial size, from its mean row and its spread."""
    classes, features = weight.classes, weight.features
    found = 0.0
    if weight.mean_row_z is not None:
        found = abs(weight.mean_row_z) * math.sqrt(classes / (2 * features * (classes - 1)))
    known = _usable_spread_z(weight)
    spread = known if known is not None else weight.scheme_z
    return max(found, abs(spread) * math.sqrt(max(weight.kurtosis - 1, 0.5) / (4 * classes * features)))


CHANGED = (0.9373, (8.0074, 4.6385, -0.9869, 0.4362, 0.5855, 2.5022, -1.7118, 1.5867))
FAR = (-0.8229, (0.7694, 1.151, 0.602))
"""Constant and factors of two logistic models: scripts/shipped/calibrate_health.py fits them to a table of heads."""


def probability(model: tuple[float, tuple[float, ...]], terms: tuple[float, ...], beside: float = 0.0) -> float:
    """Computes the probability that a logistic model gives; `beside` is added to its score."""
    constant, factors = model
    score = constant + beside + sum(factor * term for factor, term in zip(factors, terms, strict=True))
    # The bounds keep exp from overflowing; beyond them the probability is 0 or 1 anyway.
    return 1 / (1 + math.exp(-max(-50.0, min(50.0, score))))


def judge_numbers(
    weight: MatrixStatistics, bias: BiasStatistics | None, initial: InitialSpread | None, mean_row_applies: bool | None
) -> HeadHealth:
    """Judges a classifier of finite values that are not all zero."""
    blank = HeadHealth(
        HealthVerdict.NOT_DETERMINED,
        None,
        HealthBasis.NONE,
        (),
        weight.name,
        mean_row_applies=mean_row_applies,
        weight=weight,
        bias=bias,
    )
    # The order matters: the statistics assume what the first three rule out.
    found = (
        _judge_by_values(blank, weight)
        or _judge_unusual(blank, weight)
        or _judge_by_draw(blank, weight, initial)
        or _judge_by_statistics(blank, weight, signs_of(weight, bias, initial), initial)
    )
    return replace(found, reasons=(*found.reasons, *_row_remarks(weight)))


def not_determined(classifier: str, reason: str, basis: HealthBasis = HealthBasis.UNREAD) -> HeadHealth:
    """Gives the result for a classifier that can't be judged, with the reason."""
    return HeadHealth(HealthVerdict.NOT_DETERMINED, None, basis, (reason,), classifier)


def _judge_by_values(blank: HeadHealth, weight: MatrixStatistics) -> HeadHealth | None:
    """Judges a classifier whose classes no input can tell apart; None for any other."""
    name, count = weight.name, weight.classes
    if len(weight.dead_rows) == count and weight.features > 1:
        reason = f"every row of {name} holds one number throughout"
    elif count > 1 and (len(weight.duplicate_rows) == count - 1 or _are_rows_equal(weight)):
        reason = f"all {count} rows of {name} are the same, so no input changes the order of the classes"
    else:
        return None
    return replace(blank, verdict=HealthVerdict.COLLAPSED, confidence=1.0, basis=HealthBasis.VALUES, reasons=(reason,))


def _are_rows_equal(weight: MatrixStatistics) -> bool:
    """True if the rows differ from their mean by less than one part in a thousand; parallel rows may differ by more."""
    if weight.mean_row_z is None:
        return False
    # Fisher's z of the variance of the mean row over that around it, solved for their ratio.
    free = weight.features, (weight.classes - 1) * weight.features
    z = weight.mean_row_z * math.sqrt((1 / free[0] + 1 / free[1]) / 2) + (1 / free[1] - 1 / free[0]) / 2
    return weight.classes * math.exp(-2 * z) < _SAME**2


def _judge_by_draw(blank: HeadHealth, weight: MatrixStatistics, initial: InitialSpread | None) -> HeadHealth | None:
    """Judges a weight whose values are those of an untouched draw, whole or in part; None for any other."""
    drawn, bias = _untouched_draw_reason(weight), blank.bias
    if drawn and (bias is None or not _is_bias_moved(bias, initial, is_default=_is_default_draw(weight))):
        return replace(blank, verdict=HealthVerdict.FRESH, confidence=SURE, basis=HealthBasis.DRAW, reasons=(drawn,))
    if drawn:
        reason = f"{drawn}, but its bias is not: only the bias was trained, or code set it"
    elif _is_on_grid(weight):
        reason = (
            f"about {weight.draw_share:.0%} of {weight.name} is as PyTorch's {weight.draw}_ draws it, and the rest has "
            "changed: some rows are new, or the training was too short to change every value"
        )
    else:
        return None
    return replace(blank, basis=HealthBasis.DRAW, reasons=(reason,))


def _untouched_draw_reason(weight: MatrixStatistics) -> str:
    """Gives the reason to take a weight for an untouched draw; "" for none."""
    if _is_on_grid(weight):
        margin = 1 + 1.4 / (weight.draw_z or 1)  # two standard deviations of a test of this strength
        is_whole = weight.draw_share * margin >= _WHOLE
        return f"{weight.name} is as PyTorch's {weight.draw}_ draws it on the CPU, to the last bits" if is_whole else ""
    top = weight.spectrum.largest
    if (
        1 < weight.classes <= weight.features
        and weight.scheme == "orthogonal"
        and top[0] - top[-1] < _ORTHOGONAL * top[0]
        and abs(weight.cosine or 0.0) < _ORTHOGONAL
    ):
        return f"{weight.name} has exactly orthonormal rows, as an orthogonal initialization leaves them"
    return ""


def _is_on_grid(weight: MatrixStatistics) -> bool:
    """True if the numbers are on the grid that a draw of PyTorch on the CPU leaves."""
    # A step of Adam moves all numbers alike, at times by whole steps of the even grid that `uniform_` leaves.
    return weight.draw_z is not None and weight.draw_z >= (_ON_GRID_EVEN if weight.draw == "uniform" else _ON_GRID)


def _judge_unusual(blank: HeadHealth, weight: MatrixStatistics) -> HeadHealth | None:
    """Gives no verdict on a weight that the statistics don't apply to: pruned, rounded or off zero; None for others."""
    count = weight.classes * weight.features
    living = count - len(weight.dead_rows) * weight.features  # `zeros` counts these rows only
    if weight.zeros > _SPARSE * max(living, 1):
        part = weight.zeros / living
        reason = f"{part:.0%} of {weight.name} is exactly zero: pruned, or a sparse initialization"
    elif weight.distinct < _FEW_VALUES:
        reason = f"the numbers of {weight.name} were rounded to few steps, which hides whether they were trained"
    elif abs(weight.mean) > max(_OFFSET, _OFFSET_Z / math.sqrt(count)) * weight.spread:
        reason = f"the numbers of {weight.name} have the mean {weight.mean:.2g}, as no usual initialization leaves them"
    else:
        return None
    return replace(blank, basis=HealthBasis.VALUES, reasons=(reason,))


def _judge_by_statistics(
    blank: HeadHealth, weight: MatrixStatistics, signs: Signs, initial: InitialSpread | None
) -> HeadHealth:
    changed = probability(CHANGED, signs.of_change, signs.of_zeros)
    far = changed * probability(FAR, signs.of_size)
    verdict, confidence = verdict_of(signs, changed, far)
    is_open = verdict is HealthVerdict.NOT_DETERMINED
    reasons = [_why_not_determined(changed)] if is_open else []
    reasons += [_bias_sentence(signs, blank.bias, initial), _spread_sentence(weight), _rows_sentence(weight)]
    if signs.outside:
        reasons.append("its values exceed the bounds of the uniform draw that they otherwise fit")
    return replace(
        blank,
        verdict=verdict,
        confidence=None if is_open else round(min(confidence, SURE), 3),
        basis=HealthBasis.STATISTICS,
        reasons=tuple(reasons),
        fresh=round(1 - changed, 4),
        briefly_trained=round(changed - far, 4),
        trained=round(far, 4),
    )


def verdict_of(signs: Signs, changed: float, far: float) -> tuple[HealthVerdict, float]:
    """Gives the verdict for the probabilities that a classifier changed at all and that it changed far, and its own.

    `briefly_trained` claims no more than that it changed, so what speaks for `trained` speaks for it too. An unknown
    initial spread alone shows no training: any code may draw random values of any size.
    """
    is_shown = signs.bias_moved >= _BIAS_SHOWS or signs.outside or signs.departure >= math.log1p(_FITS)
    if far >= ENOUGH and is_shown:
        return HealthVerdict.TRAINED, far
    if changed >= ENOUGH and is_shown:
        return HealthVerdict.BRIEFLY_TRAINED, changed
    if 1 - changed >= ENOUGH_FRESH:
        return HealthVerdict.FRESH, 1 - changed
    return HealthVerdict.NOT_DETERMINED, 0.0


def _why_not_determined(changed: float) -> str:
    if changed < 0.75:  # up to here a fresh head is as usual as a trained one
        return "can't tell: it could be untrained, or trained with a tiny learning rate or for a few steps"
    if changed >= ENOUGH:  # and yet no verdict: only its spread speaks for it
        return "its spread is unlike the class's own initialization, but another initialization may have left it"
    return f"the probability that it was trained is {changed:.0%}, too low for a verdict"


def _bias_sentence(signs: Signs, bias: BiasStatistics | None, initial: InitialSpread | None) -> str:
    if bias is None:
        return "there is no bias, which would show the first steps"
    if signs.bias_zero:
        return f"{bias.name} is exactly zero: the first step would change it, unless it was left out of the training"
    if signs.bias_moved:
        begins = "where it began at zero" if initial is not None and initial.bias == 0 else "which no usual draw gives"
        return f"{bias.name} is up to {bias.largest:.2g}, {begins}"
    if bias.is_constant:
        return f"{bias.name} holds {bias.largest:.2g} throughout, as code sets it"
    return f"{bias.name} may be a draw of PyTorch's default for a linear layer"


def _spread_sentence(weight: MatrixStatistics) -> str:
    """Compares the spread with that of the class's own initialization, or with the nearest usual one."""
    if weight.spread_z is not None and weight.initial_spread is not None:
        near = 1 / _NEAR < weight.spread / weight.initial_spread < _NEAR
        fits = "fits" if near and abs(weight.spread_z) < _FITS else "is far from"
        text = f"its spread {weight.spread:.4g} {fits} the class's own initialization ({weight.initial_spread:.4g})"
        if abs(weight.spread_z) < _FITS or abs(weight.scheme_z) >= _FITS:
            return text
        return f"{text}, but fits {weight.scheme}"
    if abs(weight.scheme_z) < _FITS:
        return f"the initial spread is not known; its spread {weight.spread:.4g} fits {weight.scheme}"
    return f"the initial spread is not known; its spread {weight.spread:.4g} fits no usual initialization"


def _rows_sentence(weight: MatrixStatistics) -> str:
    """Names the statistic that is farthest from a fresh draw."""
    found = departures(weight)
    name = max(found, key=lambda item: found[item])
    if found[name] < _FITS:
        return "rows, columns and singular values are those of independent random values"
    return f"{name} is {found[name]:.1f} standard deviations from a fresh draw"


def _row_remarks(weight: MatrixStatistics) -> tuple[str, ...]:
    """Counts rows that are dead or duplicates, in a classifier that is not collapsed as a whole."""
    remarks = []
    if 0 < len(weight.dead_rows) < weight.classes and weight.features > 1:
        remarks.append(f"{counted(len(weight.dead_rows), 'row')} of it hold one number throughout")
    if 0 < len(weight.duplicate_rows) < weight.classes - 1:
        remarks.append(f"{counted(len(weight.duplicate_rows), 'row')} of it repeat an earlier row")
    return tuple(remarks)
