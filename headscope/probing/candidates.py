"""The candidates that the stored vectors give, and the score of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headscope.facts import Head, Unavailable
from headscope.facts.probe import Candidate, Metric, Selected, Standing, Vector, Versus
from headscope.probing.pooled import Part
from headscope.probing.scores import Predicted, Trial, chance_of_best, interval, predict_from_vectors
from headscope.probing.store import Array, Features, name_of_part, whole_array

_LAST = 4
_CHUNK = 1024
_ALIKE = 1e-5
_SIGNIFICANT = 0.05
_MAY_REPEAT = (Vector.EOS_TOKEN, Vector.POOLER, Vector.HEAD)


@dataclass(frozen=True, slots=True)
class Vectors:
    """A candidate before it is scored: `make` gives its matrix, with a row for each text.

    `parts` are the stored vectors that it is made of.
    """

    name: str
    layer: int | None
    pooling: Vector
    make: Callable[[], Array]
    parts: tuple[Part, ...] = ()


def classifier_of(head: Head | None) -> str | Unavailable:
    """The module of the last linear stage of a head path: its input is what the head classifies."""
    if head is None:
        return Unavailable("head", "the head could not be traced")
    linear = [stage for stage in head.stages if stage.operation == "linear"]
    if not linear:
        return Unavailable("head", "no stage of the head is linear")
    if linear[-1].functional or not linear[-1].module:
        return Unavailable("head", "the last linear stage of the head is not a module")
    return linear[-1].module


def stages_before(head: Head, classifier: str) -> frozenset[str]:
    """The parameters of the stages that a vector passes on its way to the classifier."""
    places = [stage.index for stage in head.stages if stage.module == classifier]
    before = (stage for stage in head.stages if stage.index < max(places))
    return frozenset(name for stage in before for name in stage.parameters) if places else frozenset()


def list_vectors(features: Features) -> tuple[Vectors, ...]:
    """Every candidate, the curves over the layers first."""
    parts = features.parts
    ordered = sorted(parts, key=lambda part: (list(Vector).index(part[0]), part[1] or 0))
    of_layers = [part for part in ordered if part[1] is not None]
    beside = [part for part in ordered if part[1] is None]
    stored = [Vectors(_name(*part), part[1], part[0], _stored(parts[part]), (part,)) for part in of_layers]
    alone = [Vectors(_name(*part), None, part[0], _stored(parts[part]), (part,)) for part in beside]
    return (*stored, *_combined(features), *alone)


def _name(vector: Vector, layer: int | None) -> str:
    return name_of_part((vector, layer))


def _stored(array: Array) -> Callable[[], Array]:
    return lambda: whole_array(array)


def _combined(features: Features) -> Iterator[Vectors]:
    """The candidates that are made of several stored vectors."""
    parts, last = features.parts, features.layers - 1

    def first(layer: int) -> Array:
        return whole_array(parts[Vector.FIRST_TOKEN, layer])

    def mean(layer: int) -> Array:
        return whole_array(parts[Vector.MASKED_MEAN, layer])

    means = [layer for layer in (1, last) if (Vector.MASKED_MEAN, layer) in parts]
    if (Vector.MASKED_MEAN, last) in parts and (Vector.MAX, last) in parts:
        both = Vector.MEAN_AND_MAX
        yield Vectors(
            _name(both, last),
            last,
            both,
            lambda: np.hstack([mean(last), whole_array(parts[Vector.MAX, last])]),
            ((Vector.MASKED_MEAN, last), (Vector.MAX, last)),
        )
    if last > 1 and len(means) == len((1, last)) and _are_of_one_size(parts, Vector.MASKED_MEAN, means):
        ends = tuple((Vector.MASKED_MEAN, layer) for layer in means)
        both = Vector.FIRST_LAST_MEAN
        yield Vectors(both.value, None, both, lambda: (mean(1) + mean(last)) / 2, ends)
    four = [layer for layer in range(max(last - _LAST + 1, 1), last + 1) if (Vector.FIRST_TOKEN, layer) in parts]
    if len(four) == _LAST:
        concat, average = Vector.LAST_FOUR_CONCAT, Vector.LAST_FOUR_AVERAGE
        firsts = tuple((Vector.FIRST_TOKEN, layer) for layer in four)
        yield Vectors(concat.value, None, concat, lambda: np.hstack([first(layer) for layer in four]), firsts)
        if _are_of_one_size(parts, Vector.FIRST_TOKEN, four):
            yield Vectors(
                average.value, None, average, lambda: np.mean([first(layer) for layer in four], axis=0), firsts
            )


def _are_of_one_size(parts: dict[Part, Array], vector: Vector, layers: Sequence[int]) -> bool:
    return len({parts[vector, layer].shape[1] for layer in layers}) == 1


@dataclass(frozen=True, slots=True)
class Scored:
    """The candidates with their scores; `correct` has a row for each text and a column for each candidate.

    `inner` has a row for each candidate and a column for each fold: the score of the inner folds.
    """

    candidates: tuple[Candidate, ...]
    correct: Array
    inner: Array

    @property
    def best(self) -> int:
        """The place of the best candidate, the first of several."""
        return int(self.correct.mean(0).argmax())


def score_vectors(
    vectors: Sequence[Vectors], trial: Trial, new: dict[Vector, tuple[str, ...]], tell: Callable[[str], None]
) -> Scored:
    """The score of each candidate. Candidates with equal numbers are scored once."""
    candidates: list[Candidate] = []
    found: list[Predicted] = []
    for place, item in enumerate(vectors):
        tell(f"scoring candidate {place + 1} of {len(vectors)}: {item.name}")
        matrix = item.make()
        twin = _twin(item, matrix, vectors[:place])
        found.append(found[twin] if twin is not None else predict_from_vectors(matrix, trial))
        score = interval((found[-1].classes == trial.labels).astype(float), trial)
        candidates.append(
            Candidate(
                name=item.name,
                layer=item.layer,
                pooling=item.pooling,
                metric=Metric.ACCURACY,
                mean=score.mean,
                low=score.low,
                high=score.high,
                size=matrix.shape[1],
                new=new.get(item.pooling, ()),
                same_as=None if twin is None else vectors[twin].name,
            )
        )
    correct = np.stack([item.classes == trial.labels for item in found], 1).astype(float)
    return Scored(tuple(candidates), correct, np.array([item.inner for item in found]))


def _twin(item: Vectors, matrix: Array, before: Sequence[Vectors]) -> int | None:
    """The place of an earlier candidate with the same numbers."""
    if item.pooling not in _MAY_REPEAT:
        return None
    return next((place for place, other in enumerate(before) if _is_same(matrix, other)), None)


def _is_same(matrix: Array, other: Vectors) -> bool:
    made = other.make()
    if made.shape != matrix.shape:
        return False
    starts = range(0, len(matrix), _CHUNK)
    pairs = ((matrix[start : start + _CHUNK], made[start : start + _CHUNK]) for start in starts)
    return all(np.allclose(one, two, rtol=_ALIKE, atol=_ALIKE) for one, two in pairs)


def score_of_choice(scored: Scored, trial: Trial) -> Selected:
    """The score of predicting each fold with the candidate that the inner folds of its training rows rank first."""
    chosen = scored.inner.argmax(0)
    correct = np.empty(len(trial.labels))
    for number, fold in enumerate(trial.folds):
        correct[fold.test] = scored.correct[fold.test, chosen[number]]
    score = interval(correct, trial)
    return Selected(score.mean, score.low, score.high, tuple(scored.candidates[place].name for place in chosen))


def compare_best(scored: Scored, against: str, correct: Array, trial: Trial) -> Versus:
    """The best candidate against something else that was right on the texts in `correct`."""
    differences = scored.correct - correct[:, None]
    score = interval(differences[:, scored.best], trial)
    chance = chance_of_best(differences, trial.groups, trial.seed)
    if score.mean <= 0:
        standing = Standing.NOT_BETTER
    else:
        standing = Standing.BETTER if chance <= _SIGNIFICANT else Standing.UNDECIDED
    return Versus(against, score.mean, score.low, score.high, chance, standing)
