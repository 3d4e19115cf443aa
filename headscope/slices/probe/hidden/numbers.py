"""Numbers on the vectors: how alike the texts are, dimensions without a use, the effect of padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headscope.slices.probe.arrays import Array
from headscope.slices.probe.facts.data import FeatureNumbers, VectorNumbers
from headscope.slices.probe.hidden.candidates import Vectors
from headscope.slices.probe.hidden.store import Features, name_of_part

_SAME = 1e-6
"""A dimension is dead if it differs over the texts by less than this share of its largest number: rounding."""


def feature_numbers(vectors: Sequence[Vectors], features: Features) -> FeatureNumbers:
    """Computes the numbers of each candidate, of the layers, and of the pass."""
    seen, effects = features.seen, dict(features.seen.effects)
    tokens = seen.tokens
    found = []
    for item in vectors:
        matrix = item.make()
        changes = [effects[name] for name in map(name_of_part, item.parts) if name in effects]
        padding = max(changes, default=None)
        found.append(VectorNumbers(item.name, mean_cosine(matrix), dead_dimensions(matrix), padding))
    return FeatureNumbers(
        vectors=tuple(found),
        layers=seen.layer_numbers,
        precision=seen.precision,
        fewest_tokens=tokens.fewest if tokens else None,
        most_tokens=tokens.most if tokens else None,
        max_tokens=tokens.limit if tokens else None,
        truncated=tokens.truncated if tokens else 0,
        reused=features.reused,
    )


def mean_cosine(matrix: Array) -> float | None:
    """Computes the mean cosine of two rows over all pairs; None if a row is zero, or if there is only one row."""
    norms = np.linalg.norm(matrix, axis=1)
    count = len(matrix)
    if count < 2 or not norms.all():
        return None
    # The squared norm of the sum of n unit vectors is n and twice the sum of the cosines of all pairs.
    whole = np.divide(matrix, norms[:, None]).sum(0, dtype=np.float64)
    return float((whole @ whole - count) / (count * (count - 1)))


def dead_dimensions(matrix: Array) -> int:
    """Counts the columns that have one value in all rows."""
    low, high = matrix.min(0), matrix.max(0)
    return int((high - low <= _SAME * np.maximum(np.abs(low), np.abs(high))).sum())
