"""Sentence on the head, made from its traced formula and its loss: `A logistic regression on tanh(dense(h[CLS]))`."""

from headscope.core.facts import GapTopic, Head, HeadParameter, ModelFacts, PoolingKind, Report, Stage, Task
from headscope.core.facts.heads.tasks import Activation, Loss
from headscope.core.words.words import sigmoids_of

_IDLE = frozenset({"dropout", "squeeze", "unsqueeze", "view", "reshape", "contiguous", "transpose", "permute"})
_PARTS = frozenset({"split", "unbind", "chunk"})
"""Operations that separate the scores of starts and ends, without changing them."""

_AFTER = {"index", "select", "slice", "gather"}
_OVER_OTHERS = {
    Task.MULTIPLE_CHOICE: "A linear score for each choice on {features}, softmax over the choices",
    Task.QUESTION_ANSWERING: "Two linear scores for each token (start, end) on {features}, softmax over the tokens",
}
"""Tasks whose softmax runs over choices or positions, not over the scores that one linear layer makes."""

_SCORES = {Task.MULTIPLE_CHOICE: 1, Task.QUESTION_ANSWERING: 2}
"""How many scores a linear layer makes where that is not the number of classes: of a choice, of a token."""

_UNITS = {Task.TOKEN_CLASSIFICATION: "token", Task.AUDIO_FRAME_CLASSIFICATION: "frame"}


_OF_THE_HEAD = frozenset(GapTopic) - {GapTopic.CHECKPOINT}
"""The topics of gaps that leave it open what the head does; weights that are not known do not."""


def plain_words(report: Report) -> str:
    """Says what kind of model the classifier is, on which features; "" if the traced facts do not tell."""
    head = report.head
    if head is None or any(gap.topic in _OF_THE_HEAD for gap in report.not_determined):
        return ""
    model, kind = report.model, _model_kind(report.model)
    makes_scores = _last_linear(head, model.task) is not None and class_matrix(head, model) is not None
    if not makes_scores or not head.features or not kind:
        return ""
    if model.task in _OVER_OTHERS:
        return kind.format(features=head.features)
    unit = _UNITS.get(model.task, "position")
    sentence = f"{kind} on {head.features}"
    if head.pooling.kind is PoolingKind.NONE:
        return f"For each {unit}, {sentence}"
    return f"{sentence[0].upper()}{sentence[1:]}"


def _model_kind(model: ModelFacts) -> str:
    """Names the model that a linear layer is with this loss; "" if it has no common name."""
    number = model.num_labels
    match (model.loss, model.activation):
        case (Loss.CROSS_ENTROPY, Activation.SOFTMAX) if model.task in _OVER_OTHERS:
            return _OVER_OTHERS[model.task]
        case _ if model.task in _OVER_OTHERS:
            return ""
        case (Loss.CROSS_ENTROPY, Activation.SOFTMAX) if number > 1:
            condition = "with integer labels, " if is_loss_chosen_by_labels(model) else ""
            kind = "logistic regression" if number == 2 else "softmax regression"
            return f"{condition}{article_of(number)} {number:,}-class {kind}"
        case (Loss.BINARY_CROSS_ENTROPY, Activation.SIGMOID):
            return "a logistic regression (one sigmoid)" if number == 1 else f"multi-label: {sigmoids_of(number)}"
        case (Loss.SQUARED_ERROR, _):
            return "a linear regression" if number == 1 else f"{number:,} linear regressions"
    return ""


def is_loss_chosen_by_labels(model: ModelFacts) -> bool:
    """True if the dtype of the labels, integers or floats, decides the loss when training starts."""
    # Transformers' sequence classifiers set `config.problem_type` in the first forward with labels.
    return model.problem_type is None and bool(model.reads_problem_type)


def article_of(number: int) -> str:
    """Chooses the article of a number as it is pronounced: `an 8-class`, `an 11-class`, `a 100-class`."""
    leading = f"{number:,}".partition(",")[0]  # 11,000 is read like 11, and 1,100 like 1
    return "an" if leading.startswith("8") or leading in {"11", "18"} else "a"


def _last_linear(head: Head, task: Task) -> Stage | None:
    """Finds the linear stage that makes the scores; None if more than a choice of positions follows it."""
    idle = _IDLE | (_PARTS if task is Task.QUESTION_ANSWERING else frozenset())
    for stage in reversed(head.stages):
        if stage.operation == "linear":
            return stage
        before = stage.input_shapes[0] if stage.input_shapes else ()
        after = stage.output_shape
        # It selects positions, and keeps all scores of each position in their order.
        picks = stage.operation in _AFTER and len(after) < len(before) and after[-1:] == before[-1:]
        if stage.operation not in idle and not picks:
            return None
    return None


def class_matrix(head: Head, model: ModelFacts) -> HeadParameter | None:
    """Gives the weight of the last linear stage, if it makes the scores of the task."""
    by_name = {parameter.name: parameter for parameter in head.parameters}
    linear = [stage for stage in head.stages if stage.operation == "linear"]
    rows = _SCORES.get(model.task, model.num_labels)
    owned = (by_name[name] for name in (linear[-1].parameters if linear else ()) if name in by_name)
    return next((item for item in owned if len(item.shape) == 2 and item.shape[0] == rows), None)
