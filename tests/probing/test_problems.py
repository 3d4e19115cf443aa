"""Classes, regression, several labels and LogME against scikit-learn, SciPy and a plain search, on matrices."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from scipy import optimize, stats
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import f1_score, make_scorer, r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.preprocessing import StandardScaler

from headscope.slices.probe.arrays import Array
from headscope.slices.probe.facts.result import Problem, Standing, Vector
from headscope.slices.probe.hidden.candidates import Vectors
from headscope.slices.probe.scoring.comparison import compare_best, hear_opinions, rate, score_of_choice, score_vectors
from headscope.slices.probe.scoring.measures import MACRO_F1, R2, logme, rank_correlation
from headscope.slices.probe.scoring.resampling import chance_of_best_swapped
from headscope.slices.probe.scoring.scores import (
    NEIGHBORS,
    RIDGES,
    STRENGTHS,
    WORD_RIDGES,
    WORD_STRENGTHS,
    Trial,
    make_trial,
    predict_constant,
    predict_from_vectors,
    predict_from_words,
)
from headscope.slices.probe.scoring.solvers import fit_logistic, rotate, sigmoid_loss, softmax_loss


def features(rows: int, width: int, seed: int) -> Array:
    draw = np.random.default_rng(seed)
    return (draw.normal(size=(rows, width)) * draw.uniform(0.1, 10, width) + draw.normal(size=width)).astype(np.float32)


def numbers(vectors: Array, seed: int, noise: float = 1.0) -> Array:
    draw = np.random.default_rng(seed)
    plain = (vectors - vectors.mean(0)) / vectors.std(0)
    return 40 + 3 * (plain[:, 0] - plain[:, 1] + noise * draw.normal(size=len(vectors)))


def several(vectors: Array, seed: int, classes: int = 4) -> Array:
    draw = np.random.default_rng(seed)
    plain = (vectors - vectors.mean(0)) / vectors.std(0)
    return (plain[:, :classes] + draw.normal(size=(len(vectors), classes)) > np.linspace(0, 1, classes)).astype(int)


def labels_of(problem: Problem, vectors: Array, seed: int) -> Array:
    flags = several(vectors, seed)
    return {
        Problem.SINGLE_LABEL: flags[:, 0], Problem.MULTI_LABEL: flags, Problem.REGRESSION: numbers(vectors, seed),
    }[problem]  # fmt: skip


def trial_of(labels: Array, problem: Problem, folds: int = 3, groups: Array | None = None) -> Trial:
    return make_trial(labels, np.arange(len(labels)) if groups is None else groups, folds, 0, problem)


def scaled(vectors: Array, fold: Any) -> tuple[Array, Array]:
    scaler = StandardScaler().fit(vectors[fold.train].astype(np.float64))
    return scaler.transform(vectors[fold.train].astype(np.float64)), scaler.transform(vectors[fold.test].astype(float))


def searched(trial: Trial, model: Any, grid: Any, scoring: Any, parts: Callable[[Any], tuple[Any, Any]]) -> Array:
    """What a grid search of scikit-learn in the training rows of each fold predicts; `parts` gives its two matrices."""
    expected = np.empty_like(trial.labels)
    for fold in trial.folds:
        assert not set(trial.groups[fold.train]) & set(trial.groups[fold.test])
        train, test = parts(fold)
        search = GridSearchCV(model, grid, cv=list(fold.inner), scoring=scoring)
        expected[fold.test] = search.fit(train, trial.labels[fold.train]).predict(test)
    return expected


@pytest.mark.parametrize("width", [6, 80])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_fit_is_that_of_scikit_learn(width: int, classes: int) -> None:
    """More features than rows and fewer; the rotation and the scales change no score."""
    vectors = StandardScaler().fit_transform(features(60, width, seed=0).astype(float))
    labels = np.random.default_rng(1).integers(0, classes, 60)
    labels[:classes] = np.arange(classes)
    given = rotate(vectors, vectors[:9])
    targets = np.eye(classes)[labels] if classes > 2 else labels[:, None].astype(float)
    loss = softmax_loss if classes > 2 else sigmoid_loss
    for strength in STRENGTHS:
        plain = LogisticRegression(C=strength, tol=1e-10, max_iter=10_000).fit(vectors, labels)
        found = fit_logistic(given.train, targets, strength, sizes=given.sizes, loss=loss)(given.test)
        expected = plain.decision_function(vectors[:9]).reshape(9, -1)
        if classes > 2:
            found, expected = (table - table.mean(1, keepdims=True) for table in (found, expected))
        assert found == pytest.approx(expected, abs=5e-3)


@pytest.mark.parametrize("width", [8, 150])
def test_numbers_are_predicted_as_ridge_of_scikit_learn_predicts_them(width: int) -> None:
    vectors = features(120, width, seed=0)
    labels = numbers(vectors, seed=1)
    trial = trial_of(labels, Problem.REGRESSION, groups=np.arange(120) // 2)
    found = predict_from_vectors(vectors, trial)
    expected = searched(trial, Ridge(), {"alpha": list(RIDGES)}, "r2", lambda fold: scaled(vectors, fold))
    assert found.values == pytest.approx(expected, abs=1e-6)
    assert R2.score(found.values, labels, 0) == pytest.approx(r2_score(labels, expected))
    assert found.losses == pytest.approx((labels - expected) ** 2, abs=1e-5)


def test_several_labels_are_predicted_as_one_against_the_rest_predicts_them() -> None:
    vectors = features(150, 10, seed=0)
    labels = several(vectors, seed=1)
    trial = trial_of(labels, Problem.MULTI_LABEL)
    found = predict_from_vectors(vectors, trial)
    score = make_scorer(f1_score, average="macro", zero_division=np.nan)
    plain, grid = OneVsRestClassifier(LogisticRegression(max_iter=5000, tol=1e-8)), {"estimator__C": list(STRENGTHS)}
    expected = searched(trial, plain, grid, score, lambda fold: scaled(vectors, fold))
    assert (found.values == expected).mean() >= 0.995
    assert MACRO_F1.score(expected, labels, 4) == pytest.approx(f1_score(labels, expected, average="macro"))
    assert 0.4 < MACRO_F1.score(found.values, labels, 4) < 0.95


def test_folds_of_several_labels_share_the_rare_ones() -> None:
    draw = np.random.default_rng(0)
    labels = (draw.random((200, 3)) < [0.5, 0.3, 0.05]).astype(int)
    labels[:6, 2] = 1
    trial = trial_of(labels, Problem.MULTI_LABEL, folds=5)
    rare = [int(labels[fold.test, 2].sum()) for fold in trial.folds]
    assert max(rare) - min(rare) <= 2
    assert min(rare) > 0


def test_macro_f1_is_that_of_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    labels, found = draw.integers(0, 4, 60), draw.integers(0, 5, 60)
    found[found == 4] = -1  # a class that the data don't have
    assert MACRO_F1.score(found, labels, 4) == pytest.approx(
        f1_score(labels, found, average="macro", labels=list(range(4)))
    )


@pytest.mark.parametrize("problem", list(Problem))
def test_neighbors_are_those_of_scikit_learn(problem: Problem) -> None:
    vectors = features(90, 5, seed=3)
    labels = labels_of(problem, vectors, 0)
    trial = trial_of(labels, problem)
    kind = KNeighborsRegressor if problem is Problem.REGRESSION else KNeighborsClassifier
    expected = np.empty_like(labels)
    for fold in trial.folds:
        train, test = scaled(vectors, fold)
        expected[fold.test] = kind(NEIGHBORS).fit(train, labels[fold.train]).predict(test)
    assert predict_from_vectors(vectors, trial).near == pytest.approx(expected)


def test_constants_are_those_of_scikit_learn() -> None:
    for problem, labels, plain in (
        (Problem.REGRESSION, np.arange(30.0) ** 2, DummyRegressor()),
        (Problem.SINGLE_LABEL, np.array([0] * 12 + [1] * 18), DummyClassifier(strategy="most_frequent")),
    ):
        trial = trial_of(labels, problem)
        for fold in trial.folds:
            expected = plain.fit(fold.train[:, None], labels[fold.train]).predict(fold.test[:, None])
            assert predict_constant(trial)[fold.test] == pytest.approx(expected)
    flags = np.array([[1, 0], [0, 1], [1, 1]] * 10)
    constant = predict_constant(trial_of(flags, Problem.MULTI_LABEL))
    assert f1_score(flags, constant, average="macro") == max(
        f1_score(flags, np.broadcast_to(row, flags.shape), average="macro", zero_division=0)
        for row in ([0, 0], [0, 1], [1, 0], [1, 1])
    )


@pytest.mark.parametrize("problem", [Problem.SINGLE_LABEL, Problem.REGRESSION])
def test_words_predict_as_scikit_learn_does(problem: Problem) -> None:
    draw = np.random.default_rng(0)
    values = draw.normal(size=90)
    signs = ["up" if value + draw.normal() / 3 > 0 else "down" for value in values]
    texts = [f"{sign} word{draw.integers(9)} word{draw.integers(9)} {sign}"[:: draw.choice([1, -1])] for sign in signs]

    def parts(fold: Any) -> tuple[Any, Any]:
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        train = words.fit_transform([texts[row] for row in fold.train])
        return train, words.transform([texts[row] for row in fold.test])

    if problem is Problem.REGRESSION:
        trial = trial_of(values, problem)
        expected = searched(trial, Ridge(), {"alpha": list(WORD_RIDGES)}, "r2", parts)
        assert predict_from_words(texts, trial).values == pytest.approx(expected, abs=1e-3)
        assert r2_score(values, expected) > 0.3
    else:
        trial = trial_of((values > 0).astype(int), problem)
        expected = searched(trial, LogisticRegression(max_iter=1000), {"C": list(WORD_STRENGTHS)}, None, parts)
        assert (predict_from_words(texts, trial).values == expected).mean() >= 0.99
        assert 0.6 < (expected == trial.labels).mean() < 1


def test_the_interval_of_r2_is_the_bootstrap_of_scipy() -> None:
    draw = np.random.default_rng(0)
    labels = draw.normal(size=200) + 1e6  # far from 0, where sums of squares lose digits
    found = labels + draw.normal(size=200) * 0.5
    rated = rate([found], trial_of(labels, Problem.REGRESSION))[0].main
    expected = stats.bootstrap((labels, found), r2_score, paired=True, vectorized=False, method="percentile",
                               n_resamples=500, rng=np.random.default_rng(1)).confidence_interval  # fmt: skip
    assert rated.mean == pytest.approx(r2_score(labels, found))
    assert (rated.low, rated.high) == pytest.approx((expected.low, expected.high), abs=0.02)


def evidence(vectors: Array, target: Array) -> float:
    """The largest log evidence a row, by a search over alpha and beta in the density of the target itself."""

    def less(logs: Array) -> float:
        alpha, beta = np.exp(np.clip(logs, -40, 40))
        covariance = np.eye(len(target)) / beta + vectors @ vectors.T / alpha
        return -float(stats.multivariate_normal(cov=covariance, allow_singular=False).logpdf(target))

    starts = [(-3.0, 0.0), (1.0, 0.0), (5.0, 1.0)]
    found = [optimize.minimize(less, start, method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-8}).fun
             for start in starts]  # fmt: skip
    return -min(found) / len(target)


@pytest.mark.parametrize(("rows", "width"), [(30, 5), (20, 40)])
def test_logme_is_the_largest_evidence(rows: int, width: int) -> None:
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(rows, width)) * draw.uniform(0.3, 3, width) + 0.5
    labels = (vectors[:, 0] + draw.normal(size=rows) > 0.5).astype(int)
    targets = np.eye(2)[labels]
    expected = np.mean([evidence(vectors, target) for target in targets.T])
    assert logme(vectors, targets) == pytest.approx(expected, abs=1e-5)
    numbers_ = (vectors[:, :1] * 2 + draw.normal(size=(rows, 1))) * 3
    assert logme(vectors, numbers_) == pytest.approx(evidence(vectors, numbers_[:, 0]), abs=1e-5)


def test_logme_of_better_vectors_is_higher() -> None:
    vectors = features(80, 6, seed=0)
    clear, faint = (numbers(vectors, seed=1, noise=noise) for noise in (0.1, 5.0))
    better, worse = (logme(vectors, stats.zscore(given)[:, None]) for given in (clear, faint))
    assert better > worse
    assert np.isfinite(logme(np.zeros((20, 3)), np.ones((20, 1)) * np.arange(20)[:, None]))


def test_ranks_are_correlated_as_scipy_correlates_them() -> None:
    one, other = [1.0, 3.0, 2.0, 2.0, 9.0], [0.1, 0.2, 0.2, 0.5, 0.4]
    assert rank_correlation(one, other) == pytest.approx(stats.spearmanr(one, other).statistic)
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None


@pytest.mark.parametrize("problem", list(Problem))
def test_a_better_vector_is_told_from_noise(problem: Problem) -> None:
    good, bad = features(90, 4, seed=0), features(90, 4, seed=9)
    trial = trial_of(labels_of(problem, good, 1), problem)
    made = [
        Vectors(name, None, Vector.MAX, lambda given=given: given) for name, given in (("bad", bad), ("good", good))
    ]
    once, again = (score_vectors(made, trial, {}, lambda step: None) for _ in range(2))
    assert once.candidates == again.candidates
    assert once.candidates[once.best].name == "good"
    versus = compare_best(once, "bad", once.rated[0], trial)
    assert versus.verdict is Standing.BETTER
    assert versus.p_value <= 0.001
    assert versus.low > 0.08
    assert compare_best(once, "good", once.rated[1], trial).verdict is Standing.NOT_BETTER
    chosen = score_of_choice(once, trial)
    assert (chosen.names, chosen.mean) == (("good",) * 3, once.candidates[1].mean)
    assert [item.best for item in hear_opinions(once.candidates)] == ["good", "good"]


def test_exchanging_predictions_gives_false_alarms_at_the_promised_rate() -> None:
    """Predictions of several labels that are wrong as often as those they are compared with."""
    alarms, runs = 0, 120
    for seed in range(runs):
        draw = np.random.default_rng(seed)
        labels = (draw.random((40, 3)) < 0.4).astype(int)
        told = [np.where(draw.random((40, 3)) < 0.3, 1 - labels, labels) for _ in range(4)]
        trial = Trial(labels, np.arange(40), (), seed, Problem.MULTI_LABEL, 3)
        parts = [MACRO_F1.parts(item, labels, 3) for item in told]
        alarms += chance_of_best_swapped(parts[1:], parts[0], MACRO_F1.value, trial) <= 0.05
    assert stats.binomtest(int(alarms), runs, 0.05).pvalue > 0.01


def test_a_class_that_a_training_fold_lacks_does_no_harm() -> None:
    vectors = features(40, 3, seed=0)
    labels = np.zeros((40, 2), int)
    labels[:20, 0] = 1
    labels[0, 1] = 1  # one text only
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = predict_from_vectors(vectors, trial_of(labels, Problem.MULTI_LABEL))
    assert np.isfinite(found.losses).all()
    assert not found.values[:, 1].any()
