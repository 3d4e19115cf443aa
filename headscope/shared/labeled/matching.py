"""Matches classes to predictions: which order fits best, and whether that is more than chance. Seeded."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headscope.shared.labeled.facts import Accuracy

Matrix = Sequence[Sequence[float]]
_Array = np.ndarray[Any, Any]
_SEED = 0
_SHUFFLES = 1_999
_RESAMPLES = 999
_NUDGE = 1e-6
"""What the given order is better by where two orders fit alike; a spread below it counts as none."""
_CONFIDENCE = 0.95


def best_order(scores: Matrix | _Array) -> tuple[int, ...]:
    """Picks a different column for each row of a square matrix so that the sum is largest; ties keep the given place.

    `scores` is [classes, classes]. SciPy solves the assignment problem.
    """
    from scipy.optimize import linear_sum_assignment

    table = np.asarray(scores, dtype=float)
    return tuple(map(int, linear_sum_assignment(table + _NUDGE * np.eye(len(table)), maximize=True)[1]))


@dataclass(frozen=True, slots=True)
class Matching:
    """Best order of the classes, and how likely each result is by chance.

    `chance`: that predictions without any relation to the labels fit some order as well; `chance_given`: that they fit
    the given order as well; `moved`: that the best order is this much better than the given one only because it was
    chosen for it.
    """

    order: tuple[int, ...]
    given: Accuracy
    best: Accuracy
    chance: float
    chance_given: float
    moved: float


def match_classes(expected: Sequence[int], predicted: Sequence[int], size: int) -> Matching:
    """Finds the order of `size` classes that fits predictions best, for the class that each row should have.

    `expected` and `predicted` are [rows].
    """
    truth, found = np.asarray(expected), np.asarray(predicted)
    order = best_order(_confusion_table(truth, found, size))
    given, best = int((truth == found).sum()), int((np.asarray(order)[truth] == found).sum())
    chance, chance_given = _chance_by_shuffles(lambda turn: _confusion_table(truth[turn], found, size), len(truth))
    # Two tests, and the better one counts: twice its probability (Bonferroni).
    moved = min(1.0, 2 * min(_chance_of_moves(truth, found, order), _chance_of_moves_held_out(truth, found, size)))
    return Matching(order, accuracy(given, len(truth)), accuracy(best, len(truth)), chance, chance_given, moved)


def _confusion_table(expected: _Array, predicted: _Array, size: int) -> _Array:
    return np.bincount(expected * size + predicted, minlength=size * size).reshape(size, size)


def _chance_by_shuffles(table_of: Callable[[_Array], _Array], rows: int) -> tuple[float, float]:
    """Estimates how often shuffled rows fit as well as the given ones: under their best order, and under the given
    one.

    `table_of` gives the table [classes, classes] of how well they fit, for an order of the rows.
    """
    draw, own = np.random.default_rng(_SEED), table_of(np.arange(rows))
    best, given = _sum_in_order(own, best_order(own)), _sum_in_order(own, range(len(own)))
    as_good = as_good_given = 0
    for _ in range(_SHUFFLES):
        table = table_of(draw.permutation(rows))
        # The sum of the rows' maxima bounds every order from above and is cheap: most shuffles need no assignment.
        as_good += table.max(axis=1).sum() >= best - _NUDGE and _sum_in_order(table, best_order(table)) >= best - _NUDGE
        as_good_given += _sum_in_order(table, range(len(table))) >= given - _NUDGE
    # The rows' own order counts as one of the shuffles, so that a probability is never zero.
    return (1 + as_good) / (1 + _SHUFFLES), (1 + as_good_given) / (1 + _SHUFFLES)


def _sum_in_order(table: _Array, order: Sequence[int]) -> float:
    return float(table[np.arange(len(table)), list(order)].sum())


def _chance_of_moves(expected: _Array, predicted: _Array, order: Sequence[int]) -> float:
    """Runs McNemar's exact test of the best order against the given one, times the orders that it was chosen from."""
    moved = sum(column != row for row, column in enumerate(order))
    if not moved:
        return 1.0
    # Every order that moves this many classes could have been chosen: which classes, times how they can change places
    # with none left in its own (derangements, by inclusion and exclusion).
    derangements = sum((-1) ** kept * math.perm(moved, moved - kept) for kept in range(moved + 1))
    choices = math.comb(len(order), moved) * derangements
    # The logarithm of an underflowed probability would raise.
    probability = max(_mcnemar_probability(expected, predicted, order), sys.float_info.min)
    return math.exp(min(math.log(choices) + math.log(probability), 0.0))


def _chance_of_moves_held_out(expected: _Array, predicted: _Array, size: int) -> float:
    """Chooses the order on half of the rows and tests it on the other half: nothing was chosen for the tested rows."""
    places = np.random.default_rng(_SEED).permutation(len(expected))
    first, second = places[::2], places[1::2]
    return _mcnemar_probability(
        expected[second], predicted[second], best_order(_confusion_table(expected[first], predicted[first], size))
    )


def _mcnemar_probability(expected: _Array, predicted: _Array, order: Sequence[int]) -> float:
    """Gives the probability that, of the rows which only one order gets right, this many or more fall to `order`."""
    from scipy.stats import binomtest

    ordered = np.asarray(order)[expected]
    gained = int(((ordered == predicted) & (ordered != expected)).sum())
    lost = int(((expected == predicted) & (ordered != expected)).sum())
    return float(binomtest(gained, gained + lost, alternative="greater").pvalue) if gained + lost else 1.0


def accuracy(right: int, rows: int) -> Accuracy:
    """Gives a share with its exact 95% interval (Clopper and Pearson)."""
    from scipy.stats import binomtest

    low, high = binomtest(right, rows).proportion_ci(_CONFIDENCE, method="exact")
    return Accuracy(right / rows, float(low), float(high))


@dataclass(frozen=True, slots=True)
class FlagMatching:
    """Best order of the classes where a row can have several; see `Matching`.

    `contrast` is, over the classes that the best order moves (all if it moves none), the mean score of rows with the
    class less that of rows without it.
    """

    order: tuple[int, ...]
    chance: float
    chance_given: float
    moved: float
    contrast: float


def match_flags(expected: Matrix, scores: Matrix) -> FlagMatching:
    """Does what `match_classes` does for rows of 0 and 1 and rows of probabilities: the sum of correlations is what
    fits.

    Both are [rows, classes]; the correlations are Pearson's.
    """
    truth, found = np.asarray(expected, dtype=float), np.asarray(scores, dtype=float)
    given, other = _standardize_columns(truth), _standardize_columns(found)
    order = best_order(given.T @ other)
    chance, chance_given = _chance_by_shuffles(lambda turn: given[turn].T @ other, len(truth))
    moved = [item for item, column in enumerate(order) if column != item]
    places = moved or range(len(order))
    contrast = _mean_contrast(truth[:, places], found[:, [order[item] for item in places]])
    return FlagMatching(order, chance, chance_given, _chance_of_moved_flags(truth, found, order, moved), contrast)


def _standardize_columns(values: _Array) -> _Array:
    """Subtracts each column's mean and scales it to length 1; zeros where a column is constant."""
    apart = values - values.mean(axis=0)
    spread = np.sqrt((apart**2).sum(axis=0))
    standard: _Array = np.divide(apart, spread, out=np.zeros_like(apart), where=spread > _NUDGE)
    return standard


def _chance_of_moved_flags(expected: _Array, scores: _Array, order: Sequence[int], moved: list[int]) -> float:
    """Estimates by bootstrap how often the given order fits as well as the best one, on the classes that this one
    moves.
    """
    if not moved:
        return 1.0
    draw, worse = np.random.default_rng(_SEED), 0
    columns = [order[item] for item in moved]
    for _ in range(_RESAMPLES):
        rows = draw.integers(len(expected), size=len(expected))
        given, found = _standardize_columns(expected[rows]), _standardize_columns(scores[rows])
        worse += (given[:, moved] * (found[:, columns] - found[:, moved])).sum() <= 0
    return (1 + worse) / (1 + _RESAMPLES)


def _mean_contrast(flags: _Array, scores: _Array) -> float:
    found = [
        scores[has == 1, item].mean() - scores[has == 0, item].mean()
        for item, has in enumerate(flags.T)
        if 0 < has.sum() < len(has)
    ]
    return float(np.mean(found)) if found else 0.0


def fit_line(given: Sequence[float], found: Sequence[float]) -> tuple[float, float, float] | None:
    """Gives the correlation of two series, and the scale and offset with which the second follows from the first.

    None where either is constant.
    """
    from scipy.stats import linregress

    if min(np.std(given), np.std(found)) * math.sqrt(len(given)) <= _NUDGE:
        return None
    line = linregress(given, found)
    return float(line.rvalue), float(line.slope), float(line.intercept)
