"""scikit-learn's logistic regression over probe's own: both at least as close to the minimum, on the same features."""

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from benchmarks.goals import Goal, print_goals, ratio_of_rounds
from headscope.slices.probe.scoring.scores import STRENGTHS
from headscope.slices.probe.scoring.solvers import LinearModel, fit_logistic, rotate, sigmoid_loss, softmax_loss

ROUNDS = 5
_SIZES = ((800, 384, 2), (800, 768, 6), (4000, 768, 6), (2000, 768, 28), (2000, 1024, 2))
"""Rows, features, classes."""
_TOLERANCES = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
Array = np.ndarray[Any, Any]


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {size: [_ratio(*size, seed) for seed in range(rounds)] for size in _SIZES}
    goals = [
        Goal(
            f"processor time of scikit-learn over probe's, {rows:,} rows, {width} features, {classes} classes",
            ratio_of_rounds(ratios),
            2,
            at_least=True,
        )
        for (rows, width, classes), ratios in found.items()
    ]
    print("Four strengths of logistic regression on rotated features, equally close to the minimum")
    print_goals(goals)
    return goals


def _ratio(rows: int, width: int, classes: int, seed: int) -> float:
    features, labels = _drawn(rows, width, classes, seed)
    matrices = rotate(features, features[:1])
    loss = softmax_loss if classes > 2 else sigmoid_loss
    targets = np.eye(classes)[labels][:, classes == 2 :]
    small = matrices.train.astype(np.float32)

    def ours() -> list[LinearModel]:
        found: list[LinearModel] = []
        for strength in STRENGTHS:
            start = found[-1] if found else None
            found.append(fit_logistic(small, targets, strength, sizes=matrices.sizes, loss=loss, start=start))
        return found

    def theirs(tolerance: float, given: Array) -> list[LinearModel]:
        model, found = LogisticRegression(tol=tolerance, max_iter=20_000, warm_start=True), []
        for strength in STRENGTHS:
            model.set_params(C=strength).fit(given, labels)
            found.append(LinearModel(model.coef_.T.astype(float), model.intercept_.astype(float)))
        return found

    def totals(fitted: list[LinearModel]) -> Array:
        return np.array(
            [
                strength * loss(item(matrices.train), targets)[0] + (item.weights**2).sum() / 2
                for strength, item in zip(STRENGTHS, fitted, strict=True)
            ]
        )

    least = totals(theirs(1e-10, matrices.train))
    own, seconds = _timed(ours)
    gap = float((totals(own) / least - 1).max())
    for tolerance in _TOLERANCES:
        other, taken = _timed(partial(theirs, tolerance, small))
        if float((totals(other) / least - 1).max()) <= gap:
            break
    return taken / seconds


def _timed(run: Callable[[], list[LinearModel]]) -> tuple[list[LinearModel], float]:
    begun = time.process_time()
    return run(), time.process_time() - begun


def _drawn(rows: int, width: int, classes: int, seed: int) -> tuple[Array, Array]:
    """Standardized features that are correlated as those of a model are, and labels that follow from them."""
    draw = np.random.default_rng(seed)
    hidden = draw.normal(size=(rows, width))
    mixing = draw.normal(size=(width, width)) * np.exp(-6 * np.arange(width) / width)[:, None]
    weights = draw.normal(size=(width, classes)) * np.exp(-np.arange(width) / 40)[:, None] * 3 / np.sqrt(width)
    labels = (hidden @ weights + draw.gumbel(size=(rows, classes))).argmax(1)
    return StandardScaler().fit_transform(hidden @ mixing), labels
