"""Scores of how well vectors predict labels: cross-validated linear models. Seeded."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import Unsupported, UsageError
from headscope.slices.probe.arrays import Array
from headscope.slices.probe.facts.result import Problem
from headscope.slices.probe.scoring.measures import MAIN, Measure, flags
from headscope.slices.probe.scoring.solvers import (
    LinearModel,
    Matrices,
    as_they_are,
    fit_logistic,
    fit_ridge,
    rotate,
    sigmoid_loss,
    softmax_loss,
)

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
"""Values of `C` that the inner folds choose from, for standardized features."""
WORD_STRENGTHS = (0.1, 1.0, 10.0, 100.0)
"""The same for TF-IDF, whose rows have length 1."""
RIDGES = (1.0, 10.0, 100.0, 1e3, 1e4)
"""Values of `alpha` that the inner folds choose from in regression, for standardized features."""
WORD_RIDGES = (0.01, 0.1, 1.0, 10.0)
"""The same for TF-IDF."""
INNER_FOLDS = 3
"""Each fit is repeated for every strength and inner fold, so more of them take time; with two, half of the rows
would be left out."""
NEIGHBORS = 5
"""scikit-learn's default."""
_OLDEST = (1, 9)
"""The extra `probe` in pyproject.toml names the same version."""
_ROUNDING = 1e-5
"""A feature whose spread is less than this part of its largest number is constant: float32 rounds to 6e-8, and
the sums in a model to more."""


def check_installed() -> None:
    """Raises Unsupported if scikit-learn isn't installed, or is older than the version that probe was written for."""
    try:
        import sklearn
    except ImportError as err:
        raise Unsupported("probe needs scikit-learn, which is not installed", 'pip install "headscope[probe]"') from err
    if tuple(int(part) for part in sklearn.__version__.split(".")[:2]) < _OLDEST:
        raise Unsupported(
            f"probe needs scikit-learn {'.'.join(map(str, _OLDEST))} or newer, and {sklearn.__version__} is installed",
            'pip install --upgrade "headscope[probe]"',
        )


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows to train on and rows to predict; `inner` splits the training rows again, by their place among them."""

    train: Array
    test: Array
    inner: tuple[tuple[Array, Array], ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """Data that all candidates are scored on: the labels, the groups of equal texts, the folds, and the seed.

    `labels` are the class of each row, a row of 0 and 1 for several labels, or a number; `classes` counts the classes.
    """

    labels: Array
    groups: Array
    folds: tuple[Fold, ...]
    seed: int
    problem: Problem = Problem.SINGLE_LABEL
    classes: int = 0

    @property
    def measure(self) -> Measure:
        """Measure that candidates are compared by."""
        return MAIN[self.problem]

    def score(self, predicted: Array, rows: Array) -> float:
        """Computes the main score on some rows."""
        return self.measure.score(predicted, self.labels[rows], self.classes)


def make_trial(labels: Array, groups: Array, count: int, seed: int, problem: Problem = Problem.SINGLE_LABEL) -> Trial:
    """Makes the folds for rows with these labels; rows of one group stay together."""
    if problem is Problem.SINGLE_LABEL:
        classes = int(labels.max()) + 1
    else:
        classes = labels.shape[1] if problem is Problem.MULTI_LABEL else 0
    folds = make_folds(strata(labels, problem), groups, count, seed)
    return Trial(labels, groups, folds, seed, problem, classes)


def strata(labels: Array, problem: Problem) -> Array | None:
    """Gives a class for each row, of which each fold gets its share; None for numbers.

    For several labels, it is the rarest label of the row.
    """
    if problem is Problem.REGRESSION:
        return None
    if problem is Problem.SINGLE_LABEL:
        return labels
    order = np.argsort(labels.sum(0), kind="stable")
    has_any = labels.any(1)
    found: Array = np.where(has_any, order[labels[:, order].argmax(1)], labels.shape[1])
    return found


def make_folds(classes: Array | None, groups: Array, count: int, seed: int) -> tuple[Fold, ...]:
    """Makes folds with their share of each class; rows of a group stay together. The same seed gives the same folds.

    Raises UsageError where the rows are too few for the folds, or for folds inside them.
    """
    from sklearn.model_selection import GroupKFold, StratifiedGroupKFold

    def most_parts(rows: Array) -> int:
        different = len(np.unique(groups[rows]))
        return different if classes is None else min(different, int(np.bincount(classes[rows]).max()))

    def inner(train: Array) -> Iterator[tuple[Array, Array]]:
        parts = min(INNER_FOLDS, count, most_parts(train))
        return split(train, parts) if parts >= 2 else iter(())

    def split(rows: Array, parts: int) -> Iterator[tuple[Array, Array]]:
        if classes is None:
            yield from GroupKFold(parts, shuffle=True, random_state=seed).split(rows, groups=groups[rows])
            return
        splitter = StratifiedGroupKFold(parts, shuffle=True, random_state=seed)
        yield from splitter.split(rows, classes[rows], groups[rows])

    with one_thread():
        rows = np.arange(len(groups))
        folds = tuple(
            Fold(train, test, tuple(inner(train)))
            for train, test in (split(rows, count) if most_parts(rows) >= count else ())
        )
    parts = [pair for fold in folds for pair in ((fold.train, fold.test), *fold.inner)]
    if not folds or not all(fold.inner for fold in folds) or not all(len(part) for pair in parts for part in pair):
        raise UsageError(
            f"{len(np.unique(groups)):,} different rows are too few for {count} folds, and for folds inside each that "
            "choose the strength",
            "give more rows of each class" if classes is not None else "give more rows",
        )
    return folds


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predictions for each row by the fold that did not train on it, and their losses.

    `inner` is the inner folds' score for each fold; `near` what the nearest training rows predict, or None.
    """

    values: Array
    losses: Array
    inner: tuple[float, ...]
    near: Array | None = None


def predict_from_vectors(vectors: Array, trial: Trial, *, has_offset: bool = True) -> Predicted:
    """Predicts with a linear model on standardized features; its means, scales and strength come from training rows.

    Without `has_offset`, the features are scaled and not centered, and the model has no offset.
    """

    def predict(fold: Fold) -> _Part:
        scaling = _fit_scaling(vectors[fold.train], has_offset=has_offset)
        rotated = rotate(scaling(vectors[fold.train]), scaling(vectors[fold.test]))
        small = _in_single_precision(rotated)
        near = _predict_from_neighbors(small, fold, trial)
        if trial.problem is Problem.REGRESSION:
            ridge, inner = _choose_ridge(rotated, fold, trial, has_offset=has_offset)
            found = ridge(rotated.test)[:, 0]
            return _Part(found, (found - trial.labels[fold.test]) ** 2, inner, near)
        return _predict_logistic(small, fold, trial, STRENGTHS, near, has_offset=has_offset)

    return _predict_folds(predict, trial)


def fit_all(vectors: Array, trial: Trial, *, has_offset: bool = True) -> LinearModel:
    """Fits the linear model on all rows, for vectors that aren't scaled, with a column per class, or one for numbers.

    It is fitted as `predict_from_vectors` fits the rows of a fold; the strength is chosen by the folds.
    """
    rows = np.arange(len(vectors))
    fold = Fold(rows, rows, tuple((item.train, item.test) for item in trial.folds))
    scaling = _fit_scaling(vectors, has_offset=has_offset)
    with one_thread():
        rotated = rotate(scaling(vectors), np.eye(vectors.shape[1]))
        if trial.problem is Problem.REGRESSION:
            model, _ = _choose_ridge(rotated, fold, trial, has_offset=has_offset)
        else:
            model, _ = _choose_logistic(_in_single_precision(rotated), fold, trial, STRENGTHS, has_offset=has_offset)
    weights = (rotated.test @ model.weights) * scaling.factors[:, None]
    offsets = model.offsets - scaling.means @ weights
    if trial.problem is Problem.SINGLE_LABEL and trial.classes <= 2:  # the sigmoid of one score as a softmax of two
        return LinearModel(np.hstack([-weights, weights]) / 2, np.hstack([-offsets, offsets]) / 2)
    return LinearModel(weights, offsets)


@dataclass(frozen=True, slots=True)
class _Scaling:
    """Scaling of the features: means to subtract, then factors to multiply by. Both are [features]."""

    means: Array
    factors: Array

    def __call__(self, rows: Array) -> Array:
        """Scales features, in double precision."""
        scaled: Array = (rows.astype(np.float64) - self.means) * self.factors
        return scaled


def _fit_scaling(train: Array, *, has_offset: bool) -> _Scaling:
    """Scales to mean 0 and deviation 1; without an offset, to a mean square of 1, also for constant features."""
    train = train.astype(np.float64)
    means = train.mean(0) * has_offset
    sizes = np.sqrt(((train - means) ** 2).mean(0))
    empty = _is_constant(train) if has_offset else sizes == 0
    return _Scaling(means, np.where(empty, 0.0, 1 / np.where(empty, 1.0, sizes)))


def _in_single_precision(given: Matrices) -> Matrices:
    """Converts matrices to single precision, in which logistic regression runs."""
    return Matrices(given.train.astype(np.float32), given.test.astype(np.float32), given.sizes)


def _is_constant(train: Array) -> Array:
    """Marks features that differ by rounding only, which standardizing would blow up, such as a decoder's first token.

    Rounding depends on the shape of the batch, so on the length of a text, and may give its class away.
    """
    constant: Array = train.std(0) <= _ROUNDING * np.abs(train).max(0)
    return constant


def predict_from_words(texts: Sequence[str], trial: Trial) -> Predicted | None:
    """Predicts with a linear model on TF-IDF of words and pairs of words; None if the texts hold no word."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    def predict(fold: Fold) -> _Part:
        counter = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        train = counter.fit_transform([texts[row] for row in fold.train])
        test = counter.transform([texts[row] for row in fold.test])
        if trial.problem is Problem.REGRESSION:
            return _sparse_ridge(train, test, fold, trial)
        return _predict_logistic(as_they_are(train, test), fold, trial, WORD_STRENGTHS)

    try:
        return _predict_folds(predict, trial)
    except ValueError as err:
        if "empty vocabulary" in str(err):  # scikit-learn has no class for this error
            return None
        raise


@dataclass(frozen=True, slots=True)
class _Part:
    """`Predicted` for the test rows of one fold."""

    values: Array
    losses: Array
    inner: float
    near: Array | None = None


def _predict_folds(predict: Callable[[Fold], _Part], trial: Trial) -> Predicted:
    """Predicts all folds, each on one thread, and as many in parallel as there are cores."""
    # A container or `taskset` may allow fewer cores than the machine has; macOS and Windows don't say.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with one_thread(), ThreadPoolExecutor(min(cores, len(trial.folds))) as pool:
        parts = list(pool.map(predict, trial.folds))
    values, losses = np.empty_like(trial.labels), np.empty(len(trial.labels))
    near = np.empty_like(trial.labels) if parts[0].near is not None else None
    for fold, part in zip(trial.folds, parts, strict=True):
        values[fold.test], losses[fold.test] = part.values, part.losses
        if near is not None:
            near[fold.test] = part.near
    return Predicted(values, losses, tuple(part.inner for part in parts), near)


def _predict_logistic(
    given: Matrices,
    fold: Fold,
    trial: Trial,
    strengths: Sequence[float],
    near: Array | None = None,
    *,
    has_offset: bool = True,
) -> _Part:
    """Predicts the test rows of one fold with logistic regression."""
    fitted, inner = _choose_logistic(given, fold, trial, strengths, has_offset=has_offset)
    found = fitted(given.test)
    targets = _output_targets(trial.labels[fold.test], trial)
    losses = row_losses(found.astype(np.float64), targets, is_softmax=_is_softmax(trial))
    return _Part(_decide_labels(found, trial), losses, inner, near)


def _is_softmax(trial: Trial) -> bool:
    return trial.problem is Problem.SINGLE_LABEL and trial.classes > 2


def _choose_logistic(
    given: Matrices, fold: Fold, trial: Trial, strengths: Sequence[float], *, has_offset: bool
) -> tuple[LinearModel, float]:
    """Fits one fold's logistic regression with the best strength; also gives its score in the inner folds.

    For several labels one for each label, all with the same strength.
    """
    labels = trial.labels[fold.train]
    loss = softmax_loss if _is_softmax(trial) else sigmoid_loss
    targets = _output_targets(labels, trial)
    scores = np.zeros((len(strengths), len(fold.inner)))
    starts: list[LinearModel | None] = [None] * len(strengths)
    for column, (train, test) in enumerate(fold.inner):
        matrix, held = given.train[train], given.train[test]
        weights: LinearModel | None = None
        sizes = given.sizes * (len(train) / len(labels))
        for row, strength in enumerate(strengths):
            # Each strength starts from the solution of the weaker one before it, which is near.
            weights = fit_logistic(
                matrix, targets[train], strength, sizes=sizes, loss=loss, start=weights, has_offset=has_offset
            )
            scores[row, column] = trial.score(_decide_labels(weights(held), trial), fold.train[test])
            starts[row] = weights
    best = int(scores.mean(1).argmax())
    fitted = fit_logistic(
        given.train, targets, strengths[best], sizes=given.sizes, loss=loss, start=starts[best], has_offset=has_offset
    )
    return fitted, float(scores.mean(1).max())


def _output_targets(labels: Array, trial: Trial) -> Array:
    """Gives one column per output of the model; two classes have one output."""
    table = flags(labels, trial.classes)
    return table[:, 1:] if trial.problem is Problem.SINGLE_LABEL and trial.classes <= 2 else table


def _decide_labels(scores: Array, trial: Trial) -> Array:
    if trial.problem is Problem.MULTI_LABEL:
        return (scores > 0).astype(int)
    chosen: Array = scores.argmax(1) if trial.classes > 2 else (scores[:, 0] > 0).astype(int)
    return chosen


def row_losses(scores: Array, targets: Array, *, is_softmax: bool) -> Array:
    """Computes the cross-entropy of each row; for several labels their mean."""
    if is_softmax:
        shifted = scores - scores.max(1, keepdims=True)
        losses: Array = np.log(np.exp(shifted).sum(1)) - (shifted * targets).sum(1)
        return losses
    each = np.maximum(scores, 0) - scores * targets + np.log1p(np.exp(-np.abs(scores)))
    mean: Array = each.mean(1)
    return mean


def _choose_ridge(given: Matrices, fold: Fold, trial: Trial, *, has_offset: bool) -> tuple[LinearModel, float]:
    """Fits one fold's ridge regression with the best strength; also gives its score in the inner folds."""
    labels = trial.labels[fold.train][:, None]
    scores = np.zeros((len(RIDGES), len(fold.inner)))
    for column, (train, test) in enumerate(fold.inner):
        for row, weights in enumerate(fit_ridge(given.train[train], labels[train], RIDGES, has_offset=has_offset)):
            scores[row, column] = trial.score(weights(given.train[test])[:, 0], fold.train[test])
    best = int(scores.mean(1).argmax())
    fitted = fit_ridge(given.train, labels, RIDGES[best : best + 1], has_offset=has_offset)[0]
    return fitted, float(scores.mean(1).max())


def _sparse_ridge(train: Any, test: Any, fold: Fold, trial: Trial) -> _Part:
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV

    search = GridSearchCV(Ridge(), {"alpha": list(WORD_RIDGES)}, cv=list(fold.inner), scoring="r2")
    search.fit(train, trial.labels[fold.train])
    found = search.predict(test)
    return _Part(found, (found - trial.labels[fold.test]) ** 2, float(search.best_score_))


def _predict_from_neighbors(given: Matrices, fold: Fold, trial: Trial) -> Array:
    """Predicts from the nearest training rows: their majority or mean. A rotation changes no neighbors."""
    from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

    kind = KNeighborsRegressor if trial.problem is Problem.REGRESSION else KNeighborsClassifier
    model = kind(min(NEIGHBORS, len(fold.train)), algorithm="brute")
    found: Array = model.fit(given.train, trial.labels[fold.train]).predict(given.test)
    return found


def predict_constant(trial: Trial) -> Array:
    """Predicts each fold with a constant from its training rows: their most frequent class, or mean, or every label.

    No other constant has a better score.
    """
    found = np.empty_like(trial.labels)
    for fold in trial.folds:
        given = trial.labels[fold.train]
        if trial.problem is Problem.REGRESSION:
            found[fold.test] = given.mean()
        elif trial.problem is Problem.MULTI_LABEL:
            found[fold.test] = 1
        else:
            found[fold.test] = np.bincount(given).argmax()
    return found


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits numerical libraries to one thread, so that all sums are the same everywhere, and silences warnings.

    scikit-learn's warnings are expected here: of fits that stop at the most steps, and of classes smaller than the
    folds.
    """
    with _thread_pools(len(sys.modules)).limit(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@lru_cache(1)
def _thread_pools(_modules: int) -> ThreadpoolController:
    """Finds the thread pools of this process.

    The cache is keyed by the number of imported modules, because a new module may bring a pool.
    """
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
