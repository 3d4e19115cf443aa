"""The scores that an engine gave, compared with those of the checkpoint for the same texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from headscope.facts.results.served import AS_IT_IS, ClassChanges, ServedExplanation, ServedScores
from headscope.serving.answers import Answers
from headscope.serving.explaining import SCORE_FUNCTIONS, SINGLE_PRECISION, Scores, explain_scores

_HALF = 4.0
"""How many times the checkpoint's own rounding in half precision another implementation may be off."""
_SPREAD = 10
"""How much further than the tolerance the scores of different texts have to lie apart."""
_Z = 1.959964
_NOT_LOOKED_AT = ("texts other than these", "speed", "batching and load")


def compare_scores(
    variants: Mapping[str, Scores], half: Scores | None, answers: Answers, labels: Sequence[str], activation: str
) -> ServedScores:
    """The comparison, with what the engine computes where it differs.

    Args:
        variants: Logits of the checkpoint's head (`AS_IT_IS`) and of variants of it: a row for each text.
        half: The checkpoint's own logits in half precision; None where the engine computes in single precision.
        answers: What the engine gave for the same texts.
        labels: The checkpoint's labels in order.
        activation: What belongs on the checkpoint's scores, as in `inspect`.
    """
    own = variants[AS_IT_IS]
    given, reason = _aligned_scores(answers, labels, own.shape)
    functions = {item.name: item.forward for item in SCORE_FUNCTIONS}
    wanted = functions.get("none" if answers.is_raw else activation)
    if given is None or wanted is None:
        return _undetermined(reason or f"what belongs on the scores is {activation}", len(own), answers)
    expected = wanted(own)
    scale = max(float(np.abs(expected).max(initial=0.0)), 1e-3)
    rounding = 0.0 if half is None else _HALF * float(np.abs(wanted(half) - expected).max(initial=0.0))
    tolerance = max(SINGLE_PRECISION * scale, rounding)
    difference = float(np.abs(given - expected).max(initial=0.0))
    if difference <= tolerance and (np.ptp(expected, axis=0) < _SPREAD * tolerance).all():
        return _undetermined("the scores of the texts hardly differ, so equal ones show nothing", len(own), answers)
    same = difference <= tolerance
    found = None if same else explain_scores(variants, given, tolerance / scale)
    explained = found.explanation if found is not None else None
    return ServedScores(
        same=same,
        explanation=None
        if explained is None
        else ServedExplanation(
            explained.variant, explained.function, explained.order, explained.scale, explained.offset
        ),
        max_difference=difference,
        tolerance=tolerance,
        precision="half" if rounding > SINGLE_PRECISION * scale else "float32",
        class_changes=_class_changes(own, given, activation, is_raw=answers.is_raw),
        texts=len(own),
        reason=found.reason if found is not None else "",
        notes=answers.notes,
        not_looked_at=_NOT_LOOKED_AT,
    )


def _undetermined(reason: str, texts: int, answers: Answers) -> ServedScores:
    return ServedScores(None, None, None, None, "", None, texts, reason, answers.notes, _NOT_LOOKED_AT)


def _aligned_scores(answers: Answers, labels: Sequence[str], shape: tuple[int, ...]) -> tuple[Scores | None, str]:
    """The scores in the order of the checkpoint's labels; None with the reason where they can't be brought into it.

    Names that the checkpoint doesn't have, such as LABEL_0, count by their place.
    """
    if len(answers.items) != shape[0]:
        return None, f"{len(answers.items)} answers to {shape[0]} texts"
    if any(item.is_partial for item in answers.items):
        return None, "the engine gave the scores of some classes only"
    if any(len(item.scores) != shape[1] for item in answers.items):
        sizes = sorted({len(item.scores) for item in answers.items})
        return (
            None,
            f"the engine gave {' or '.join(map(str, sizes))} scores for a text, and the checkpoint has {shape[1]}",
        )
    rows = []
    for item in answers.items:
        is_named = set(item.labels) == set(labels) and len(set(labels)) == len(labels)
        scores = dict(zip(item.labels, item.scores, strict=True)) if is_named else {}
        rows.append([scores[label] for label in labels] if is_named else list(item.scores))
    given = np.asarray(rows, dtype=np.float64)
    return (given, "") if np.isfinite(given).all() else (None, "the engine gave scores that are not finite")


def _class_changes(own: Scores, given: Scores, activation: str, *, is_raw: bool) -> ClassChanges | None:
    """How often the most likely class differs, or with several labels for a text, the classes above one half."""
    if own.shape[1] < 2 or activation not in {"softmax", "sigmoid"} or not len(own):
        return None
    if activation == "softmax":
        differs = own.argmax(1) != given.argmax(1)
    else:
        differs = ((own > 0) != (given > (0 if is_raw else 0.5))).any(1)
    return interval_of(int(differs.sum()), len(own))


def interval_of(count: int, whole: int) -> ClassChanges:
    """A share of independent texts with its 95% interval, by Wilson's formula."""
    share, square = count / whole, _Z * _Z / whole
    middle, half = share + square / 2, _Z * math.sqrt(share * (1 - share) / whole + square / (4 * whole))
    return ClassChanges(share, max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square)))
