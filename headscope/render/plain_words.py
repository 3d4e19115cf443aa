"""The head in one sentence, from its traced formula and its loss: `A logistic regression on tanh(dense(h[CLS]))`."""

import re

from headscope.facts import Head, HeadParameter, ModelFacts, PoolingKind, Report, Stage, Task

_CALL = re.compile(r"(?P<name>[\w.]+)\((?P<inner>.*)\)(?P<pick>\[[^\[\]()]+\])?")
_IDLE = {"dropout", "squeeze", "unsqueeze", "view", "reshape", "contiguous", "transpose", "permute"}
_AFTER = {"index", "select", "slice", "gather"}
_SCORES_OF_OTHERS = {Task.QUESTION_ANSWERING, Task.MULTIPLE_CHOICE}
"""Tasks whose softmax runs over positions or choices, not over the scores that one linear layer makes."""

_UNITS = {Task.TOKEN_CLASSIFICATION: "token", Task.AUDIO_FRAME_CLASSIFICATION: "frame"}


def plain_words(report: Report) -> str:
    """What kind of model the classifier is, and on which features; "" where the traced facts do not say."""
    head = report.head
    if head is None or report.not_determined:
        return ""
    features, kind = _features(head, report.model), _kind(report.model)
    if not features or not kind:
        return ""
    unit = _UNITS.get(report.model.task, "position")
    sentence = f"{kind} on {features}"
    if head.pooling.kind is PoolingKind.NONE:
        return f"For each {unit}, {sentence}"
    return f"{sentence[0].upper()}{sentence[1:]}"


def _kind(model: ModelFacts) -> str:
    """The model that a linear layer is with this loss; "" where it has no common name."""
    number = model.num_labels
    if model.task in _SCORES_OF_OTHERS:
        return ""
    match (model.loss, model.activation):
        case ("CrossEntropyLoss", "softmax") if number > 1:
            return f"a logistic regression with {number:,} classes"
        case ("BCEWithLogitsLoss", "sigmoid"):
            return "a yes-or-no logistic regression" if number == 1 else f"{number:,} yes-or-no logistic regressions"
        case ("MSELoss", _):
            return "a linear regression" if number == 1 else f"{number:,} linear regressions"
    return ""


def _features(head: Head, model: ModelFacts) -> str:
    """What the last linear layer reads, as the formula writes it; "" where the formula does not end in that layer."""
    found = _CALL.fullmatch(head.formula.removeprefix("logits = "))
    stage = _last_linear(head)
    if found is None or stage is None or not _is_closed(found["inner"]) or class_matrix(head, model) is None:
        return ""
    if stage.module != found["name"] and not stage.module.endswith(f".{found['name']}"):
        return ""
    inner, pick = found["inner"], found["pick"] or ""
    return f"({inner}){pick}" if pick and " " in inner else f"{inner}{pick}"


def _is_closed(text: str) -> bool:
    """Whether `text` is the one argument of a call: it closes what it opens, and no comma parts it."""
    depth = 0
    for char in text:
        depth += (char in "([") - (char in ")]")
        if depth < 0 or (char == "," and not depth):
            return False
    return depth == 0


def _last_linear(head: Head) -> Stage | None:
    """The linear stage that makes the scores; None where something but a choice of positions follows it."""
    for stage in reversed(head.stages):
        if stage.operation == "linear":
            return stage
        if stage.operation not in _IDLE and not _picks_positions(stage):
            return None
    return None


def _picks_positions(stage: Stage) -> bool:
    """Whether an axis of positions goes and the scores of each position stay as they are, all and in their order."""
    before = stage.input_shapes[0] if stage.input_shapes else ()
    after = stage.output_shape
    return stage.operation in _AFTER and len(after) < len(before) and after[-1:] == before[-1:]


def class_matrix(head: Head, model: ModelFacts) -> HeadParameter | None:
    """The weight of the last linear stage, if it makes the class scores."""
    by_name = {parameter.name: parameter for parameter in head.parameters}
    linear = [stage for stage in head.stages if stage.operation == "linear"]
    owned = (by_name[name] for name in (linear[-1].parameters if linear else ()) if name in by_name)
    return next((item for item in owned if len(item.shape) == 2 and item.shape[0] == model.num_labels), None)  # noqa: PLR2004
