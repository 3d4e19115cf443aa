"""Candidates for the classified vector, made of the stored vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headscope.core.facts import Gap, GapTopic, Head
from headscope.slices.probe.arrays import Array
from headscope.slices.probe.facts.result import Vector
from headscope.slices.probe.hidden.pooled import LayerVector
from headscope.slices.probe.hidden.store import Features, name_of_part, whole_array

_LAST = 4


@dataclass(frozen=True, slots=True)
class Vectors:
    """A candidate before it is scored: `make` gives its matrix, with a row for each text.

    `parts` are the stored vectors that it is made of.
    """

    name: str
    layer: int | None
    pooling: Vector
    make: Callable[[], Array]
    parts: tuple[LayerVector, ...] = ()


def classifier_of_model(head: Head | None) -> str | Gap:
    """Names the module of the last linear stage of a head path: its input is what the head classifies."""
    if head is None:
        return Gap(GapTopic.HEAD, "the head could not be traced")
    linear = [stage for stage in head.stages if stage.operation == "linear"]
    if not linear:
        return Gap(GapTopic.HEAD, "no stage of the head is linear")
    if linear[-1].functional or not linear[-1].module:
        return Gap(GapTopic.HEAD, "the last linear stage of the head is not a module")
    return linear[-1].module


def stages_before(head: Head, classifier: str) -> frozenset[str]:
    """Names the parameters of the stages that a vector passes on its way to the classifier."""
    places = [stage.index for stage in head.stages if stage.module == classifier]
    before = (stage for stage in head.stages if stage.index < max(places))
    return frozenset(name for stage in before for name in stage.parameters) if places else frozenset()


def list_vectors(features: Features) -> tuple[Vectors, ...]:
    """Lists every candidate, first those that exist for each layer."""
    parts = features.parts
    ordered = sorted(parts, key=lambda part: (list(Vector).index(part[0]), part[1] or 0))
    of_layers = [part for part in ordered if part[1] is not None]
    beside = [part for part in ordered if part[1] is None]
    stored = [Vectors(name_of_part(part), part[1], part[0], _load_later(parts[part]), (part,)) for part in of_layers]
    alone = [Vectors(name_of_part(part), None, part[0], _load_later(parts[part]), (part,)) for part in beside]
    return (*stored, *_combine_vectors(features), *alone)


def _load_later(array: Array) -> Callable[[], Array]:
    # A function, because a lambda in a comprehension would load the last array for every candidate.
    return lambda: whole_array(array)


def _combine_vectors(features: Features) -> Iterator[Vectors]:
    """Yields the candidates that are made of several stored vectors."""
    parts, last = features.parts, features.seen.layers - 1

    def first(layer: int) -> Array:
        return whole_array(parts[Vector.FIRST_TOKEN, layer])

    def mean(layer: int) -> Array:
        return whole_array(parts[Vector.MASKED_MEAN, layer])

    means = [layer for layer in (1, last) if (Vector.MASKED_MEAN, layer) in parts]
    if (Vector.MASKED_MEAN, last) in parts and (Vector.MAX, last) in parts:
        both = Vector.MEAN_AND_MAX
        yield Vectors(
            name_of_part((both, last)),
            last,
            both,
            lambda: np.hstack([mean(last), whole_array(parts[Vector.MAX, last])]),
            ((Vector.MASKED_MEAN, last), (Vector.MAX, last)),
        )
    # With one layer, its mean would be averaged with itself.
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


def _are_of_one_size(parts: dict[LayerVector, Array], vector: Vector, layers: Sequence[int]) -> bool:
    return len({parts[vector, layer].shape[1] for layer in layers}) == 1
