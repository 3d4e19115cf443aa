"""Scores as functions of sums over the texts, and second opinions that need no fits in folds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headscope.slices.probe.arrays import Array
from headscope.slices.probe.facts.result import Metric, Problem


@dataclass(frozen=True, slots=True)
class Measure:
    """A score of predictions.

    `parts` gives a row of numbers for each text, from its predictions and labels; `value` takes sums of such rows,
    along the last axis, to the score. `of_rows` gives one number for each text, whose mean is the score; None for a
    score that is not a mean.
    """

    metric: Metric
    parts: Callable[[Array, Array, int], Array]
    value: Callable[[Array], Array]
    of_rows: Callable[[Array, Array], Array] | None = None

    def score(self, predicted: Array, labels: Array, classes: int) -> float:
        """Scores predictions of all texts. Both are [texts], or [texts, classes] of 0 and 1."""
        return float(self.value(self.parts(predicted, labels, classes).sum(0)))


def _count_hits(predicted: Array, labels: Array, classes: int) -> Array:
    return np.stack([predicted == labels, np.ones(len(labels))], 1).astype(float)


def _ratio_of_sums(sums: Array) -> Array:
    found: Array = sums[..., 0] / sums[..., 1]
    return found


def _count_overlaps(predicted: Array, labels: Array, classes: int) -> Array:
    """Counts for each class twice the right predictions, and then its predictions plus its labels.

    The result is [texts, 2 * classes].
    """
    chosen, given = flags(predicted, classes), flags(labels, classes)
    return np.hstack([2 * chosen * given, chosen + given])


def flags(labels: Array, classes: int) -> Array:
    """Converts labels to rows of 0 and 1; a label outside the classes gives a row of zeros.

    `labels` is [texts] or [texts, classes], the result [texts, classes].
    """
    if labels.ndim > 1:
        return labels.astype(float)
    table: Array = (labels[:, None] == np.arange(classes)).astype(float)
    return table


def _mean_f1(sums: Array) -> Array:
    """Averages F1 over the classes; a class in neither the labels nor the predictions is left out."""
    half = sums.shape[-1] // 2
    both, either = sums[..., :half], sums[..., half:]
    known = either > 0
    each = np.divide(both, either, out=np.zeros_like(both), where=known)
    found: Array = each.sum(-1) / np.maximum(known.sum(-1), 1)
    return found


def _square_errors(predicted: Array, labels: Array, classes: int) -> Array:
    around = labels - labels.mean()  # squares of large numbers would lose the digits in which they differ
    return np.stack([(labels - predicted) ** 2, around, around**2, np.ones(len(labels))], 1)


def _explained_variance(sums: Array) -> Array:
    left, total, squares, rows = (sums[..., place] for place in range(4))
    spread = squares - total**2 / rows
    found: Array = 1 - left / np.maximum(spread, np.finfo(float).tiny)
    return found


def _is_right(predicted: Array, labels: Array) -> Array:
    right: Array = (predicted == labels).astype(float)
    return right


def _explained_by_row(predicted: Array, labels: Array) -> Array:
    found: Array = 1 - (labels - predicted) ** 2 / max(float(labels.var()), np.finfo(float).tiny)
    return found


ACCURACY = Measure(Metric.ACCURACY, _count_hits, _ratio_of_sums, _is_right)
MACRO_F1 = Measure(Metric.MACRO_F1, _count_overlaps, _mean_f1)
R2 = Measure(Metric.R2, _square_errors, _explained_variance, _explained_by_row)
MAIN = {Problem.SINGLE_LABEL: ACCURACY, Problem.MULTI_LABEL: MACRO_F1, Problem.REGRESSION: R2}
SECOND = {Problem.SINGLE_LABEL: MACRO_F1}
"""The score that candidates are compared by, and another that is shown beside it."""


_STILL = 1e-10
"""The update has converged if it moves the ratio by less than this part."""
_GRID = np.exp(np.linspace(np.log(1e-8), np.log(1e8), 33))
_NOTHING = 1e-12
"""Axes whose squares sum to less than this part of the largest are rounding, and are left out."""


def logme(vectors: Array, targets: Array) -> float:
    """Computes the logarithm of the maximum evidence, per row and target (You et al., ICML 2021, equation 2).

    A target is a linear function of a row, with weights drawn from a normal distribution of precision alpha, and noise
    of precision beta. The evidence of alpha and beta is largest where alpha = gamma / |m|^2 and
    beta = (n - gamma) / |Fm - y|^2, which is repeated until neither moves. It starts from the best ratio of a grid: the
    evidence can have two maxima. `targets` has a column for each class, 0 or 1, or the numbers of a regression.
    """
    features = vectors.astype(np.float64)
    rows, width = features.shape
    is_wide = width > rows  # the smaller of the two products has the same eigenvalues, but for zeros
    squares, axes = np.linalg.eigh(features @ features.T if is_wide else features.T @ features)
    kept = squares > _NOTHING * max(float(squares[-1]), np.finfo(float).tiny)
    squares, axes = squares[kept], axes[:, kept]
    left = axes if is_wide else features @ axes / np.sqrt(squares)
    return float(np.mean([_max_evidence(squares, left.T @ target, target) for target in targets.T]))


def _max_evidence(squares: Array, along: Array, target: Array) -> float:
    """Maximizes the log evidence of one target; `along` is the target on the left singular vectors."""
    rows, whole = len(target), float(target @ target)
    beyond = max(whole - float(along @ along), 0.0)

    def at(ratio: float) -> tuple[float, float]:
        """The log evidence at the best beta for alpha / beta = ratio, and the ratio that the update gives."""
        shrunk = squares / (squares + ratio)
        length = float((squares * (along / (squares + ratio)) ** 2).sum())
        residual = beyond + float(((1 - shrunk) ** 2 * along**2).sum())
        energy = max(residual + ratio * length, np.finfo(float).tiny)
        evidence = rows / 2 * (np.log(rows / energy) - 1 - np.log(2 * np.pi))
        evidence += 0.5 * float(np.log(ratio / (squares + ratio)).sum())
        gamma = float(shrunk.sum())
        if not length or not residual or rows <= gamma:
            return evidence, ratio
        return evidence, (gamma / length) / ((rows - gamma) / residual)

    ratio = float(max(_GRID, key=lambda given: at(given)[0]))
    best, following = at(ratio)
    for _ in range(200):
        found, after = at(following)
        best = max(best, found)
        if abs(after - following) <= _STILL * following:
            break
        following = after
    return best / rows


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Computes Spearman's correlation; None for fewer than three values, or if all are equal."""
    from scipy.stats import rankdata

    if len(first) < 3 or len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])
