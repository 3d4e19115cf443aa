"""Scores after an edit: the function on them, and what of them holds exactly or only approximately, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headscope.copies.facts import PROBLEM_TYPES, EditedLabel, LabelOrigin
from headscope.core.facts.counting import counted, few_of
from headscope.core.facts.heads.tasks import Activation
from headscope.errors import Unsupported, UsageError
from headscope.slices.edit.classes import ClassTensor
from headscope.slices.edit.wish import EditWish

if TYPE_CHECKING:
    from headscope.core.source.checkpoint import Checkpoint

_HALVES = {"float16", "bfloat16"}
FUNCTION_OF_PROBLEM = dict(zip(PROBLEM_TYPES, (Activation.NONE, Activation.SOFTMAX, Activation.SIGMOID), strict=True))


def score_function(checkpoint: Checkpoint, wish: EditWish, count: int) -> str:
    """Gives the function that turns the scores of `count` classes into probabilities after the edit.

    Raises UsageError for the softmax of one score.
    """
    model, kind = checkpoint.report.model, wish.settings.get("problem_type")
    if kind is not None and model.reads_problem_type is not False:
        if count == 1 and FUNCTION_OF_PROBLEM[kind] == Activation.SOFTMAX:
            raise UsageError(
                "there is one class, and the softmax of one score is always 1", "name another problem type"
            )
        return FUNCTION_OF_PROBLEM[kind].value
    is_one = model.num_labels == 1 and count > 1 and model.reads_problem_type
    return (
        Activation.SOFTMAX.value if is_one and not checkpoint.manifest.config.get("problem_type") else model.activation
    )


def check_shifts(labels: Sequence[EditedLabel], tensors: Sequence[ClassTensor], wish: EditWish, function: str) -> None:
    """Raises UsageError for thresholds of a regression, and for a shift that the last layer can't hold."""
    biases, changes = [item.parameter for item in tensors if item.is_bias], wish.changes
    is_one = function == Activation.SOFTMAX and len(labels) == 1
    if changes.threshold and (is_one or function not in (Activation.SOFTMAX, Activation.SIGMOID)):
        kind, what = _WITHOUT_THRESHOLD.get(
            function, (Unsupported, "what makes probabilities of the scores is not known")
        )
        sigmoid = "give each class a sigmoid with --problem-type multi_label_classification"
        raise kind(f"a threshold is a probability, and {what}", f"shift a score with --bias, or {sigmoid}")
    is_merged = any(label.merged and label.shift for label in labels)
    if len(biases) == 1 or not (changes.bias or changes.threshold or is_merged):
        return
    what = "has no bias" if not biases else f"has several biases: {few_of(biases)}"
    shift, advice = "a threshold or a bias", "apply it to the scores, after the model"
    if not (changes.bias or changes.threshold):
        shift = "the logarithm of the number of merged classes, which a softmax needs beside the mean of their logits,"
        advice = "add up the probabilities of the classes, after the model"
    raise UsageError(f"the last layer {what}, so {shift} has no place in the checkpoint", advice)


_WITHOUT_THRESHOLD = {
    Activation.NONE.value: (UsageError, "the scores are those of a regression"),
    Activation.SOFTMAX.value: (UsageError, "that of the one class is always 1"),
}
"""Why a threshold can't be meant, by what is put on the scores."""


@dataclass(frozen=True, slots=True)
class ScoreChange:
    """Change of the scores: the classes after the edit, their number before, and the functions on their logits."""

    labels: Sequence[EditedLabel]
    wish: EditWish
    before: int
    function_before: str
    function: str

    @property
    def kept(self) -> list[EditedLabel]:
        """Classes that were there before, without a shift."""
        return [label for label in self.labels if label.origin is LabelOrigin.KEPT and not label.shift]

    @property
    def has_same_classes(self) -> bool:
        """True if the classes are the same as before, in any order and under any names."""
        return len(self.labels) == self.before == sum(label.origin is LabelOrigin.KEPT for label in self.labels)


def promises(change: ScoreChange, formats: Iterable[str]) -> tuple[list[str], list[str]]:
    """Lists what holds up to rounding, and what doesn't hold exactly or isn't known.

    In half precision, numbers that are computed are rounded so much that nothing about them is exact. `formats` are
    those that the last layer is stored in after the edit.
    """
    exact = list(_exact_promises(change))
    approximate = list(_approximate_promises(change))
    coarse = sorted(_HALVES.intersection(formats))
    rounded = [words for words, is_computed in exact if coarse and (is_computed or change.wish.dtype in coarse)]
    if rounded:
        approximate[:0] = [
            *rounded,
            f"The last layer is stored as {' and '.join(coarse)}, which rounds what is computed: of nearly equal "
            "scores, another can win. --dtype float32 rounds less.",
        ]
    return [words for words, _ in exact if words not in rounded], approximate


def _exact_promises(change: ScoreChange) -> Iterator[tuple[str, bool]]:
    """Yields each sentence, and whether its values are computed rather than copied."""
    kept, limits, is_scaled = change.kept, _exact_thresholds(change), change.wish.temperature != 1.0
    scaled = f", divided by {change.wish.temperature:g}" if is_scaled else ""
    if kept:
        yield (
            f"The logits of {counted(len(kept), 'kept class', 'kept classes')} are those of before{scaled}.",
            is_scaled,
        )
    for label in change.labels:
        if label.merged:
            more = f" {'+' if label.shift > 0 else '-'} {abs(label.shift):.6g}" if label.shift else ""
            yield f"{label.name} gets the mean of the logits of {len(label.merged)} classes{more}{scaled}.", True
        elif label.shift and label.name not in limits:
            more = scaled.replace(",", ", then all is")
            yield f"{label.shift:+.6g} is added to the logit of {label.name}{more}.", True
        elif label.origin is LabelOrigin.COPIED:
            yield f"{label.name} begins with the logit of {label.name_before}{scaled}.", is_scaled
    for name, limit in limits.items():
        if change.function == Activation.SOFTMAX:
            yield f"{name} wins exactly where a softmax of the old logits gives it more than {limit:g}.", True
        else:
            yield f"{name} is above 0.5 exactly where the sigmoid of its logit was above {limit:g}.", True
    if is_scaled and change.has_same_classes and len(kept) == change.before > 1 and change.function != Activation.NONE:
        yield "The class with the highest score is the same for every input.", True


def _exact_thresholds(change: ScoreChange) -> dict[str, float]:
    """Gives the thresholds that hold exactly: of kept classes without a bias; with a softmax, one of two classes."""
    wanted, biases = change.wish.changes.threshold, change.wish.changes.bias
    is_binary = change.has_same_classes and change.before == 2 and len(wanted) == 1 and not biases
    if change.function == Activation.SOFTMAX and not is_binary:
        return {}
    kept = [label.name for label in change.labels if label.origin is LabelOrigin.KEPT]
    return {name: wanted[name] for name in kept if name in wanted and name not in biases}


def _approximate_promises(change: ScoreChange) -> Iterator[str]:
    """Yields sentences on what doesn't hold exactly, or isn't known."""
    new = [label for label in change.labels if label.origin in (LabelOrigin.ZERO, LabelOrigin.MEAN, LabelOrigin.RANDOM)]
    if new:
        yield f"{few_of(label.name for label in new)}: the row is a starting point for training, not a trained class."
    if change.function == Activation.SOFTMAX:
        yield from _promises_of_softmax(change)
    elif change.function != Activation.NONE:
        for name, count in ((label.name, len(label.merged)) for label in change.labels if label.merged):
            yield f"{name}: no probability that any of the {count} classes applies follows from a mean of logits."
    elif change.wish.temperature != 1.0:
        yield "The scores are those of a regression: its results are divided too."


def _promises_of_softmax(change: ScoreChange) -> Iterator[str]:
    kept, has_shifts = len(change.kept), any(label.shift for label in change.labels if not label.merged)
    is_same_softmax = change.function_before == Activation.SOFTMAX and change.wish.temperature == 1.0
    if not change.has_same_classes:
        ratios = f"; between kept classes{' without a shift' if has_shifts else ''} their ratios stay"
        ratios = ratios if is_same_softmax and kept > 1 else ""
        yield f"A softmax shares 1 among its classes, so probabilities can change with them{ratios}."
    for label in change.labels:
        count = len(label.merged)
        is_alone = is_same_softmax and kept == len(change.labels) - 1 == change.before - count
        if count and is_alone and label.shift == math.log(count):
            yield (
                f"The probability of {label.name} is the sum of those of its {count} classes only where their logits "
                "are equal; elsewhere it is smaller."
            )
        elif count:
            yield f"The probability of {label.name} is in general not the sum of those of its {count} classes."
    copies = [label.name for label in change.labels if label.origin is LabelOrigin.COPIED]
    if copies and not has_shifts:
        yield (
            f"{few_of(copies)}: until training, the score equals that of the copied class; of equal scores, most "
            "programs take the one with the lower number."
        )
    if change.wish.changes.threshold and not _exact_thresholds(change):
        yield "A threshold shifts the logit: with other changes or classes, it isn't exactly where the class is chosen."


def of_function(before: str, after: str) -> str:
    """Warns, in a sentence, that programs will apply another function to the scores; "" if it stays the same."""
    if before == after:
        return ""
    one, other = (_FUNCTIONS.get(name, "another function") for name in (before, after))
    return (
        f"Programs take the scores as those of {other}, no longer of {one}: probabilities, thresholds and the loss are "
        "other ones."
    )


_FUNCTIONS = {
    Activation.SOFTMAX.value: "a softmax",
    Activation.SIGMOID.value: "a sigmoid for each class",
    Activation.NONE.value: "a regression",
}


def of_number_format(before: str, after: str) -> tuple[bool, str]:
    """Gives a sentence on a new number format of the last layer, and whether it holds the same values."""
    is_exact = after == "float32" and before in _HALVES
    words = f"The last layer is stored as {after}, not as {before}"
    if is_exact:
        return True, f"{words}: the same values. A load in {before}, as config.json may say, rounds new ones again."
    return False, f"{words}: its values are rounded."
