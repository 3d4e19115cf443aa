"""Which order of the classes fits predictions best, and whether that is more than chance. Plain arithmetic, seeded."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headscope.facts.labeled import Accuracy

Matrix = Sequence[Sequence[float]]
_SEED = 0
_SHUFFLES = 1_999
_EXACT_CLASSES = 8
"""Up to this many classes, each shuffle gets its best order; beyond that a bound on it, which is faster and
stricter.
"""
_NUDGE = 1e-6
_CONFIDENCE = 0.95


def best_order(scores: Matrix) -> tuple[int, ...]:
    """For each row of a square matrix a different column, so that the sum is largest; ties go to the same place.

    The Hungarian method in O(n^3): exact.
    """
    size = len(scores)
    cost = [[-value - (_NUDGE if row == column else 0) for column, value in enumerate(line)]
            for row, line in enumerate(scores)]  # fmt: skip
    of_row, of_column = [0.0] * (size + 1), [0.0] * (size + 1)
    taken, came = [0] * (size + 1), [0] * (size + 1)
    for row in range(1, size + 1):
        taken[0] = row
        column = 0
        least, used = [math.inf] * (size + 1), [False] * (size + 1)
        while taken[column]:
            used[column] = True
            at, step, following = taken[column], math.inf, 0
            for other in range(1, size + 1):
                if used[other]:
                    continue
                reduced = cost[at - 1][other - 1] - of_row[at] - of_column[other]
                if reduced < least[other]:
                    least[other], came[other] = reduced, column
                if least[other] < step:
                    step, following = least[other], other
            for other in range(size + 1):
                if used[other]:
                    of_row[taken[other]] += step
                    of_column[other] -= step
                else:
                    least[other] -= step
            column = following
        while column:
            taken[column] = taken[came[column]]
            column = came[column]
    order = [0] * size
    for column in range(1, size + 1):
        order[taken[column] - 1] = column - 1
    return tuple(order)


@dataclass(frozen=True, slots=True)
class Matching:
    """The best order, and three probabilities.

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
    """The order of `size` classes that fits predictions best, for the class that each row should have."""
    table = _confusion(expected, predicted, size)
    order = best_order(table)
    rows = len(expected)
    given = sum(table[item][item] for item in range(size))
    best = sum(table[item][order[item]] for item in range(size))
    chance, chance_given = _by_shuffles(expected, predicted, size, best, given)
    moved = min(1.0, 2 * min(_moved_overall(expected, predicted, order), _moved_held_out(expected, predicted, size)))
    return Matching(order, accuracy(given, rows), accuracy(best, rows), chance, chance_given, moved)


def _confusion(expected: Sequence[int], predicted: Sequence[int], size: int) -> list[list[int]]:
    table = [[0] * size for _ in range(size)]
    for row, column in zip(expected, predicted, strict=True):
        table[row][column] += 1
    return table


def _by_shuffles(
    expected: Sequence[int], predicted: Sequence[int], size: int, best: int, given: int
) -> tuple[float, float]:
    """How often labels in random order fit as well: under their best order, and under the given one."""
    draw = random.Random(_SEED)
    shuffled = list(expected)
    as_good = as_good_given = 0
    for _ in range(_SHUFFLES):
        draw.shuffle(shuffled)
        table = _confusion(shuffled, predicted, size)
        as_good += _fitting(table, best) >= best
        as_good_given += sum(table[item][item] for item in range(size)) >= given
    return (1 + as_good) / (1 + _SHUFFLES), (1 + as_good_given) / (1 + _SHUFFLES)


def _fitting(table: Sequence[Sequence[int]], wanted: int) -> int:
    """The rows that the best order gets right, or a bound on them where that decides already or costs too much."""
    bound = sum(max(line) for line in table)
    if bound < wanted or len(table) > _EXACT_CLASSES:
        return bound
    return sum(line[column] for line, column in zip(table, best_order(table), strict=True))


def _moved_overall(expected: Sequence[int], predicted: Sequence[int], order: Sequence[int]) -> float:
    """McNemar's exact test of the best order against the given one, times the orders that it was chosen from."""
    size = len(order)
    moved = sum(order[item] != item for item in range(size))
    if not moved:
        return 1.0
    choices = math.comb(size, moved) * _derangements(moved)
    logarithm = math.log(choices) + math.log(_mcnemar(expected, predicted, order))
    return math.exp(min(logarithm, 0.0))


def _moved_held_out(expected: Sequence[int], predicted: Sequence[int], size: int) -> float:
    """The same test on every second row, of the order that fits the other rows best: nothing was chosen for it."""
    places = list(range(len(expected)))
    random.Random(_SEED).shuffle(places)
    first, second = places[::2], places[1::2]
    order = best_order(_confusion([expected[i] for i in first], [predicted[i] for i in first], size))
    return _mcnemar([expected[i] for i in second], [predicted[i] for i in second], order)


def _mcnemar(expected: Sequence[int], predicted: Sequence[int], order: Sequence[int]) -> float:
    """The probability that rows which only one of two orders gets right go to the other order at least so often."""
    pairs = [(row, column) for row, column in zip(expected, predicted, strict=True) if order[row] != row]
    gained = sum(order[row] == column for row, column in pairs)
    lost = sum(row == column for row, column in pairs)
    every = gained + lost
    ways: int = sum(math.comb(every, count) for count in range(gained, every + 1))
    return float(ways / 2**every)


def _derangements(count: int) -> int:
    before, now = 1, 0
    for number in range(2, count + 1):
        before, now = now, (number - 1) * (before + now)
    return now if count else 1


def accuracy(right: int, rows: int) -> Accuracy:
    """A share with its exact 95% interval (Clopper and Pearson)."""
    tail = (1 - _CONFIDENCE) / 2
    low = 0.0 if not right else _solve(lambda share: _at_least(right, rows, share) - tail)
    high = 1.0 if right == rows else _solve(lambda share: tail - (1 - _at_least(right + 1, rows, share)))
    return Accuracy(right / rows, low, high)


def _at_least(right: int, rows: int, share: float) -> float:
    """The probability of at least `right` in `rows`, each with probability `share`."""
    if not 0 < share < 1:
        return float(share >= 1 or right <= 0)
    whole = math.lgamma(rows + 1)
    terms = (
        whole - math.lgamma(count + 1) - math.lgamma(rows - count + 1)
        + count * math.log(share) + (rows - count) * math.log1p(-share)
        for count in range(right, rows + 1)
    )  # fmt: skip
    return min(1.0, sum(math.exp(term) for term in terms))


def _solve(rising: Callable[[float], float]) -> float:
    """The zero of a rising function between 0 and 1."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True, slots=True)
class FlagMatching:
    """The order of the classes that fits best where a row can have several; see `Matching`.

    `contrast` is, over the classes that the best order moves (all if it moves none), the mean score of rows with the
    class less that of rows without it.
    """

    order: tuple[int, ...]
    chance: float
    chance_given: float
    moved: float
    contrast: float


_RESAMPLES = 999


def match_flags(expected: Matrix, scores: Matrix) -> FlagMatching:
    """As `match_classes`, for rows of 0 and 1 and rows of probabilities: the sum of correlations is what fits."""
    table = _correlations(expected, scores)
    size = len(table)
    order = best_order(table)
    best = sum(table[item][order[item]] for item in range(size))
    given = sum(table[item][item] for item in range(size))
    draw = random.Random(_SEED)
    shuffled, as_good, as_good_given = list(expected), 0, 0
    for _ in range(_SHUFFLES if size <= _EXACT_CLASSES else _RESAMPLES):
        draw.shuffle(shuffled)
        other = _correlations(shuffled, scores)
        as_good += sum(max(line) for line in other) >= best and (
            size > _EXACT_CLASSES
            or sum(line[column] for line, column in zip(other, best_order(other), strict=True)) >= best
        )
        as_good_given += sum(other[item][item] for item in range(size)) >= given
    turns = _SHUFFLES if size <= _EXACT_CLASSES else _RESAMPLES
    moved = [item for item in range(size) if order[item] != item]
    return FlagMatching(
        order,
        (1 + as_good) / (1 + turns),
        (1 + as_good_given) / (1 + turns),
        _moved_flags(expected, scores, order, moved),
        _contrast(expected, scores, order, moved or range(size)),
    )


def _correlations(expected: Matrix, scores: Matrix) -> list[list[float]]:
    given = [_standard(column) for column in zip(*expected, strict=True)]
    found = [_standard(column) for column in zip(*scores, strict=True)]
    return [[sum(a * b for a, b in zip(one, other, strict=True)) for other in found] for one in given]


def _standard(values: Sequence[float]) -> list[float]:
    """Values less their mean, with length 1; zeros where they are all the same."""
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values))
    return [(value - mean) / spread if spread > _NUDGE else 0.0 for value in values]


def _moved_flags(expected: Matrix, scores: Matrix, order: Sequence[int], moved: Sequence[int]) -> float:
    """How often rows drawn again fit the given order as well as the best one, on the classes that it moves."""
    if not moved:
        return 1.0
    draw = random.Random(_SEED)
    worse = 0
    for _ in range(_RESAMPLES):
        places = draw.choices(range(len(expected)), k=len(expected))
        gain = 0.0
        for item in moved:
            given = _standard([expected[place][item] for place in places])
            for column, sign in ((order[item], 1), (item, -1)):
                found = _standard([scores[place][column] for place in places])
                gain += sign * sum(a * b for a, b in zip(given, found, strict=True))
        worse += gain <= 0
    return (1 + worse) / (1 + _RESAMPLES)


def _contrast(expected: Matrix, scores: Matrix, order: Sequence[int], classes: Sequence[int]) -> float:
    found = []
    for item in classes:
        has = [score[order[item]] for row, score in zip(expected, scores, strict=True) if row[item]]
        lacks = [score[order[item]] for row, score in zip(expected, scores, strict=True) if not row[item]]
        if has and lacks:
            found.append(sum(has) / len(has) - sum(lacks) / len(lacks))
    return sum(found) / len(found) if found else 0.0


def fit_line(given: Sequence[float], found: Sequence[float]) -> tuple[float, float, float] | None:
    """The correlation of two series, and the scale and offset with which the second follows from the first.

    None where either is constant.
    """
    one, other = _standard(given), _standard(found)
    if not any(one) or not any(other):
        return None
    correlation = sum(a * b for a, b in zip(one, other, strict=True))
    means = sum(given) / len(given), sum(found) / len(found)
    spreads = [math.sqrt(sum((value - mean) ** 2 for value in series))
               for series, mean in zip((given, found), means, strict=True)]  # fmt: skip
    scale = correlation * spreads[1] / spreads[0]
    return correlation, scale, means[1] - scale * means[0]
