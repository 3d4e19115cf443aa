"""What an edit promises of the scores, in sentences: what holds exactly, and what only approximately."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headscope.editing.wish import EditWish
from headscope.facts.counting import counted, few_of
from headscope.facts.heads.tasks import Activation
from headscope.facts.results.edit import EditedLabel, LabelOrigin

_HALVES = {"float16", "bfloat16"}


def promises(
    labels: Sequence[EditedLabel], wish: EditWish, formats: Iterable[str], *, is_softmax: bool, before: int
) -> tuple[list[str], list[str]]:
    """What holds up to rounding, and what doesn't hold exactly or isn't known.

    In half precision, numbers that are computed are rounded so much that nothing about them is exact. `formats` are
    those that the last layer is stored in after the edit, `before` is the number of classes before it.
    """
    told = list(_exact_promises(labels, wish, is_softmax, before))
    approximate = list(_approximate_promises(labels, wish, is_softmax, before))
    coarse = sorted(_HALVES.intersection(formats))
    rounded = [words for words, is_computed in told if coarse and (is_computed or wish.dtype in coarse)]
    if rounded:
        approximate[:0] = [
            *rounded,
            f"The last layer is stored as {' and '.join(coarse)}, which rounds what is computed: of nearly equal "
            "scores, another can win. --dtype float32 rounds less.",
        ]
    return [words for words, _ in told if words not in rounded], approximate


def _exact_promises(
    labels: Sequence[EditedLabel], wish: EditWish, is_softmax: bool, before: int
) -> Iterator[tuple[str, bool]]:
    """Each sentence, and whether its numbers are computed, not copied."""
    is_scaled = wish.temperature != 1.0
    kept = [label for label in labels if label.origin is LabelOrigin.KEPT and not label.shift]
    scaled = f", divided by {wish.temperature:g}" if is_scaled else ""
    if kept:
        yield (
            f"The logits of {counted(len(kept), 'kept class', 'kept classes')} are those of before{scaled}.",
            is_scaled,
        )
    for label in labels:
        if label.origin is LabelOrigin.COPIED and not label.shift:
            yield f"{label.name} begins with the logit of {label.name_before}{scaled}.", is_scaled
        amount = wish.changes.bias.get(label.name)
        if amount:
            yield f"{amount:+g} is added to the logit of {label.name}.", True
    for label, limit in _exact_thresholds(labels, wish, is_softmax, before):
        if is_softmax:
            yield f"{label.name} wins exactly where its probability was above {limit:g}.", True
        else:
            yield f"{label.name} is above 0.5 exactly where the sigmoid of its logit was above {limit:g}.", True
    if is_scaled and len(kept) == len(labels) == before:
        yield "The class with the highest score is the same for every input.", True


def _exact_thresholds(
    labels: Sequence[EditedLabel], wish: EditWish, is_softmax: bool, before: int
) -> list[tuple[EditedLabel, float]]:
    """The thresholds that decide exactly: of kept classes without a bias; of a softmax, one of two classes."""
    found = [
        (label, wish.changes.threshold[label.name])
        for label in labels
        if label.name in wish.changes.threshold
        and label.name not in wish.changes.bias
        and label.origin is LabelOrigin.KEPT
    ]
    is_binary = before == 2 and sum(label.origin is LabelOrigin.KEPT for label in labels) == len(labels) == 2
    is_alone = len(wish.changes.threshold) == 1 and not wish.changes.bias
    return found if not is_softmax or (is_binary and is_alone) else []


def _approximate_promises(
    labels: Sequence[EditedLabel], wish: EditWish, is_softmax: bool, before: int
) -> Iterator[str]:
    """What doesn't hold exactly, or isn't known."""
    new = [label for label in labels if label.origin in (LabelOrigin.ZERO, LabelOrigin.MEAN, LabelOrigin.RANDOM)]
    if new:
        yield f"{few_of(label.name for label in new)}: the row is a start for training, not a trained class."
    if is_softmax and len(labels) != before:
        yield "Probabilities change with the number of classes; between kept classes their ratios stay."
    for label in labels:
        if label.merged:
            more = f" plus {label.shift:.3g}" if label.shift else ""
            yield (
                f"{label.name} gets the mean of the logits of {len(label.merged)} classes{more}. That is the sum of "
                "their probabilities only where these logits are equal."
            )
    if is_softmax and wish.changes.threshold and not _exact_thresholds(labels, wish, is_softmax, before):
        yield "A threshold shifts the logit: with other changes or classes, it isn't exactly where the class is chosen."


def of_function(before: str, after: str) -> str:
    """A sentence on programs that put another function on the scores; "" for the same."""
    if before == after:
        return ""
    one, other = (_FUNCTIONS.get(name, f"what is {name}") for name in (before, after))
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
    """Whether the last layer has the same numbers in another format, and a sentence on it."""
    is_exact = after == "float32" and before in _HALVES
    words = f"The last layer is stored as {after}, not as {before}"
    if is_exact:
        return True, f"{words}: the same numbers. A load in {before}, as config.json may say, rounds new ones again."
    return False, f"{words}: its numbers are rounded."
