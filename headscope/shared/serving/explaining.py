"""Explanation of an engine's scores, found by comparing them with those of variants of the head.

An explanation is chosen on half of the texts and has to give all scores of the other half. It is claimed only if no
other variant gives them too.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headscope.core.facts.heads.tasks import Activation

Scores = NDArray[np.float64]
"""A row for each text and a column for each class."""

_FEWEST_TEXTS = 6
"""Three to choose by, three to confirm."""
SINGLE_PRECISION = 1e-4
"""Rounding over a whole model, in relation to the largest score."""
_SPREAD = 50
"""How much further than the tolerance the scores of different texts have to lie apart."""
_SATURATED = 1e-6


@dataclass(frozen=True, slots=True)
class ScoreFunction:
    """Function that an engine may apply to logits; `inverse` undoes it, for a softmax up to a constant per row."""

    name: str
    forward: Callable[[Scores], Scores]
    inverse: Callable[[Scores], Scores]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Computation that gives an engine's scores: `function(scale * logits + offset)` of a variant's logits.

    `order` holds, for each score of the engine, the class of the model.
    """

    variant: str
    function: str
    order: tuple[int, ...]
    scale: float
    offset: float


@dataclass(frozen=True, slots=True)
class ExplainedScores:
    """Single explanation, or None with the reason; `fitting` names the variants and functions that gave all scores.

    `is_unexplained` says that all were tried, and none gave them.
    """

    explanation: Explanation | None
    reason: str = ""
    fitting: tuple[str, ...] = ()
    is_unexplained: bool = False


def explain_scores(
    variants: Mapping[str, Scores], given: Scores, precision: float = SINGLE_PRECISION
) -> ExplainedScores:
    """Finds the one variant whose logits explain the scores that an engine gave for the same texts.

    `variants` are logits by the name of each variant; `given` has their shape. `precision` is the largest difference to
    accept, in relation to the largest score: more for an engine that computes in half precision.
    """
    tolerance = precision * max(float(np.abs(given).max(initial=0.0)), 1e-3)
    reason = _unfit_scores(given, tolerance)
    if reason:
        return ExplainedScores(None, reason)
    found = [
        item for name, logits in variants.items() for item in _fitting_explanations(name, logits, given, tolerance)
    ]
    names = tuple(f"{item.function} of {item.variant}" for item in found)
    if len(found) == 1:
        return ExplainedScores(found[0], fitting=names)
    if found:
        return ExplainedScores(None, "several explanations fit", names)
    return ExplainedScores(None, "no explanation found", is_unexplained=True)


def _unfit_scores(given: Scores, tolerance: float) -> str:
    """Gives the reason why scores say nothing about the head; "" where they do."""
    if len(given) < _FEWEST_TEXTS:
        return f"{len(given)} texts are too few: at least {_FEWEST_TEXTS} are needed"
    if not np.isfinite(given).all():
        return "the scores are not all finite"
    constant = np.ptp(given, axis=0) < _SPREAD * tolerance
    if constant.all():
        return "the scores of the texts hardly differ"
    if (different := len(np.unique(given, axis=0))) < _FEWEST_TEXTS:
        return f"the texts have only {different} different scores"
    return f"class {constant.argmax()} has the same score for all texts" if constant.any() else ""


def _fitting_explanations(name: str, logits: Scores, given: Scores, tolerance: float) -> Iterator[Explanation]:
    """Yields, for each function that explains the scores with a variant, the plainest way."""
    # The way is chosen on these texts alone; the others, which had no part in it, confirm it.
    chosen = np.arange(len(given)) % 2 == 0
    for function in possible_functions(given):
        for order, scale, offset in _possible_ways(logits[chosen], given[chosen], function):
            expected = function.forward(scale * logits[:, list(order)] + offset)
            if np.abs(expected - given).max() <= tolerance:
                yield Explanation(name, function.name, order, scale, offset)
                break


def possible_functions(given: Scores) -> list[ScoreFunction]:
    """Lists the functions that may have given scores: all of them, but for one class exp instead of any softmax.

    A softmax over the texts of a request is exp with an offset, which a sigmoid of small scores is nearly too.
    """
    every = (*SCORE_FUNCTIONS, *_TWICE)
    if given.shape[1] > 1:
        return list(every)
    return [*(item for item in every if Activation.SOFTMAX not in item.name), _EXPONENTIAL]


def _possible_ways(
    logits: Scores, given: Scores, function: ScoreFunction
) -> Iterator[tuple[tuple[int, ...], float, float]]:
    """Yields order, scale and offset, the plainest first: as it is, in another order, with a factor, with both."""
    plain = tuple(range(given.shape[1]))
    yield plain, 1.0, 0.0
    order = order_by_distance(function.forward(logits), given)
    if order is not None and order != plain:
        yield order, 1.0, 0.0
    targets, is_centered = function.inverse(given), function.name == Activation.SOFTMAX
    if not np.isfinite(targets).all():
        return
    if is_centered:
        # A constant in each row changes no softmax, so only differences from the row's mean can be compared.
        logits, targets = (item - item.mean(1, keepdims=True) for item in (logits, targets))
    orders = dict.fromkeys((plain, _order_by_correlation(logits, targets)))
    for order in filter(None, orders):
        line = _fit_scale_and_offset(logits[:, list(order)], targets, through_zero=is_centered)
        if line is not None:
            yield order, *line


def order_by_distance(expected: Scores, given: Scores) -> tuple[int, ...] | None:
    """Gives for each column of `given` the nearest of `expected`; None where two have the same."""
    # Column by column: the distances of thousands of classes would take gigabytes together.
    return _one_to_one(np.asarray([np.abs(expected - column[:, None]).max(0).argmin() for column in given.T]))


def _order_by_correlation(logits: Scores, targets: Scores) -> tuple[int, ...] | None:
    """Gives for each column of `targets` the one of `logits` that it rises and falls with, between texts."""
    if len(logits) < 3:
        return None
    sides = [item - item.mean(0) for item in (targets, logits)]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        one, other = (item / np.linalg.norm(item, axis=0) for item in sides)
        found = one.T @ other
    return None if not np.isfinite(found).all() else _one_to_one(found.argmax(1))


def _one_to_one(order: NDArray[np.int64]) -> tuple[int, ...] | None:
    found = tuple(int(item) for item in order)
    return found if len(set(found)) == len(found) else None


def _fit_scale_and_offset(logits: Scores, targets: Scores, *, through_zero: bool) -> tuple[float, float] | None:
    """Fits scale and offset of the line from logits to targets; None where there is none."""
    if through_zero:
        square = float((logits * logits).sum())
        return (float((logits * targets).sum()) / square, 0.0) if square > 0 else None
    if np.ptp(logits) == 0:
        return None
    scale, offset = np.polyfit(logits.ravel(), targets.ravel(), 1)
    return float(scale), float(offset)


def _softmax_of_logits(logits: Scores) -> Scores:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def _within_range(values: Scores, low: float, high: float) -> Scores:
    """Keeps the values where a function isn't saturated; NaN elsewhere: the logits would have too few digits."""
    return np.where((values > low + _SATURATED) & (values < high - _SATURATED), values, np.nan)


SCORE_FUNCTIONS = (
    ScoreFunction(Activation.NONE.value, lambda logits: logits, lambda scores: scores),
    ScoreFunction(
        Activation.SOFTMAX.value, _softmax_of_logits, lambda scores: np.log(_within_range(scores, 0, np.inf))
    ),
    ScoreFunction(
        Activation.SIGMOID.value,
        lambda logits: 1 / (1 + np.exp(-logits)),
        lambda scores: np.log(_within_range(scores, 0, 1) / (1 - _within_range(scores, 0, 1))),
    ),
    ScoreFunction("tanh", np.tanh, lambda scores: np.arctanh(_within_range(scores, -1, 1))),
)
_EXPONENTIAL = ScoreFunction(
    "exp", lambda logits: np.exp(np.minimum(logits, 80)), lambda scores: np.log(_within_range(scores, 0, np.inf))
)
FORWARD_BY_NAME = {item.name: item.forward for item in SCORE_FUNCTIONS}
"""What gives scores from logits, by the name of the function; none of them is applied twice."""
_TWICE = tuple(
    ScoreFunction(
        f"{item.name} of {item.name}",
        lambda logits, item=item: item.forward(item.forward(logits)),  # type: ignore[misc]
        lambda scores: scores * np.nan,  # only as it is, or in another order
    )
    for item in SCORE_FUNCTIONS[1:3]
)
"""Functions of engines that get scores, and take them for logits."""
