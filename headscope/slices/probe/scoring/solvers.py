"""Linear models fitted many times on one matrix: logistic regression and ridge, for every strength and inner fold.

The solutions are those of scikit-learn's `LogisticRegression`, `OneVsRestClassifier` and `Ridge`. They are found
faster: the features are rotated onto their principal axes once for each fold, which changes no solution because the
penalty looks only at the length of the weights. There, a scale for each axis makes the problem round, so that L-BFGS
needs a tenth of the steps; each strength starts where the weaker one ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headscope.slices.probe.arrays import Array

_TOLERANCE = 1e-4
"""scikit-learn's default `tol`, for the scaled problem."""
_FLAT = 1e-9
"""The search also ends where a step lowers the loss by less than this part: about SciPy's default."""
_MOST_STEPS = 1000
"""A bound for what doesn't converge."""
_MEMORY = 20
"""Steps that L-BFGS keeps, twice SciPy's default: fewer steps for more memory."""
_FAR = 30.0
"""The log odds of a class that all or none of the training rows have."""
_NOTHING = 1e-10
"""Axes whose squares sum to less than this part of the largest are rounding, and are left out."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """Features of rows to train on and of rows to predict; `sizes` are the sums of squares of the training columns."""

    train: Any
    test: Any
    sizes: Array


def rotate(train: Array, test: Array) -> Matrices:
    """Rotates both matrices onto the principal axes of the first: at most as many columns as rows, all distances kept.

    `train` is [rows, features], `test` [other rows, features].
    """
    is_wide = train.shape[1] > train.shape[0]
    sizes, axes = np.linalg.eigh(train @ train.T if is_wide else train.T @ train)
    kept = sizes > _NOTHING * max(float(sizes[-1]), 1.0)
    kept[-1] = True
    sizes, axes = sizes[kept], axes[:, kept]
    if is_wide:
        axes = (train.T @ axes) / np.sqrt(np.maximum(sizes, np.finfo(float).tiny))
    return Matrices(train @ axes, test @ axes, sizes)


def as_they_are(train: Any, test: Any) -> Matrices:
    """Wraps matrices whose columns are used as they are: sparse ones."""
    return Matrices(train, test, np.asarray(train.multiply(train).sum(0)).ravel())


@dataclass(slots=True)
class LinearModel:
    """A linear model: a column of weights and an offset for each output."""

    weights: Array
    offsets: Array

    def __call__(self, matrix: Any) -> Array:
        """Computes the outputs for each row."""
        scores: Array = matrix @ self.weights + self.offsets
        return scores


LossFunction = Callable[[Array, Array], tuple[float, Array]]
"""From outputs and targets to the sum of the losses and its gradient by the outputs."""


def softmax_loss(scores: Array, targets: Array) -> tuple[float, Array]:
    """Computes the cross-entropy; `targets` has a 1 in the column of each row's class.

    Both are [rows, classes], and so is the gradient.
    """
    shifted = scores - scores.max(1, keepdims=True)
    powers = np.exp(shifted)
    sums = powers.sum(1, keepdims=True)
    loss = float(np.log(sums).sum(dtype=np.float64) - (shifted * targets).sum(dtype=np.float64))
    return loss, powers / sums - targets


def sigmoid_loss(scores: Array, targets: Array) -> tuple[float, Array]:
    """Computes the binary cross-entropy of each column. Both are [rows, classes], and so is the gradient."""
    small = np.exp(-np.abs(scores))
    loss = float((np.maximum(scores, 0) - scores * targets + np.log1p(small)).sum(dtype=np.float64))
    return loss, np.where(scores >= 0, 1, small) / (1 + small) - targets


def fit_logistic(
    matrix: Any,
    targets: Array,
    strength: float,
    *,
    sizes: Array,
    loss: LossFunction,
    start: LinearModel | None = None,
    has_offset: bool = True,
) -> LinearModel:
    """Minimizes `strength` times the loss plus half the squared length of the weights; offsets are not penalized.

    Outputs that all or none of the rows have get a fixed offset: for them, the loss has no minimum. Without
    `has_offset`, all offsets are 0. `matrix` is [rows, columns], `targets` [rows, classes] of 0 and 1. By L-BFGS-B, as
    SciPy has it (Byrd et al., 1995).
    """
    if not has_offset:
        return _minimize_loss(matrix, targets, strength, sizes=sizes, loss=loss, start=start, has_offset=False)
    share = targets.mean(0)
    fitted = (share > 0) & ((share < 1) | (loss is softmax_loss))
    weights = np.zeros((matrix.shape[1], targets.shape[1]))
    offsets = np.where(share > 0, _FAR, -_FAR)
    if fitted.any() and not (loss is softmax_loss and fitted.sum() == 1):
        given = None if start is None else LinearModel(start.weights[:, fitted], start.offsets[fitted])
        found = _minimize_loss(
            matrix, targets[:, fitted], strength, sizes=sizes, loss=loss, start=given, has_offset=True
        )
        weights[:, fitted], offsets[fitted] = found.weights, found.offsets
    return LinearModel(weights, offsets)


def fit_ridge(
    matrix: Array, targets: Array, strengths: Sequence[float], *, has_offset: bool = True
) -> tuple[LinearModel, ...]:
    """For each strength the weights with the least squared error plus `strength` times their squared length.

    Without `has_offset`, the offsets are 0. `matrix` is [rows, columns], `targets` [rows, outputs]. By the normal
    equations and Cholesky's decomposition.
    """
    from scipy.linalg import cho_factor, cho_solve

    means, middle = matrix.mean(0) * has_offset, targets.mean(0) * has_offset
    centered = matrix - means
    squares, products = centered.T @ centered, centered.T @ (targets - middle)
    found = []
    for strength in strengths:
        weights = cho_solve(cho_factor(squares + strength * np.eye(len(squares))), products)
        found.append(LinearModel(weights, middle - means @ weights))
    return tuple(found)


def _minimize_loss(
    matrix: Any,
    targets: Array,
    strength: float,
    *,
    sizes: Array,
    loss: LossFunction,
    start: LinearModel | None,
    has_offset: bool,
) -> LinearModel:
    from scipy.optimize import minimize

    rows, width = matrix.shape
    kind = matrix.dtype
    targets = targets.astype(kind)
    outputs = targets.shape[1]
    share = targets.mean(0)
    curvature = np.maximum(share * (1 - share), 0.5 / rows)
    scales = 1 / np.sqrt(1 + strength * sizes[:, None] * curvature)
    offset_scales = has_offset / np.sqrt(strength * rows * curvature)

    across = np.ascontiguousarray(matrix.T) if isinstance(matrix, np.ndarray) else matrix.T

    def unpacked(point: Array) -> tuple[Array, Array]:
        table = point.reshape(width + 1, outputs)
        return table[:width] * scales, table[width] * offset_scales

    def objective(point: Array) -> tuple[float, Array]:
        weights, offsets = unpacked(point)
        total, slope = loss(matrix @ weights.astype(kind) + offsets.astype(kind), targets)
        gradient = np.empty((width + 1, outputs))
        gradient[:width] = (strength * (across @ slope) + weights) * scales
        gradient[width] = strength * slope.sum(0) * offset_scales
        value = strength * total + (weights**2).sum() / 2
        return value * unit, gradient.ravel() * unit

    unit = 1 / (strength * rows)
    first = np.zeros((width + 1, outputs))
    if not has_offset:
        first[:width] = 0.0 if start is None else start.weights / scales
    elif start is not None:
        first[:width], first[width] = start.weights / scales, start.offsets / offset_scales
    elif loss is softmax_loss:
        first[width] = np.log(share) / offset_scales
    else:
        first[width] = np.log(share / (1 - share)) / offset_scales
    found = minimize(
        objective, first.ravel(), jac=True, method="L-BFGS-B",
        options={
            "maxiter": _MOST_STEPS, "maxcor": _MEMORY, "gtol": _TOLERANCE * np.sqrt(unit), "ftol": _FLAT, "maxls": 50,
        },
    )  # fmt: skip
    return LinearModel(*unpacked(found.x))
