"""The scores against scikit-learn and SciPy run plainly, and the tests of pairs against simulations."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold
from sklearn.preprocessing import StandardScaler

from headscope.errors import Unsupported
from headscope.slices.probe.arrays import Array
from headscope.slices.probe.facts.result import Vector
from headscope.slices.probe.hidden.candidates import Vectors as Vectors_
from headscope.slices.probe.scoring.comparison import score_of_choice, score_vectors
from headscope.slices.probe.scoring.resampling import chance_of_best, interval
from headscope.slices.probe.scoring.scores import (
    STRENGTHS,
    Trial,
    check_installed,
    make_trial,
    predict_from_vectors,
)


def data(rows: int, width: int, seed: int) -> tuple[Array, Array]:
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 3, rows)
    vectors = draw.normal(size=(rows, width)) * draw.uniform(0.1, 10, width) + draw.normal(size=width)
    vectors[:, :3] += np.eye(3)[labels] * vectors[:, :3].std(0)
    return vectors.astype(np.float32), labels


def single(labels: Array, folds: int = 5) -> Trial:
    return make_trial(labels, np.arange(len(labels)), folds, 0)


def test_predictions_are_those_of_scikit_learn_run_plainly() -> None:
    """A grid search inside each fold, written with scikit-learn's own parts."""
    vectors, labels = data(240, 20, seed=1)
    groups = np.arange(240) // 2
    found = predict_from_vectors(vectors, make_trial(labels, groups, 4, seed=3))
    expected = np.empty_like(labels)
    for train, test in StratifiedGroupKFold(4, shuffle=True, random_state=3).split(vectors, labels, groups):
        scaler = StandardScaler().fit(vectors[train].astype(np.float64))
        inner = StratifiedGroupKFold(3, shuffle=True, random_state=3).split(train, labels[train], groups[train])
        search = GridSearchCV(LogisticRegression(max_iter=1000), {"C": list(STRENGTHS)}, cv=list(inner))
        search.fit(scaler.transform(vectors[train].astype(np.float64)), labels[train])
        expected[test] = search.predict(scaler.transform(vectors[test].astype(np.float64)))
    assert (found.values == expected).mean() >= 0.99
    assert 0.5 < (expected == labels).mean() < 0.95


def test_equal_texts_stay_in_one_fold_inside_and_outside() -> None:
    draw = np.random.default_rng(0)
    groups = draw.integers(0, 40, 200)
    labels = groups % 3
    trial = make_trial(labels, groups, 5, seed=0)
    assert sorted(np.concatenate([fold.test for fold in trial.folds])) == list(range(200))
    for fold in trial.folds:
        assert not set(groups[fold.train]) & set(groups[fold.test])
        for train, test in fold.inner:
            assert not set(groups[fold.train[train]]) & set(groups[fold.train[test]])


def test_features_that_differ_by_rounding_only_are_not_blown_up() -> None:
    """The first token of a decoder is the same for every text, but for rounding that may follow the label."""
    labels = np.arange(120) % 2
    vectors = np.full((120, 4), 3.0, np.float32) + (labels * 1e-6)[:, None].astype(np.float32)
    assert len(np.unique(vectors)) == 2
    found = predict_from_vectors(vectors, single(labels))
    assert abs((found.values == labels).mean() - 0.5) < 0.15


def test_the_interval_is_the_bootstrap_of_scipy() -> None:
    right = (np.random.default_rng(0).random(300) < 0.8).astype(float)
    low, high = interval(right, single(np.arange(300) % 2))
    expected = stats.bootstrap((right,), np.mean, method="percentile", n_resamples=4000, rng=np.random.default_rng(1))
    assert low == pytest.approx(expected.confidence_interval.low, abs=0.01)
    assert high == pytest.approx(expected.confidence_interval.high, abs=0.01)


@pytest.mark.parametrize(("won", "lost"), [(10, 2), (30, 20), (8, 8), (1, 5), (0, 0)])
def test_with_one_candidate_the_test_is_mcnemar_s(won: int, lost: int) -> None:
    differences = np.array([1.0] * won + [-1.0] * lost + [0.0] * 50)[:, None]
    expected = stats.binomtest(won, won + lost, alternative="greater").pvalue if won > lost else 1.0
    assert chance_of_best(differences, np.arange(len(differences)), 0) == pytest.approx(expected, abs=0.012)


def test_repeated_texts_are_no_further_evidence() -> None:
    differences = np.array([1.0] * 9 + [-1.0] * 3)[:, None]
    once = chance_of_best(differences, np.arange(12), 0)
    assert chance_of_best(np.repeat(differences, 5, 0), np.repeat(np.arange(12), 5), 0) == pytest.approx(once, abs=0.01)


def test_without_a_difference_the_best_of_many_is_called_better_in_one_of_twenty_runs() -> None:
    """Each candidate is right as often as the reference, on texts of its own; the best of them is compared."""
    alarms, naive, runs = 0, 0, 400
    for seed in range(runs):
        draw = np.random.default_rng(seed)
        shared = draw.random(150) < 0.5  # candidates of one model are right on the same texts
        right = np.where(shared[:, None], draw.random((150, 1)) < 0.8, draw.random((150, 13)) < 0.8).astype(float)
        differences = right[:, 1:] - right[:, :1]
        alarms += chance_of_best(differences, np.arange(150), seed) <= 0.05
        best = differences[:, [differences.sum(0).argmax()]]
        naive += chance_of_best(best, np.arange(150), seed) <= 0.05
    assert stats.binomtest(int(alarms), runs, 0.05).pvalue > 0.01
    assert naive / runs > 0.12  # what the correction is for


def test_the_choice_inside_the_folds_is_not_optimistic() -> None:
    """Vectors of noise: the best of 12 looks better than chance, the choice does not."""
    best, chosen = [], []
    for seed in range(6):
        draw = np.random.default_rng(seed)
        labels = np.arange(80) % 2
        made = [draw.normal(size=(80, 3)) for _ in range(12)]
        vectors = [Vectors_(f"v{at}", None, Vector.MAX, lambda given=given: given) for at, given in enumerate(made)]
        scored = score_vectors(vectors, single(labels, 3), {}, lambda step: None)
        best.append(scored.candidates[scored.best].mean)
        chosen.append(score_of_choice(scored, single(labels, 3)).mean)
    assert np.mean(best) > 0.55
    assert abs(np.mean(chosen) - 0.5) < 0.05


def test_a_candidate_with_the_numbers_of_another_is_named() -> None:
    vectors, labels = data(60, 4, seed=0)
    both = [Vectors_("a", 2, Vector.MAX, lambda: vectors), Vectors_("head", None, Vector.HEAD, lambda: vectors + 1e-7)]
    scored = score_vectors(both, single(labels, 3), {Vector.HEAD: ("dense.weight",)}, lambda step: None)
    first = scored.candidates[0]
    assert scored.candidates[1] == replace(
        first, name="head", layer=None, pooling=Vector.HEAD, new=("dense.weight",), same_as="a"
    )


def test_an_old_scikit_learn_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sklearn.__version__", "1.3.2")
    with pytest.raises(Unsupported, match=r"scikit-learn 1\.9 .* 1\.3\.2 "):
        check_installed()
