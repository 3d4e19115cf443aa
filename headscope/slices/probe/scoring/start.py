"""Facts on the checkpoint's own head: its predictions of the texts, its starting loss, and advice on training."""

from __future__ import annotations

import numpy as np

from headscope.checks.rules.labeled.label_classes import fit_classes, is_regression
from headscope.core.facts import Gap, ModelFacts
from headscope.slices.probe.arrays import Array
from headscope.slices.probe.data.rows import LabeledRows
from headscope.slices.probe.facts.result import (
    Advised,
    BaselineKind,
    ProbeFirst,
    Problem,
    Standing,
    Start,
    StartingLoss,
    Versus,
)
from headscope.slices.probe.scoring.resampling import interval
from headscope.slices.probe.scoring.scores import Trial, row_losses

_CLOSE = 0.1
"""A loss within this part of an untrained head's counts as equal to it."""


def outputs_of(rows: LabeledRows, model: ModelFacts) -> tuple[int, ...] | Gap:
    """Finds the head's output for each class of the data; for numbers the only one."""

    def missing(reason: str) -> Gap:
        return Gap(BaselineKind.CHECKPOINT.value, reason)

    if rows.problem is Problem.REGRESSION:
        if model.num_labels != 1:
            return missing(f"the checkpoint's head has {model.num_labels} outputs, and the labels are numbers")
        return (0,)
    is_multi = model.problem_type == "multi_label_classification" and model.reads_problem_type is not False
    if model.num_labels < 2 or is_regression(model) or is_multi is not (rows.problem is Problem.MULTI_LABEL):
        does = "score each class alone" if rows.problem is Problem.MULTI_LABEL else "choose one of several classes"
        return missing(f"the checkpoint's head does not {does}")
    fitted = {item.label: item.model_class for item in fit_classes(rows.facts, model).classes}
    places = [fitted.get(label) for label in rows.classes]
    if None in places:
        return missing("not every label of the data is a class of the checkpoint")
    return tuple(place for place in places if place is not None)


def predictions_of(rows: LabeledRows, scores: Array, outputs: tuple[int, ...]) -> Array:
    """Converts the head's scores to predictions, as `Trial.labels`; -1 for a class that the data don't have.

    `scores` is [texts, outputs of the head].
    """
    if rows.problem is Problem.REGRESSION:
        return scores[:, 0].astype(float)
    if rows.problem is Problem.MULTI_LABEL:
        return (scores[:, outputs] > 0).astype(int)
    places = {output: place for place, output in enumerate(outputs)}
    return np.array([places.get(int(number), -1) for number in scores.argmax(1)])


def starting_loss(
    rows: LabeledRows, trial: Trial, scores: Array, outputs: tuple[int, ...] | Gap, *, new_head: bool
) -> StartingLoss | None:
    """Computes the head's mean loss on the texts, beside that of an untrained head.

    None if its outputs don't stand for the labels, or if the loss is NaN. `scores` is [texts, outputs of the head]. An
    untrained head gives every class the same probability: a loss of log(classes) with a softmax and log(2) with a
    sigmoid; a regression on the mean has the variance. A new head has one output per class, in any order.
    """
    count = len(rows.classes) or 1
    if new_head and scores.shape[1] == count:
        outputs = tuple(range(count))
    if isinstance(outputs, Gap):
        return None
    given = scores.astype(np.float64)
    if rows.problem is Problem.REGRESSION:
        losses, uninformed = (given[:, 0] - rows.labels) ** 2, float(rows.labels.var())
    elif rows.problem is Problem.MULTI_LABEL:
        losses = row_losses(given[:, outputs], rows.labels, is_softmax=False)
        uninformed = float(np.log(2))
    else:
        shifted = given - given.max(1, keepdims=True)
        right = shifted[np.arange(len(given)), np.array(outputs)[rows.labels]]
        losses, uninformed = np.log(np.exp(shifted).sum(1)) - right, float(np.log(given.shape[1]))
    if not np.isfinite(losses).all():
        return None
    low, high = interval(losses, trial)
    if high < (1 - _CLOSE) * uninformed:
        standing = Start.BELOW
    else:
        standing = Start.ABOVE if low > (1 + _CLOSE) * uninformed else Start.FRESH
    return StartingLoss(float(losses.mean()), low, high, uninformed, standing, new_head)


def advise_probe_first(
    start: StartingLoss | None,
    *,
    new_head: bool,
    knows: Versus | None,
    random_input: bool,
    words: Versus | None,
    noun: str,
    is_finite: bool,
) -> ProbeFirst:
    """Advises whether to train the head alone before the whole model.

    `is_finite` says whether the head's scores are numbers, `noun` what was scored. `knows` compares
    the vector that the head reads with a constant prediction, `words` with TF-IDF; `random_input` says that the vector
    passes new weights.
    """
    if not new_head and start is not None and start.standing is Start.BELOW:
        return ProbeFirst(
            Advised.NO,
            f"the head is trained and already fits these labels: its loss is {start.loss:.2f}, and that of an "
            f"untrained head is "
            f"{start.uninformed:.2f}",
        )
    if knows is None:
        return ProbeFirst(Advised.OPEN, "the vector that the head reads was not scored")
    if new_head:
        head = "the head is newly initialized"
    elif not is_finite:
        head = "the head gives NaN or infinite scores, so a new one is needed"
    elif start is None:
        head = "the trained head has other outputs than these labels, so a new one is needed"
    else:
        head = (
            f"the head is trained, but its loss of {start.loss:.2f} is no better than guessing ({start.uninformed:.2f})"
        )
    if knows.verdict is not Standing.BETTER:
        return ProbeFirst(
            Advised.NO,
            f"{head}, but the vector that it reads is not shown to predict these labels better than a constant: a head "
            "alone may have nothing to learn from it",
        )
    if random_input:
        return ProbeFirst(
            Advised.NO,
            f"{head}, and its input passes weights that are new too: training the classifier alone would fit it to a "
            "random map",
        )
    more = "" if words is None or words.verdict is Standing.BETTER else ", though no better than the words alone"
    return ProbeFirst(
        Advised.YES,
        f"{head}, and the vector that it reads already predicts these labels (a gain of {knows.difference:.2f} over a "
        f"constant{more}): a head that is trained first sends fewer random gradients into the base model. What that "
        f"gains on these {noun}s was not measured",
    )
