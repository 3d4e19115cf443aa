"""Candidates with their scores, and conclusions from the scores: the best one, the choice, the comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headscope.core.facts import Gap, Report
from headscope.core.facts.heads.tasks import Input
from headscope.slices.probe.arrays import Array
from headscope.slices.probe.data.rows import LabeledRows
from headscope.slices.probe.examined import new_names
from headscope.slices.probe.facts.result import (
    Baseline,
    BaselineKind,
    Candidate,
    Opinion,
    OpinionKind,
    Problem,
    Score,
    Selected,
    Standing,
    Vector,
    Versus,
)
from headscope.slices.probe.hidden.candidates import Vectors
from headscope.slices.probe.hidden.store import Features
from headscope.slices.probe.scoring.measures import SECOND, Measure, flags, logme, rank_correlation
from headscope.slices.probe.scoring.resampling import between, chance_of_best, chance_of_best_swapped, resample
from headscope.slices.probe.scoring.scores import (
    Predicted,
    Trial,
    one_thread,
    predict_constant,
    predict_from_vectors,
    predict_from_words,
)
from headscope.slices.probe.scoring.start import predictions_of

_CHUNK = 1024
_ALIKE = 1e-5
"""Vectors that differ by less are the same one, computed in another way."""
_SIGNIFICANT = 0.05
"""The largest p-value of a difference that is called real."""
_MAY_REPEAT = (Vector.EOS_TOKEN, Vector.POOLER, Vector.HEAD)
"""Vectors that may be an earlier one under another name: the head of a BERT reads its pooler."""


@dataclass(frozen=True, slots=True)
class Rated:
    """Predictions of all texts with their scores, the main one first; `drawn` is the bootstrap of the main score."""

    values: Array
    scores: tuple[Score, ...]
    drawn: Array

    @property
    def main(self) -> Score:
        """Score that candidates are compared by."""
        return self.scores[0]


def rate(predictions: Sequence[Array], trial: Trial) -> tuple[Rated, ...]:
    """Scores several predictions, with intervals of the same bootstrap. Each has the shape of `Trial.labels`."""
    measures = [trial.measure, *([SECOND[trial.problem]] if trial.problem in SECOND else [])]
    given = [(_score_parts(measure, values, trial), measure.value) for values in predictions for measure in measures]
    drawn = resample(given, trial)
    found = []
    for place, values in enumerate(predictions):
        first, scores = place * len(measures), []
        for at, measure in enumerate(measures, first):
            parts, value = given[at]
            scores.append(Score(measure.metric, float(value(parts.sum(0))), *between(drawn[:, at])))
        found.append(Rated(values, tuple(scores), drawn[:, first]))
    return tuple(found)


def _score_parts(measure: Measure, values: Array, trial: Trial) -> Array:
    return measure.parts(values, trial.labels, trial.classes)


@dataclass(frozen=True, slots=True)
class ScoredCandidate:
    """Candidates with their scores, and the predictions for each text.

    `inner` has a row for each candidate and a column for each fold: the score of the inner folds.
    """

    candidates: tuple[Candidate, ...]
    rated: tuple[Rated, ...]
    losses: tuple[Array, ...]
    inner: Array

    @property
    def best(self) -> int:
        """Place of the best candidate, the first of equal ones."""
        return int(np.argmax([item.mean for item in self.candidates]))

    def place(self, name: str) -> int | None:
        """Finds the place of a candidate."""
        return next((place for place, item in enumerate(self.candidates) if item.name == name), None)


def score_vectors(
    vectors: Sequence[Vectors], trial: Trial, new: dict[Vector, tuple[str, ...]], tell: Callable[[str], None]
) -> ScoredCandidate:
    """Scores each candidate. Candidates with equal numbers are scored once."""
    found: list[Predicted] = []
    evidence: list[float] = []
    sizes: list[int] = []
    twins: list[int | None] = []
    # LogME takes a column per class, or centered numbers, because its model has no offset.
    if trial.problem is Problem.REGRESSION:
        targets: Array = (trial.labels - trial.labels.mean())[:, None] / trial.labels.std()
    else:
        targets = flags(trial.labels, trial.classes)
    for place, item in enumerate(vectors):
        tell(f"scoring candidate {place + 1} of {len(vectors)}: {item.name}")
        matrix = item.make()
        before = vectors[:place] if item.pooling in _MAY_REPEAT else ()
        twin = next((at for at, other in enumerate(before) if _is_same(matrix, other)), None)
        twins.append(twin)
        sizes.append(matrix.shape[1])
        found.append(found[twin] if twin is not None else predict_from_vectors(matrix, trial))
        with one_thread():
            evidence.append(evidence[twin] if twin is not None else logme(matrix, targets))
    tell("resampling the scores")
    rated = rate([item.values for item in found], trial)
    every = np.arange(len(trial.labels))
    near = [None if item.near is None else trial.score(item.near, every) for item in found]
    candidates = tuple(
        Candidate(
            name=item.name,
            layer=item.layer,
            pooling=item.pooling,
            metric=rated[place].main.metric,
            mean=rated[place].main.mean,
            low=rated[place].main.low,
            high=rated[place].main.high,
            size=sizes[place],
            new=new.get(item.pooling, ()),
            same_as=None if twins[place] is None else vectors[twins[place] or 0].name,
            others=rated[place].scores[1:],
            logme=evidence[place],
            knn=near[place],
        )
        for place, item in enumerate(vectors)
    )
    return ScoredCandidate(
        candidates, rated, tuple(item.losses for item in found), np.array([item.inner for item in found])
    )


def _is_same(matrix: Array, other: Vectors) -> bool:
    made = other.make()
    if made.shape != matrix.shape:
        return False
    starts = range(0, len(matrix), _CHUNK)  # in pieces, so that a difference near the beginning ends it
    pairs = ((matrix[start : start + _CHUNK], made[start : start + _CHUNK]) for start in starts)
    return all(np.allclose(one, two, rtol=_ALIKE, atol=_ALIKE) for one, two in pairs)


def hear_opinions(candidates: Sequence[Candidate]) -> tuple[Opinion, ...]:
    """Gives the favorite of each second opinion, and the rank correlation with the main score. Twins count once."""
    alone = [item for item in candidates if item.same_as is None]
    found = []
    for kind in OpinionKind:
        values = [getattr(item, kind.value) for item in alone]
        best = alone[values.index(max(values))].name
        found.append(Opinion(kind, best, rank_correlation([item.mean for item in alone], values)))
    return tuple(found)


def score_of_choice(scored: ScoredCandidate, trial: Trial) -> Selected:
    """Scores predicting each fold with the candidate that does best in the inner folds of its training rows."""
    chosen = scored.inner.argmax(0)
    values = np.empty_like(trial.labels)
    for number, fold in enumerate(trial.folds):
        values[fold.test] = scored.rated[chosen[number]].values[fold.test]
    score = rate([values], trial)[0].main
    return Selected(score.mean, score.low, score.high, tuple(scored.candidates[place].name for place in chosen))


def compare_best(scored: ScoredCandidate, against: str, rival: Rated, trial: Trial) -> Versus:
    """Compares the best candidate with other predictions of the same texts."""
    best = scored.rated[scored.best]
    gain = best.main.mean - rival.main.mean
    chance = _p_value_against(scored, rival, trial)
    standing = Standing.BETTER if chance <= _SIGNIFICANT else Standing.UNDECIDED
    if gain <= 0:
        standing = Standing.NOT_BETTER
    return Versus(against, gain, *between(best.drawn - rival.drawn), chance, standing)


def _p_value_against(scored: ScoredCandidate, rival: Rated, trial: Trial) -> float:
    """Computes how likely it is that the best candidate gains as much on the rival by chance."""
    of_rows = trial.measure.of_rows
    if of_rows is None:
        parts = [_score_parts(trial.measure, item.values, trial) for item in scored.rated]
        return chance_of_best_swapped(
            parts, _score_parts(trial.measure, rival.values, trial), trial.measure.value, trial
        )
    reference = of_rows(rival.values, trial.labels)
    differences = np.stack([of_rows(item.values, trial.labels) - reference for item in scored.rated], 1)
    return chance_of_best(differences, trial.groups, trial.seed)


_CONSTANT = {
    Problem.SINGLE_LABEL: BaselineKind.MAJORITY,
    Problem.MULTI_LABEL: BaselineKind.EVERY_LABEL,
    Problem.REGRESSION: BaselineKind.MEAN,
}


def score_rivals(  # noqa: PLR0917  a step of `measure`, all of whose names it uses
    texts: LabeledRows, trial: Trial, report: Report, features: Features, outputs: tuple[int, ...] | Gap, input: Input
) -> tuple[dict[BaselineKind, Rated], tuple[Gap, ...]]:
    """Scores the baselines, and gives the reasons for those that aren't scored."""
    found, gaps = {_CONSTANT[texts.problem]: predict_constant(trial)}, []
    if input is not Input.TEXT:
        gaps.append(Gap(BaselineKind.TFIDF.value, f"the rows are {input.value} files, not texts"))
    elif (words := predict_from_words([" ".join(text) for text in texts.texts], trial)) is not None:
        found[BaselineKind.TFIDF] = words.values
    else:
        gaps.append(Gap(BaselineKind.TFIDF.value, "the texts hold no words of two letters or more"))
    if new_names(report):
        reason = "the checkpoint's head is not trained: weights that its scores depend on are newly initialized"
        gaps.append(Gap(BaselineKind.CHECKPOINT.value, reason))
    elif isinstance(outputs, Gap):
        gaps.append(outputs)
    elif not np.isfinite(features.scores).all():
        gaps.append(Gap(BaselineKind.CHECKPOINT.value, "the checkpoint's head gave NaN or infinite scores"))
    else:
        found[BaselineKind.CHECKPOINT] = predictions_of(texts, features.scores, outputs)
    return dict(zip(found, rate(list(found.values()), trial), strict=True)), tuple(gaps)


def baseline_of(kind: BaselineKind, rated: Rated) -> Baseline:
    """Builds the facts of a baseline from its scores."""
    main = rated.main
    return Baseline(kind, main.metric, main.mean, main.low, main.high, rated.scores[1:])


def head_against(scored: ScoredCandidate, rivals: dict[BaselineKind, Rated], trial: Trial) -> dict[str, Versus | None]:
    """Compares the vector that the head reads with a constant (`knows`) and with the words, if both were scored."""
    place = scored.place(Vector.HEAD.value)
    if place is None:
        return {"knows": None, "words": None}
    kinds = {"knows": _CONSTANT[trial.problem], "words": BaselineKind.TFIDF}
    alone = replace(scored, candidates=(scored.candidates[place],), rated=(scored.rated[place],))
    return {
        name: compare_best(alone, kind.value, rivals[kind], trial) if kind in rivals else None
        for name, kind in kinds.items()
    }
