"""Function that turns scores into probabilities after an edit, and whether it allows thresholds and shifts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headscope.copies.facts import PROBLEM_TYPES, EditedLabel
from headscope.core.facts.counting import few_of
from headscope.core.facts.heads.tasks import Activation
from headscope.errors import Unsupported, UsageError
from headscope.slices.edit.classes.class_axis import ClassTensor
from headscope.slices.edit.wish import EditWish

if TYPE_CHECKING:
    from headscope.core.source.checkpoint import Checkpoint

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
