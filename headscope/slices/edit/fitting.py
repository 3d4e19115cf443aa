"""Temperatures and thresholds fitted to logits and labels, and scores of held-out texts with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headscope.copies.facts import Estimate, FitFigure, FitKind, FitMetric
from headscope.errors import UsageError

FloatArray = np.ndarray[Any, Any]
CALIBRATION_BINS = 15
"""Of equal width, as in Guo et al., "On calibration of modern neural networks"."""
FIT_RESAMPLES = 1000
_LEAST, _MOST = 0.02, 50.0
"""The temperatures that are tried: a minimum beyond them is none."""
_EDGE = 1.01
_RARE = 5
"""Texts with and without a class that its threshold needs."""
_CONFIDENCE = 95


@dataclass(frozen=True, slots=True)
class ScoredTexts:
    """Logits and labels of texts, both [texts, classes]. A label is 0 or 1; with a softmax, each row has one 1."""

    logits: FloatArray
    truth: FloatArray
    is_softmax: bool

    def part(self, rows: FloatArray) -> ScoredTexts:
        """Selects some of the texts."""
        return ScoredTexts(self.logits[rows], self.truth[rows], self.is_softmax)

    def changed(self, temperature: float, shifts: FloatArray) -> ScoredTexts:
        """Adds `shifts` to the logits and divides them by the temperature; the texts stay the same."""
        return ScoredTexts((self.logits + shifts) / temperature, self.truth, self.is_softmax)


_ALL_RIGHT = (
    "the model predicts all texts correctly, or nearly all",
    "give texts that the model was not trained on, and more of them",
)
_UNRELATED = (
    "the scores say nothing about the labels",
    "check that the model is trained, and that the labels of the data are its classes",
)


def fitted_temperature(texts: ScoredTexts) -> float:
    """Finds the temperature with the smallest negative log likelihood. Raises UsageError if there is none."""
    from scipy.optimize import minimize_scalar

    margins = _score_margins(texts)
    if not (margins < 0).any():  # the loss falls with the temperature, whatever a search finds
        raise _no_temperature(*(_ALL_RIGHT if (margins > 0).any() else _UNRELATED))

    # The search is on a logarithmic scale: a temperature of 0.5 is as far from 1 as one of 2.
    def loss(power: float) -> float:
        return float(_text_losses(texts.changed(math.exp(power), np.zeros(1))).mean())

    ends = math.log(_LEAST), math.log(_MOST)
    found = math.exp(float(minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-6}).x))
    if not _LEAST * _EDGE < found < _MOST / _EDGE:
        raise _no_temperature(*(_ALL_RIGHT if found < 1 else _UNRELATED))
    return found


def _score_margins(texts: ScoredTexts) -> FloatArray:
    """Computes by how much the scores of true classes exceed those of the others.

    With a softmax, the smallest such margin of each text, [texts]; otherwise one for each class, [texts, classes].
    """
    if texts.is_softmax:
        own = np.where(texts.truth > 0, texts.logits, np.inf).min(1)
        found: FloatArray = own - np.where(texts.truth > 0, -np.inf, texts.logits).max(1)
        return found
    several: FloatArray = np.where(texts.truth > 0, texts.logits, -texts.logits)
    return several


def _no_temperature(why: str, hint: str) -> UsageError:
    return UsageError(f"no temperature between {_LEAST:g} and {_MOST:g} fits best: {why}", hint)


def fitted_thresholds(texts: ScoredTexts, classes: Sequence[int]) -> dict[int, float]:
    """Finds the threshold with the largest F1 for each class, and skips classes that are too rare."""
    found = {}
    for at in classes:
        has = texts.truth[:, at] > 0
        if min(has.sum(), (~has).sum()) >= _RARE:
            margins = texts.logits[:, at]
            if texts.is_softmax:
                margins = margins - texts.logits[:, 1 - at]
            found[at] = _best_threshold(_apply_sigmoid(margins), has)
    return found


def _best_threshold(chances: FloatArray, has: FloatArray) -> float:
    """Picks a threshold midway between two probabilities that occur; among equally good ones, the closest to 0.5."""
    order = np.argsort(-chances, kind="stable")
    ranked, hits = chances[order], np.cumsum(has[order])
    f1 = 2 * hits / (np.arange(1, len(ranked) + 1) + has.sum())
    below = np.append(ranked[1:], 0.0)
    middles = (ranked + below) / 2
    # No threshold is between equal probabilities, and one of 0 or 1 has no finite logit.
    usable = (ranked > below) & (middles > 0) & (middles < 1)
    best = f1 == f1[usable].max(initial=-1.0)
    candidates = middles[usable & best]
    return float(candidates[np.abs(candidates - 0.5).argmin()]) if len(candidates) else 0.5


def figures_of(kind: FitKind, pair: tuple[ScoredTexts, ScoredTexts], labels: Sequence[str], seed: int,
               fitted: Sequence[int]) -> tuple[FitFigure, ...]:  # fmt: skip
    """Computes figures of the same texts before and after; the fitted one is first, and `fitted` are its classes."""
    size = len(pair[0].truth)
    generator = np.random.default_rng(seed)
    # A bootstrap resample is the number of times that each text was drawn.
    counts = generator.multinomial(size, np.full(size, 1 / size), FIT_RESAMPLES).astype(float)
    weights = np.vstack([np.ones(size), counts])  # the texts themselves, and then resampled
    sides = [list(_compute_figures(side, labels, weights)) for side in pair]
    found = [
        FitFigure(metric, label, _build_estimate(before), _build_estimate(after), _build_estimate(after - before))
        for (metric, label, before), (_, _, after) in zip(*sides, strict=True)
    ]
    wanted = FitMetric.NLL if kind is FitKind.TEMPERATURE else FitMetric.MACRO_F1
    name = ""
    if kind is FitKind.THRESHOLDS and len(fitted) == 1:
        wanted, name = FitMetric.F1, labels[fitted[0]]
    return tuple(sorted(found, key=lambda item: item.metric is not wanted or (bool(name) and item.label != name)))


def _compute_figures(
    texts: ScoredTexts, labels: Sequence[str], weights: FloatArray
) -> Iterator[tuple[FitMetric, str, FloatArray]]:
    """Yields each figure as an array with one value per row of `weights`, [resamples, texts]."""
    total = weights.sum(1)
    yield FitMetric.NLL, "", weights @ _text_losses(texts) / total
    gaps = _calibration_gaps(texts)
    yield FitMetric.ECE, "", np.abs(weights @ gaps).sum(1) / total
    logits = texts.logits
    predicted = np.eye(logits.shape[1])[logits.argmax(1)] if texts.is_softmax else (logits > 0).astype(float)
    each: list[tuple[str, FloatArray]] = []
    for at, label in enumerate(labels):
        found, truth = predicted[:, at], texts.truth[:, at]
        if truth.any():
            both, either = weights @ (found * truth), weights @ (found + truth)
            each.append((label, np.divide(2 * both, either, out=np.zeros_like(both), where=either > 0)))
    yield FitMetric.MACRO_F1, "", np.mean([values for _, values in each], 0)
    for label, values in each:
        yield FitMetric.F1, label, values


def _text_losses(texts: ScoredTexts) -> FloatArray:
    """Computes the negative log likelihood of each text; for several labels, the mean over the classes."""
    if texts.is_softmax:
        from scipy.special import log_softmax

        found: FloatArray = -(log_softmax(texts.logits, axis=1) * texts.truth).sum(1)
        return found
    several: FloatArray = (np.logaddexp(0, texts.logits) - texts.logits * texts.truth).mean(1)
    return several


def _calibration_gaps(texts: ScoredTexts) -> FloatArray:
    """Computes how far the confidence is from the truth, for each text and bin: [texts, bins].

    With a softmax, only the class with the highest score counts; with several labels, all classes do, divided by their
    number.
    """
    if texts.is_softmax:
        from scipy.special import softmax

        chances = softmax(texts.logits, axis=1)
        top = chances.argmax(1)[:, None]
        chances, truth = np.take_along_axis(chances, top, 1), np.take_along_axis(texts.truth, top, 1)
    else:
        chances, truth = _apply_sigmoid(texts.logits), texts.truth
    places = np.clip(np.ceil(chances * CALIBRATION_BINS).astype(int) - 1, 0, CALIBRATION_BINS - 1)
    return np.stack([((chances - truth) * (places == at)).mean(1) for at in range(CALIBRATION_BINS)], 1)


def _apply_sigmoid(logits: FloatArray) -> FloatArray:
    from scipy.special import expit

    found: FloatArray = expit(logits)
    return found


def _build_estimate(values: FloatArray) -> Estimate:
    """Takes the first value as the estimate, and its interval from the others, which are resampled."""
    rest = (100 - _CONFIDENCE) / 2
    low, high = np.percentile(values[1:], (rest, 100 - rest))
    return Estimate(float(values[0]), float(low), float(high))
