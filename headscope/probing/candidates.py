"""The candidates that the stored vectors give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from headscope.facts import Head, Unavailable
from headscope.facts.probe import Vector
from headscope.probing.features import Array, Features

_LAST = 4


@dataclass(frozen=True, slots=True)
class Vectors:
    """A candidate before it is scored: `make` gives its matrix, with a row for each text."""

    name: str
    layer: int | None
    pooling: Vector
    make: Callable[[], Array]


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
    stored = [Vectors(_name(*part), part[1], part[0], _stored(parts[part])) for part in of_layers]
    alone = [Vectors(_name(*part), None, part[0], _stored(parts[part])) for part in beside]
    return (*stored, *_combined(features), *alone)


def _name(vector: Vector, layer: int | None) -> str:
    return vector.value if layer is None else f"{vector.value}-{layer}"


def _stored(array: Array) -> Callable[[], Array]:
    return lambda: np.asarray(array)


def _combined(features: Features) -> Iterator[Vectors]:
    """The candidates that are made of several stored vectors."""
    parts, last = features.parts, features.layers - 1

    def first(layer: int) -> Array:
        return np.asarray(parts[Vector.FIRST_TOKEN, layer])

    def mean(layer: int) -> Array:
        return np.asarray(parts[Vector.MASKED_MEAN, layer])

    means = [layer for layer in (1, last) if (Vector.MASKED_MEAN, layer) in parts]
    if (Vector.MASKED_MEAN, last) in parts and (Vector.MAX, last) in parts:
        both = Vector.MEAN_AND_MAX
        yield Vectors(
            _name(both, last), last, both, lambda: np.hstack([mean(last), np.asarray(parts[Vector.MAX, last])])
        )
    if last > 1 and len(means) == len((1, last)):
        yield Vectors(Vector.FIRST_LAST_MEAN.value, None, Vector.FIRST_LAST_MEAN, lambda: (mean(1) + mean(last)) / 2)
    four = [layer for layer in range(max(last - _LAST + 1, 1), last + 1) if (Vector.FIRST_TOKEN, layer) in parts]
    if len(four) == _LAST:
        concat, average = Vector.LAST_FOUR_CONCAT, Vector.LAST_FOUR_AVERAGE
        yield Vectors(concat.value, None, concat, lambda: np.hstack([first(layer) for layer in four]))
        yield Vectors(average.value, None, average, lambda: np.mean([first(layer) for layer in four], axis=0))
