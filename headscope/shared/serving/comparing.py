"""Comparison of the scores that an engine gave with those of the checkpoint for the same texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headscope.core.facts.heads.head import AS_IT_IS
from headscope.core.facts.heads.tasks import Activation
from headscope.shared.serving.answers import Answers
from headscope.shared.serving.explaining import (
    SCORE_FUNCTIONS,
    SINGLE_PRECISION,
    ExplainedScores,
    Scores,
    explain_scores,
)
from headscope.shared.serving.served_facts import ClassChanges, ServedExplanation, ServedScores

_ROUNDINGS = (("float32", "float64", 10.0), ("float16", "float16", 4.0), ("bfloat16", "bfloat16", 4.0))
"""A precision, the one that its rounding is measured with on the checkpoint's own model, and how many times as much
another implementation may be off: in single precision, more than the order of a sum may differ."""
_SPREAD = 10
"""How much further than the tolerance the scores of different texts have to lie apart."""
_Z = 1.959964
_FLOAT32 = "float32"
_NOT_LOOKED_AT = ("texts other than these", "speed, batching and load", "the layers below the head one by one")


@dataclass(frozen=True, slots=True)
class VariantScores:
    """Logits of a variant of the head, and its expression, "" where it has none.

    `is_sum`: the expression is a sum or a difference. `is_without_segments`: all segment IDs of its inputs are 0.
    """

    logits: Scores
    formula: str = ""
    is_sum: bool = False
    is_without_segments: bool = False


@dataclass(frozen=True, slots=True)
class ReferenceScores:
    """Scores that the checkpoint gives for texts: a row for each.

    `activation` is what belongs on the scores, as in `inspect`. `rounded` gives the logits in another precision, None
    where the model can't be run in it; `variants` gives those of the variants of the head. Both are called only where
    scores differ: they take further passes of the model.
    """

    logits: Scores
    labels: Sequence[str]
    activation: str
    rounded: Callable[[str], Scores | None]
    variants: Callable[[], Mapping[str, VariantScores]]


@dataclass(frozen=True, slots=True)
class _Precision:
    """Precision of a computation, and how far scores may be off in it."""

    name: str
    tolerance: float


def compare_scores(reference: ReferenceScores, answers: Answers) -> ServedScores:
    """Compares an engine's scores with the checkpoint's, and finds what the engine computes where they differ.

    Scores are equal, or have an explanation, in single precision; otherwise within the rounding of half precision,
    which is then measured on the checkpoint's own model. A precision that the engine states is trusted.
    """
    own = reference.logits
    given, reason = _aligned_scores(answers, reference.labels, own.shape)
    functions = {item.name: item.forward for item in SCORE_FUNCTIONS}
    wanted = functions.get(Activation.NONE if answers.is_raw else reference.activation)
    if given is None or wanted is None:
        return _undetermined_scores(
            reason or f"what belongs on the scores is {reference.activation}", len(own), answers
        )
    expected = wanted(own)
    # A floor, so that scores of about zero don't make the tolerance zero.
    scale = max(float(np.abs(expected).max(initial=0.0)), 1e-3)
    difference = float(np.abs(given - expected).max(initial=0.0))
    attempts: list[tuple[ExplainedScores, _Precision]] = []
    same = False
    for within in _possible_precisions(reference, wanted, expected, scale, answers.dtype):
        same = difference <= within.tolerance
        if same:
            break
        logits = {name: item.logits for name, item in reference.variants().items()}
        attempts.append((explain_scores(logits, given, within.tolerance / scale), within))
        if attempts[-1][0].fitting:
            break
    # Scores that hardly vary agree with any function that gives about their mean.
    if same and (np.ptp(expected, axis=0) < _SPREAD * within.tolerance).all():
        return _undetermined_scores(
            "the scores of the texts hardly differ, so equal ones show nothing", len(own), answers
        )
    explanation, reason, notes = None, "", answers.notes
    if not same:
        found, within = attempts[-1] if attempts[-1][0].fitting else attempts[0]
        explanation, reason = _describe_explanation(found, reference.variants())
    elif within.name != _FLOAT32:
        notes = (*notes, *_note_alike_variants(reference.variants(), wanted, given, within))
    return ServedScores(
        same=same,
        explanation=explanation,
        max_difference=difference,
        tolerance=within.tolerance,
        precision=within.name,
        class_changes=_class_changes(own, given, reference.activation, is_raw=answers.is_raw),
        texts=len(own),
        reason=reason,
        notes=notes,
        not_looked_at=_NOT_LOOKED_AT,
    )


def _possible_precisions(
    reference: ReferenceScores, wanted: Callable[[Scores], Scores], expected: Scores, scale: float, stated: str
) -> Iterator[_Precision]:
    """Yields the precisions that the engine may compute in, the finest first; single precision as the model rounds."""
    yield _Precision(_FLOAT32, SINGLE_PRECISION * scale)
    for name, measured, factor in _ROUNDINGS:
        logits = reference.rounded(measured) if name == _FLOAT32 or stated in ("", name) else None
        if logits is not None:
            rounding = factor * float(np.abs(wanted(logits) - expected).max(initial=0.0))
            yield _Precision(name, max(SINGLE_PRECISION * scale, rounding))


def _describe_explanation(
    found: ExplainedScores, variants: Mapping[str, VariantScores]
) -> tuple[ServedExplanation | None, str]:
    """Makes the report's explanation of what the engine computes, or None with the reason."""
    item, reason = found.explanation, found.reason
    if item is not None:
        variant = variants[item.variant]
        return ServedExplanation(
            item.variant, variant.formula, item.function, item.order, item.scale, item.offset,
            variant.is_sum, variant.is_without_segments,
        ), ""  # fmt: skip
    if found.is_unexplained and not variants[AS_IT_IS].formula:
        reason += "; the head has no proven expression, so only other functions, orders and factors were tried"
    return None, reason


def _note_alike_variants(
    variants: Mapping[str, VariantScores], wanted: Callable[[Scores], Scores], given: Scores, within: _Precision
) -> Iterator[str]:
    """Yields a note on the other variants that are equal within half precision too."""
    fits = {name for name, item in variants.items() if np.abs(wanted(item.logits) - given).max() <= within.tolerance}
    if fits - {AS_IT_IS}:
        yield f"{within.name} can't tell the head from these variants: {'; '.join(sorted(fits - {AS_IT_IS}))}"


def _undetermined_scores(reason: str, texts: int, answers: Answers) -> ServedScores:
    return ServedScores(None, None, None, None, "", None, texts, reason, answers.notes, _NOT_LOOKED_AT)


def _aligned_scores(answers: Answers, labels: Sequence[str], shape: tuple[int, ...]) -> tuple[Scores | None, str]:
    """Puts the scores into the order of the checkpoint's labels; None with the reason where that can't be done.

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
    """Measures how often the most likely class differs or, with several labels per text, the classes above one half."""
    if own.shape[1] < 2 or activation not in {Activation.SOFTMAX, Activation.SIGMOID} or not len(own):
        return None
    if activation == Activation.SOFTMAX:
        differs = own.argmax(1) != given.argmax(1)
    else:
        differs = ((own > 0) != (given > (0 if is_raw else 0.5))).any(1)
    return interval_of(int(differs.sum()), len(own))


def interval_of(count: int, whole: int) -> ClassChanges:
    """Gives a share of independent texts with its 95% interval (Wilson, 1927), which holds for few texts too."""
    share, square = count / whole, _Z * _Z / whole
    middle, half = share + square / 2, _Z * math.sqrt(share * (1 - share) / whole + square / (4 * whole))
    return ClassChanges(share, max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square)))
