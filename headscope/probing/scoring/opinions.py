"""Second opinions on a vector that need no folds of fits: LogME, and what the ranks of two scores have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_FEWEST = 3
_STEPS = 200
_STILL = 1e-10
_GRID = np.exp(np.linspace(np.log(1e-8), np.log(1e8), 33))
_NOTHING = 1e-12


def logme(vectors: Array, targets: Array) -> float:
    """The logarithm of the maximum evidence, a row and a target (You et al., ICML 2021, equation 2).

    A target is a linear function of a row, with weights drawn from a normal distribution of precision alpha, and noise
    of precision beta. The evidence of alpha and beta is largest where alpha = gamma / |m|^2 and
    beta = (n - gamma) / |Fm - y|^2, which is repeated until neither moves. It starts from the best ratio of a grid: the
    evidence can have two maxima. `targets` has a column for each class, 0 or 1, or the numbers of a regression.
    """
    features = vectors.astype(np.float64)
    rows, width = features.shape
    is_wide = width > rows
    squares, axes = np.linalg.eigh(features @ features.T if is_wide else features.T @ features)
    kept = squares > _NOTHING * max(float(squares[-1]), np.finfo(float).tiny)
    squares, axes = squares[kept], axes[:, kept]
    left = axes if is_wide else features @ axes / np.sqrt(squares)
    return float(np.mean([_evidence(squares, left.T @ target, target) for target in targets.T]))


def _evidence(squares: Array, along: Array, target: Array) -> float:
    """The maximum log evidence of one target; `along` is the target on the left singular vectors."""
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
    for _ in range(_STEPS):
        found, after = at(following)
        best = max(best, found)
        if abs(after - following) <= _STILL * following:
            break
        following = after
    return best / rows


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's correlation; None for fewer than three values, or where all are alike."""
    from scipy.stats import rankdata

    if len(first) < _FEWEST or len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])
