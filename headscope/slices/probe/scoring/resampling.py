"""Intervals of scores, and tests of which is better: the bootstrap, and random exchanges. Seeded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headscope.slices.probe.arrays import Array
from headscope.slices.probe.scoring.scores import Trial

RESAMPLES = 2000
"""Draws of the bootstrap: an end of its interval, the 2.5th percentile, rests on the 50 lowest."""
FLIPS = 9999
"""Random signs of the test of pairs: the smallest p-value is 1 / (1 + FLIPS)."""
SWAPS = 1999
"""The same where each draw needs the whole score again: fewer, because each costs more."""
_BLOCK = 500
"""Draws at a time, which bounds the memory."""
_MOST_DRAWN = 4_000_000
"""Numbers drawn at a time: 32 MB of 64 bits."""
_EVEN = 1e-9
"""Sums that are equal but for rounding count as equal."""


def interval(values: Array, trial: Trial) -> tuple[float, float]:
    """Gives the 95% interval of the mean of one value per row; its bootstrap draws whole groups. `values`: [texts]."""
    pair = np.stack([values, np.ones(len(values))], 1)
    drawn = resample(((pair, lambda sums: sums[..., 0] / sums[..., 1]),), trial)
    return between(drawn[:, 0])


ScoreOfSums = Callable[[Array], Array]


def resample(scores: Sequence[tuple[Array, ScoreOfSums]], trial: Trial) -> Array:
    """Resamples several scores with the same draws of whole groups: one row per draw, one column per score.

    A score is a row of numbers for each text, and what their sums come to. The result is [draws, scores].
    """
    sums = [_by_group(parts, trial.groups) for parts, _ in scores]
    table = np.hstack(sums)
    ends = np.cumsum([part.shape[1] for part in sums])
    draw, size = np.random.default_rng(trial.seed), len(table)
    block = max(1, min(_BLOCK, _MOST_DRAWN // size))
    blocks = []
    for start in range(0, RESAMPLES, block):
        turns = min(block, RESAMPLES - start)
        picked = draw.integers(0, size, (turns, size)) + np.arange(turns)[:, None] * size
        counts = np.bincount(picked.ravel(), minlength=turns * size).reshape(turns, size)
        totals = counts.astype(float) @ table
        parts = np.split(totals, ends[:-1], 1)
        blocks.append(np.stack([value(part) for part, (_, value) in zip(parts, scores, strict=True)], 1))
    return np.concatenate(blocks)


def between(drawn: Array) -> tuple[float, float]:
    """Gives the 95% interval of a score from its bootstrap. `drawn` is [draws]. The percentile method of Efron."""
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(low), float(high)


def chance_of_best(differences: Array, groups: Array, seed: int) -> float:
    """Computes how likely the best column's mean is so large if all differences are noise.

    `differences` has a row for each text and a column for each candidate: its score less that of the reference. If a
    candidate and the reference are alike, the two can be exchanged on any text, which flips the sign. All columns are
    flipped together, so that candidates that agree count as few; the rows of a group too. With one column and groups of
    one row this is the one-sided sign test that McNemar's exact test is made of. `differences` is [texts, candidates],
    `groups` [texts]. The data themselves count as a draw, so it is never 0.
    """
    sums = _by_group(differences, groups)
    sums = sums[np.abs(sums).sum(1) > 0]
    observed = sums.sum(0).max() if len(sums) else 0.0
    if observed <= 0:
        return 1.0
    draw = np.random.default_rng(seed)
    as_large = 0
    for start in range(0, FLIPS, _BLOCK):
        signs = draw.integers(0, 2, size=(min(_BLOCK, FLIPS - start), len(sums))) * 2.0 - 1.0
        as_large += int(((signs @ sums).max(1) >= observed - _EVEN).sum())
    return (1 + as_large) / (1 + FLIPS)


def chance_of_best_swapped(found: Sequence[Array], other: Array, value: ScoreOfSums, trial: Trial) -> float:
    """Computes `chance_of_best` for a score that isn't a mean over the rows, by exchanging predictions text by text.

    `found` and `other` are the rows of numbers that the scores follow from. Each is [texts, parts of the measure].
    """
    given = _by_group(other, trial.groups)
    moved = [given - _by_group(parts, trial.groups) for parts in found]
    differ = np.flatnonzero(sum(np.abs(part).sum(1) for part in moved) > 0)
    totals, rival = [parts.sum(0) for parts in found], other.sum(0)
    observed = max(float(value(total) - value(rival)) for total in totals)
    if observed <= 0:
        return 1.0
    draw = np.random.default_rng(trial.seed)
    as_large = 0
    for start in range(0, SWAPS, _BLOCK):
        swapped = draw.integers(0, 2, size=(min(_BLOCK, SWAPS - start), len(differ))).astype(float)
        largest = np.full(len(swapped), -np.inf)
        for part, total in zip(moved, totals, strict=True):
            change = swapped @ part[differ]
            largest = np.maximum(largest, value(total + change) - value(rival - change))
        as_large += int((largest >= observed - _EVEN).sum())
    return (1 + as_large) / (1 + SWAPS)


def _by_group(values: Array, groups: Array) -> Array:
    sums = np.zeros((int(groups.max()) + 1, values.shape[1]))
    np.add.at(sums, groups, values)
    return sums
