"""How well vectors predict classes: cross-validated logistic regression, intervals, and tests of pairs. Seeded."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from headscope.errors import Unsupported

Array = np.ndarray[Any, Any]

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
"""Values of `C` that the inner folds choose from, for standardised features."""
WORD_STRENGTHS = (0.1, 1.0, 10.0, 100.0)
"""The same for TF-IDF, whose rows have length 1."""
INNER_FOLDS = 3
RESAMPLES = 2000
FLIPS = 9999
_TOLERANCE = 1e-3
_MOST_STEPS = 500
_BLOCK = 500
_EVEN = 1e-9
_OLDEST = (1, 9)
_ROUNDING = 1e-5


def check_installed() -> None:
    """Raises Unsupported where scikit-learn is not installed, or is older than what probe was written for."""
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
    """What all candidates are scored on: the class of each row, rows that are equal texts, the folds, and the seed."""

    labels: Array
    groups: Array
    folds: tuple[Fold, ...]
    seed: int


def make_trial(labels: Array, groups: Array, count: int, seed: int) -> Trial:
    """The folds for rows of these classes; rows of one group stay together."""
    return Trial(labels, groups, make_folds(labels, groups, count, seed), seed)


def make_folds(labels: Array, groups: Array, count: int, seed: int) -> tuple[Fold, ...]:
    """Stratified folds in which rows of one group stay together, the same for the same seed."""
    from sklearn.model_selection import StratifiedGroupKFold

    def split(rows: Array, parts: int) -> Iterator[tuple[Array, Array]]:
        splitter = StratifiedGroupKFold(parts, shuffle=True, random_state=seed)
        yield from splitter.split(rows, labels[rows], groups[rows])

    with _quiet():
        return tuple(
            Fold(train, test, tuple(split(train, min(INNER_FOLDS, count))))
            for train, test in split(np.arange(len(labels)), count)
        )


@dataclass(frozen=True, slots=True)
class Predicted:
    """A class for each row, from the fold that did not see it; `inner` is the inner folds' score for each fold."""

    classes: Array
    inner: tuple[float, ...]


def predict_from_vectors(vectors: Array, trial: Trial) -> Predicted:
    """Logistic regression on standardised features. The means, the scales and the strength are of the training rows."""
    from sklearn.preprocessing import StandardScaler

    def features(fold: Fold) -> tuple[Any, Any]:
        train, test = vectors[fold.train].astype(np.float64), vectors[fold.test].astype(np.float64)
        constant = _is_constant(train)
        train[:, constant] = test[:, constant] = 0
        scaler = StandardScaler().fit(train)
        return scaler.transform(train), scaler.transform(test)

    return _predict(features, trial, STRENGTHS)


def _is_constant(train: Array) -> Array:
    """Features that differ by rounding only, which standardising would blow up: a decoder's first token, for one.

    Rounding depends on the shape of the batch, so on the length of a text, and may give its class away.
    """
    constant: Array = train.std(0) <= _ROUNDING * np.abs(train).max(0)
    return constant


def predict_from_words(texts: Sequence[str], trial: Trial) -> Predicted | None:
    """Logistic regression on TF-IDF of words and pairs of words; None where the texts hold no word."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    def features(fold: Fold) -> tuple[Any, Any]:
        counter = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        train = counter.fit_transform([texts[row] for row in fold.train])
        return train, counter.transform([texts[row] for row in fold.test])

    try:
        return _predict(features, trial, WORD_STRENGTHS)
    except ValueError as err:
        if "empty vocabulary" in str(err):
            return None
        raise


def _predict(features: Any, trial: Trial, strengths: Sequence[float]) -> Predicted:
    from sklearn.linear_model import LogisticRegressionCV

    classes, inner = np.empty_like(trial.labels), []
    with _quiet():
        for fold in trial.folds:
            train, test = features(fold)
            model = LogisticRegressionCV(
                Cs=list(strengths), cv=list(fold.inner), l1_ratios=(0,), scoring="accuracy",
                use_legacy_attributes=False, tol=_TOLERANCE, max_iter=_MOST_STEPS,
            ).fit(train, trial.labels[fold.train])  # fmt: skip
            classes[fold.test] = model.predict(test)
            inner.append(float(np.asarray(model.scores_).mean(0).max()))
    return Predicted(classes, tuple(inner))


def predict_majority(trial: Trial) -> Array:
    """The most frequent class of each fold's training rows."""
    classes = np.empty_like(trial.labels)
    for fold in trial.folds:
        classes[fold.test] = np.bincount(trial.labels[fold.train]).argmax()
    return classes


@contextmanager
def _quiet() -> Iterator[None]:
    """One thread, so that the sums and with them the numbers are the same everywhere; and no warnings.

    What scikit-learn warns of is expected here: a fit that stops at the most steps, and classes smaller than the folds.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95% interval."""

    mean: float
    low: float
    high: float


def interval(values: Array, trial: Trial) -> Interval:
    """The mean of one value a row, and the percentiles of its bootstrap, which draws whole groups."""
    sums, sizes = _by_group(values[:, None], trial.groups)[:, 0], np.bincount(trial.groups)
    draw = np.random.default_rng(trial.seed)
    means = []
    for _ in range(RESAMPLES // _BLOCK):
        counts = draw.multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=_BLOCK)
        means.append((counts @ sums) / (counts @ sizes))
    low, high = np.percentile(np.concatenate(means), (2.5, 97.5))
    return Interval(float(values.mean()), float(low), float(high))


def chance_of_best(differences: Array, groups: Array, seed: int) -> float:
    """The probability that the largest mean of the columns is so large although every column's differences are noise.

    `differences` has a row for each text and a column for each candidate: its score less that of the reference. If a
    candidate and the reference are alike, the two can be exchanged on any text, which flips the sign. All columns are
    flipped together, so that candidates that agree count as few; the rows of a group too. With one column and groups of
    one row this is the one-sided sign test that McNemar's exact test is made of.
    """
    sums = _by_group(differences, groups)
    sums = sums[np.abs(sums).sum(1) > 0]
    observed = sums.sum(0).max() if len(sums) else 0.0
    if observed <= 0:
        return 1.0
    draw = np.random.default_rng(seed)
    as_large = 0
    for start in range(0, FLIPS, _BLOCK):
        signs = draw.integers(0, 2, size=(min(_BLOCK, FLIPS - start), len(sums))) * 2.0 - 1.0
        as_large += int(((signs @ sums).max(1) >= observed - _EVEN).sum())
    return (1 + as_large) / (1 + FLIPS)


def _by_group(values: Array, groups: Array) -> Array:
    sums = np.zeros((int(groups.max()) + 1, values.shape[1]))
    np.add.at(sums, groups, values)
    return sums
