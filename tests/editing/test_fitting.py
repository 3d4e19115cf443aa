"""Fits and figures on numbers: scikit-learn's metrics and a search over every candidate are the oracles."""

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.metrics import f1_score, log_loss

from headscope.copies.facts import FitFigure, FitKind, FitMetric
from headscope.errors import UsageError
from headscope.slices.edit.fitting import ScoredTexts, figures_of, fitted_temperature, fitted_thresholds

NAMES = ("a", "b", "c")


def drawn(seed: int, is_softmax: bool, size: int = 400, classes: int = 3, truth_at: float = 2.5) -> ScoredTexts:
    """Logits, and labels drawn from the probabilities that these logits have at a temperature."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(0, 3, (size, classes))
    if is_softmax:
        chances = softmax(logits / truth_at, 1)
        truth = np.eye(classes)[(draw.random((size, 1)) > chances.cumsum(1)[:, :-1]).sum(1)]
    else:
        truth = (draw.random(logits.shape) < expit(logits / truth_at)).astype(float)
    return ScoredTexts(logits, truth, is_softmax)


def nll(texts: ScoredTexts, temperature: float) -> float:
    logits = texts.logits / temperature
    if texts.is_softmax:
        return float(log_loss(texts.truth.argmax(1), softmax(logits, 1), labels=range(logits.shape[1])))
    return float(np.mean([log_loss(texts.truth[:, at], expit(logits[:, at]), labels=(0, 1)) for at in range(3)]))


@pytest.mark.parametrize("is_softmax", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_no_temperature_of_a_search_is_better(seed: int, is_softmax: bool) -> None:
    texts = drawn(seed, is_softmax)
    found = fitted_temperature(texts)
    best = min(nll(texts, temperature) for temperature in np.geomspace(0.5, 10, 60))
    assert nll(texts, found) <= best + 1e-9
    assert 1.8 < found < 3.5  # the labels were drawn at 2.5


def test_labels_that_are_all_right_or_have_nothing_to_do_with_the_scores_fit_no_temperature() -> None:
    logits = np.random.default_rng(0).normal(0, 3, (100, 3))
    with pytest.raises(UsageError, match="predicts all texts correctly"):
        fitted_temperature(ScoredTexts(logits, np.eye(3)[logits.argmax(1)], True))
    with pytest.raises(UsageError, match="predicts all texts correctly"):  # a sharp model: the loss is 0 from 1 on
        fitted_temperature(ScoredTexts(logits * 1e3, np.eye(3)[logits.argmax(1)], True))
    with pytest.raises(UsageError, match="predicts all texts correctly"):
        fitted_temperature(ScoredTexts(logits * 1e3, (logits > 0) * 1.0, False))
    with pytest.raises(UsageError, match="say nothing"):
        fitted_temperature(ScoredTexts(np.zeros((100, 3)), np.eye(3)[logits.argmax(1)], True))
    with pytest.raises(UsageError, match="say nothing") as caught:
        fitted_temperature(ScoredTexts(logits, np.eye(3)[logits.argmin(1)], True))
    assert "is trained" in caught.value.hint


def best_f1(chances: np.ndarray, truth: np.ndarray) -> float:
    values = np.unique(chances)
    limits = [0.0, *(values[1:] + values[:-1]) / 2]
    return max(float(f1_score(truth, chances > limit, zero_division=0)) for limit in limits)


@pytest.mark.parametrize("seed", range(3))
def test_no_threshold_of_a_search_has_a_larger_f1(seed: int) -> None:
    texts = drawn(seed, False, size=60)
    texts = ScoredTexts(np.round(texts.logits, 1), texts.truth, False)  # equal scores
    found = fitted_thresholds(texts, (0, 1, 2))
    for at, limit in found.items():
        chances = expit(texts.logits[:, at])
        assert 0 < limit < 1 and not np.isclose(chances, limit, rtol=1e-12).any()
        assert f1_score(texts.truth[:, at], chances > limit) == pytest.approx(best_f1(chances, texts.truth[:, at]))


def test_of_two_classes_of_a_softmax_the_threshold_is_that_of_the_positive_one() -> None:
    texts = drawn(3, True, classes=2)
    found = fitted_thresholds(texts, (1,))
    chances = softmax(texts.logits, 1)[:, 1]
    assert f1_score(texts.truth[:, 1], chances > found[1]) == pytest.approx(best_f1(chances, texts.truth[:, 1]))
    shift = np.array([0, np.log((1 - found[1]) / found[1])])
    assert np.array_equal((texts.logits + shift).argmax(1) == 1, chances > found[1])


def test_a_rare_class_gets_no_threshold() -> None:
    texts = drawn(0, False)
    truth = texts.truth.copy()
    truth[:, 1] = 0
    truth[:4, 1] = 1
    assert fitted_thresholds(ScoredTexts(texts.logits, truth, False), (0, 1, 2)).keys() == {0, 2}


def figure(found: tuple[FitFigure, ...], metric: FitMetric, label: str = "") -> FitFigure:
    return next(item for item in found if (item.metric, item.label) == (metric, label))


def ece(texts: ScoredTexts) -> float:
    """As its definition says: bin by bin, text by text."""
    if texts.is_softmax:
        chances = softmax(texts.logits, 1)
        pairs = [
            (float(row.max()), float(truth[row.argmax()])) for row, truth in zip(chances, texts.truth, strict=True)
        ]
    else:
        pairs = list(zip(expit(texts.logits).ravel().tolist(), texts.truth.ravel().tolist(), strict=True))
    total = 0.0
    for at in range(15):
        inside = [pair for pair in pairs if at / 15 < pair[0] <= (at + 1) / 15]
        if inside:
            confidence, right = np.mean(inside, 0)
            total += len(inside) / len(pairs) * abs(confidence - right)
    return total


@pytest.mark.parametrize("is_softmax", [True, False])
def test_figures_are_those_of_scikit_learn(is_softmax: bool) -> None:
    before = drawn(1, is_softmax)
    after = before.changed(2.0, np.array([0.5, 0.0, -1.0]))
    found = figures_of(FitKind.TEMPERATURE, (before, after), NAMES, 0, [])
    assert found[0].metric is FitMetric.NLL
    for side, texts in (("before", before), ("after", after)):
        told = np.eye(3)[texts.logits.argmax(1)] if is_softmax else texts.logits > 0
        assert getattr(figure(found, FitMetric.NLL), side).value == pytest.approx(nll(texts, 1.0))
        assert getattr(figure(found, FitMetric.ECE), side).value == pytest.approx(ece(texts))
        assert getattr(figure(found, FitMetric.MACRO_F1), side).value == pytest.approx(
            f1_score(texts.truth, told, average="macro")
        )
        for at, name in enumerate(NAMES):
            assert getattr(figure(found, FitMetric.F1, name), side).value == pytest.approx(
                f1_score(texts.truth[:, at], told[:, at])
            )


def test_intervals_hold_the_true_value_as_often_as_they_say() -> None:
    """The mean loss of many drawn sets of texts, against that of a very large one."""
    whole = nll(drawn(999, True, size=30_000), 1.0)
    inside = 0
    for seed in range(60):
        texts = drawn(seed, True, size=100)
        first = figure(figures_of(FitKind.TEMPERATURE, (texts, texts), NAMES, seed, []), FitMetric.NLL)
        inside += first.before.low <= whole <= first.before.high
        assert first.change.low == first.change.high == 0
    assert inside >= 51  # 57 are expected, less three standard deviations


def test_the_figure_that_was_fitted_comes_first() -> None:
    texts = drawn(1, False)
    assert figures_of(FitKind.THRESHOLDS, (texts, texts), NAMES, 0, [0, 1, 2])[0].metric is FitMetric.MACRO_F1
    one = figures_of(FitKind.THRESHOLDS, (texts, texts), NAMES, 0, [1])[0]
    assert (one.metric, one.label) == (FitMetric.F1, "b")
