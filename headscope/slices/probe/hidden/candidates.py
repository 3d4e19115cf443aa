"""Candidates for the classified vector, made of the stored vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from headscope.core.facts import Gap, GapTopic, Head
from headscope.slices.probe.arrays import Array
from headscope.slices.probe.facts.result import Vector
from headscope.slices.probe.hidden.pooled import LayerVector
from headscope.slices.probe.hidden.store import Features, name_of_part, whole_array

_LAST = 4
_Combination = Callable[[Sequence[Array]], Any]
_AVERAGE: _Combination = partial(np.mean, axis=0)


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
    end = max((stage.index for stage in head.stages if stage.module == classifier), default=-1)
    return frozenset(name for stage in head.stages if stage.index < end for name in stage.parameters)


def list_vectors(features: Features) -> tuple[Vectors, ...]:
    """Lists every candidate, first those that exist for each layer."""
    parts = features.parts
    ordered = sorted(parts, key=lambda part: (list(Vector).index(part[0]), part[1] or 0))
    stored = [
        Vectors(name_of_part(part), part[1], part[0], partial(whole_array, parts[part]), (part,)) for part in ordered
    ]
    of_layers = [item for item in stored if item.layer is not None]
    beside = [item for item in stored if item.layer is None]
    return (*of_layers, *_combine_vectors(features), *beside)


def _combine_vectors(features: Features) -> Iterator[Vectors]:
    """Yields the candidates that are made of several stored vectors; only vectors of one size have an average."""
    last = features.seen.layers - 1
    # With one layer, its mean would be averaged with itself.
    ends = tuple((Vector.MASKED_MEAN, layer) for layer in (1, last) if last > 1)
    firsts = tuple((Vector.FIRST_TOKEN, layer) for layer in range(last - _LAST + 1, last + 1) if last >= _LAST)
    table: tuple[tuple[Vector, int | None, tuple[LayerVector, ...], _Combination], ...] = (
        (Vector.MEAN_AND_MAX, last, ((Vector.MASKED_MEAN, last), (Vector.MAX, last)), np.hstack),
        (Vector.FIRST_LAST_MEAN, None, ends, _AVERAGE),
        (Vector.LAST_FOUR_CONCAT, None, firsts, np.hstack),
        (Vector.LAST_FOUR_AVERAGE, None, firsts, _AVERAGE),
    )
    for vector, layer, parts, combine in table:
        arrays = [features.parts[part] for part in parts if part in features.parts]
        sizes = {array.shape[1] for array in arrays}
        if arrays and len(arrays) == len(parts) and (combine is np.hstack or len(sizes) == 1):
            make = partial(_combine_arrays, combine, arrays)
            yield Vectors(name_of_part((vector, layer)), layer, vector, make, parts)


def _combine_arrays(combine: _Combination, arrays: Sequence[Array]) -> Array:
    combined: Array = combine([whole_array(array) for array in arrays])
    return combined
