"""The best order against every order tried, and intervals and probabilities against sums written out."""

import itertools
import math
import random

import pytest

from headscope.shared.labeled.matching import accuracy, best_order, fit_line, match_classes, match_flags


@pytest.mark.parametrize("seed", range(40))
def test_the_best_order_is_the_best_of_all_orders(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.randint(1, 6)
    table = [[draw.randint(0, 9) for _ in range(size)] for _ in range(size)]
    order = best_order(table)
    every = itertools.permutations(range(size))
    assert sorted(order) == list(range(size))
    assert sum(table[row][order[row]] for row in range(size)) == max(
        sum(table[row][other[row]] for row in range(size)) for other in every
    )


def test_classes_without_rows_stay_where_they_are() -> None:
    assert best_order([[0, 0, 0, 0], [0, 0, 5, 0], [0, 5, 0, 0], [0, 0, 0, 0]]) == (0, 2, 1, 3)


def _binomial(rows: int, right: range, share: float) -> float:
    return sum(math.comb(rows, count) * share**count * (1 - share) ** (rows - count) for count in right)


@pytest.mark.parametrize(("right", "rows"), [(7, 64), (1, 9), (8, 9), (32, 64), (500, 1000)])
def test_the_ends_of_an_interval_leave_two_and_a_half_percent_on_each_side(right: int, rows: int) -> None:
    found = accuracy(right, rows)
    assert found.value == right / rows
    assert _binomial(rows, range(right, rows + 1), found.low) == pytest.approx(0.025, abs=1e-6)
    assert _binomial(rows, range(right + 1), found.high) == pytest.approx(0.025, abs=1e-6)


def test_an_interval_without_or_with_every_row_reaches_the_end() -> None:
    assert (accuracy(0, 10).low, accuracy(10, 10).high) == (0.0, 1.0)
    assert accuracy(0, 10).high == pytest.approx(1 - 0.025 ** (1 / 10))


@pytest.mark.parametrize("size", [2, 3, 5, 20])
def test_a_permutation_is_found_and_is_no_accident(size: int) -> None:
    draw = random.Random(size)
    order = [*range(1, size), 0]
    expected = [row % size for row in range(64)]
    predicted = [order[item] if draw.random() < 0.85 else draw.randrange(size) for item in expected]
    found = match_classes(expected, predicted, size)
    assert found.order == tuple(order)
    assert max(found.chance, found.moved) <= 0.001
    assert found.given.high < found.best.low


@pytest.mark.parametrize("size", [2, 3, 7])
def test_predictions_without_relation_to_the_labels_seldom_pass_for_an_order(size: int) -> None:
    """12 draws: at the level of 5% one or two may; at 0.1% none."""
    found = []
    for seed in range(12):
        draw = random.Random(seed)
        expected = [row % size for row in range(64)]
        found.append(match_classes(expected, [draw.randrange(size) for _ in expected], size))
    assert sum(item.chance <= 0.05 for item in found) <= 3
    assert not any(item.chance <= 0.001 and item.moved <= 0.001 for item in found)


def test_a_constant_prediction_is_no_order() -> None:
    """The best order of predictions that are all 1 is the class with the most rows, and that says nothing."""
    found = match_classes([0] * 45 + [1] * 19, [1] * 64, 2)
    assert found.order == (1, 0)
    assert found.chance == 1.0


def test_flags_find_a_permutation_and_no_order_in_noise() -> None:
    draw = random.Random(3)
    expected = [[float(draw.random() < 0.4) for _ in range(4)] for _ in range(64)]
    order = (2, 0, 1, 3)
    scores = [[0.0] * 4 for _ in expected]
    for row, score in zip(expected, scores, strict=True):
        for item in range(4):
            score[order[item]] = 0.2 + 0.6 * row[item] + 0.1 * draw.random()
    found = match_flags(expected, scores)
    assert found.order == order
    assert max(found.chance, found.moved) <= 0.001
    assert found.contrast == pytest.approx(0.6, abs=0.05)
    noise = match_flags(expected, [[draw.random() for _ in range(4)] for _ in expected])
    assert noise.chance > 0.01


def test_a_line_is_found_exactly_and_a_constant_has_none() -> None:
    found = fit_line([0, 1, 2, 3], [5, 3, 1, -1])
    assert found is not None
    assert found == pytest.approx((-1.0, -2.0, 5.0))
    assert fit_line([1, 1], [0, 2]) is None


def test_many_classes_and_rows_give_a_probability_and_no_error() -> None:
    size, rows = 300, 6_000
    expected = [row % size for row in range(rows)]
    found = match_classes(expected, [(item + 1) % size for item in expected], size)
    assert found.order == (*range(1, size), 0)
    assert 0 < found.moved < 1e-100 or found.moved == 0.0
