"""How far an engine's scores may be off by rounding, and whether they are off as half precision is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from headscope.shared.serving.explaining import SINGLE_PRECISION, Scores

FLOAT32 = "float32"
HALF_PRECISIONS = ("float16", "bfloat16")
_SINGLE_FACTOR, _HALF_FACTOR = 10.0, 4.0
"""How many times as much as the checkpoint's own model another implementation may be off by rounding: in single
precision more, since the order of its sums may differ."""
_UNLIKE = 0.5
"""The largest part of a residual that may be left when the errors of the model in half precision are subtracted.
Rounding that happens elsewhere leaves 0.6 to 1.3 of it, and so do other weights."""
_FEWEST_TEXTS = 6


@dataclass(frozen=True, slots=True)
class Precision:
    """Precision of a computation, how far scores may be off in it, and the scores of the model in it, if computed."""

    name: str
    tolerance: float
    scores: Scores | None = None


def single_precisions(scale: float, rounded: Callable[[str], Scores | None], score: Callable[[Scores], Scores],
    expected: Scores) -> Iterator[Precision]:  # fmt: skip
    """Yields what counts as equal in single precision: a fixed part of the scores, then what the model itself loses."""
    least = SINGLE_PRECISION * scale
    yield Precision(FLOAT32, least)
    double = rounded("float64")
    if double is not None:
        lost = float(np.abs(score(double) - expected).max(initial=0.0))
        yield Precision(FLOAT32, max(least, _SINGLE_FACTOR * lost))


def half_precisions(stated: str, rounded: Callable[[str], Scores | None], score: Callable[[Scores], Scores],
    expected: Scores) -> Iterator[Precision]:  # fmt: skip
    """Yields the half precisions that the engine may compute in: the one that was stated, otherwise both."""
    for name in HALF_PRECISIONS:
        logits = rounded(name) if stated in ("", name) else None
        if logits is not None:
            scores = score(logits)
            yield Precision(name, _HALF_FACTOR * float(np.abs(scores - expected).max(initial=0.0)), scores)


def has_pattern(given: Scores, expected: Scores, half: Precision) -> bool:
    """True if scores are off from the expected ones as those of the model in half precision are, text by text."""
    if half.scores is None or len(given) < _FEWEST_TEXTS:
        return False
    residual, left = given - expected, given - half.scores
    # Other weights may shift all texts alike, as rounding does, so what differs between texts has to fit too.
    centered = (residual - residual.mean(0), left - left.mean(0))
    return all(
        float(np.linalg.norm(rest)) <= _UNLIKE * float(np.linalg.norm(whole))
        for whole, rest in ((residual, left), centered)
    )
