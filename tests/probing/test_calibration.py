"""False alarms of the whole way from vectors to the verdict, where no vector is better than the head's (slow)."""

from functools import cache

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from scipy import stats

from headscope.slices.probe.facts.result import Standing, Vector
from headscope.slices.probe.hidden.candidates import Vectors
from headscope.slices.probe.scoring.comparison import compare_best, score_vectors
from headscope.slices.probe.scoring.scores import make_trial

RUNS, PARTS = 100, 10


def is_alarm(seed: int) -> bool:
    """Four vectors and the head's: the same signal in each, and noise of its own."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 2, 80)
    signal = np.where(labels, 1.0, -1.0)[:, None] + draw.normal(size=(80, 1))
    made = [np.hstack([signal, np.zeros((80, 3))]) + draw.normal(size=(80, 4)) for _ in range(5)]
    vectors = [Vectors(f"v{at}", None, Vector.MAX, lambda given=given: given) for at, given in enumerate(made)]
    trial = make_trial(labels, np.arange(80), 3, seed)
    scored = score_vectors(vectors, trial, {}, lambda step: None)
    return compare_best(scored, "v0", scored.rated[0], trial).verdict is Standing.BETTER


@cache
def alarms(part: int) -> int:
    return sum(is_alarm(seed) for seed in range(part * RUNS // PARTS, (part + 1) * RUNS // PARTS))


@pytest.mark.parametrize("part", range(PARTS))
def test_few_runs_find_a_difference_where_there_is_none(part: int) -> None:
    assert stats.binomtest(alarms(part), RUNS // PARTS, 0.05).pvalue > 0.01


@pytest.mark.whole
def test_one_run_in_twenty_finds_a_difference_where_there_is_none() -> None:
    found = sum(map(alarms, range(PARTS)))
    assert stats.binomtest(found, RUNS, 0.05).pvalue > 0.01, f"{found} of {RUNS}"
