"""Rule on heads that end in probabilities, to which the loss or a pipeline applies a softmax or sigmoid again."""

from math import e, exp

from headscope.checks.facts import Subject
from headscope.checks.rules.rule import Findings, NotKnown, Rule, head_of, is_live_subject, rule
from headscope.core.facts import ModelFacts, Profile, Severity, Stage, Task
from headscope.core.facts.heads.tasks import WITHOUT_CLASSES, Activation, Loss, activation_for

_FUNCTIONS = (Activation.SOFTMAX, Activation.SIGMOID)
_HANDS_ON = {"squeeze", "unsqueeze", "view", "reshape", "flatten", "select", "slice", "index"}
"""Operations that leave scores as they are, in another layout, or keep some of them."""
_PIPELINE = "the pipeline of Transformers"
_OTHER_REMEDIES = {
    _PIPELINE: ", or call pipeline(..., function_to_apply='none')",
    "CrossEncoder": ", or load it with CrossEncoder(..., activation_fn=torch.nn.Identity())",
}
_SIGMOID_FOR_ONE = (Task.SEQUENCE_CLASSIFICATION, Task.IMAGE_CLASSIFICATION)
_IN_PIPELINES = (*_SIGMOID_FOR_ONE, Task.TOKEN_CLASSIFICATION, Task.AUDIO_CLASSIFICATION, Task.VIDEO_CLASSIFICATION)


@rule("HS207", "probabilities-as-scores", "The scores are probabilities already", finds="W|W")
def probabilities_as_scores(this: Rule, subject: Subject) -> Findings:
    """A softmax or sigmoid at the end of the head, and one in the loss or in what uses the scores."""
    model, is_training = subject.report.model, subject.profile is Profile.TRAINING
    last = None if model.task in WITHOUT_CLASSES else _final_function(head_of(subject).stages, model.num_labels)
    if last is None:
        return
    who, function = _function_of_loss(model) if is_training else _function_of_use(subject)
    # HS204 and HS501 find a softmax over one score.
    if function not in _FUNCTIONS or (function == Activation.SOFTMAX and model.num_labels == 1):
        return
    place = f" ({last.file.rpartition('/')[2]}:{last.line})" if last.file else ""
    more = ", and compute the loss from them" if is_training else _OTHER_REMEDIES.get(who, "")
    again = " again" if function == last.operation else ""
    yield this.find(
        Severity.WARNING,
        f"The head ends in a {last.operation}{place}, and {who} applies a {function}{again}: "
        f"{_describe_cost(function, model.num_labels, is_training=is_training)}.",
        f"Return the scores before the {last.operation} from forward{more}.",
    )


def _final_function(stages: tuple[Stage, ...], classes: int) -> Stage | None:
    """Finds the sigmoid, or the softmax over the classes, whose results are the scores; None for other scores."""
    at, keeps_rows = len(stages) - 1, True
    while at >= 0 and stages[at].operation in _HANDS_ON and stages[at].inputs:
        keeps_rows &= stages[at].output_shape[-1:] == stages[at].input_shapes[0][-1:]
        at = stages[at].inputs[0]
    if at < 0 or stages[at].operation not in _FUNCTIONS:
        return None
    shape, axis = stages[at].output_shape, stages[at].detail
    is_over_classes = keeps_rows and shape[-1:] == (classes,) and axis in {"dim=-1", f"dim={len(shape) - 1}"}
    return stages[at] if is_over_classes or stages[at].operation == Activation.SIGMOID else None


def _function_of_loss(model: ModelFacts) -> tuple[str, str]:
    """Gives the loss and its function. Raises NotKnown unless the forward computes it from the scores."""
    if model.loss in (Loss.NONE, Loss.NOT_DETERMINED):
        raise NotKnown("headscope could not determine which loss is computed from the probabilities of the head")
    return model.loss, activation_for(model.loss)


def _function_of_use(subject: Subject) -> tuple[str, str]:
    """Gives who turns the scores into probabilities, and its function: another library, or Transformers' pipeline."""
    model, problem = subject.report.model, subject.config.problem_type
    if model.loss == Loss.NONE and model.activation != Activation.NOT_DETERMINED:
        return model.class_name, model.activation
    # As `postprocess` does: https://github.com/huggingface/transformers/tree/v5.24.0/src/transformers/pipelines
    if model.task not in _IN_PIPELINES or (is_live_subject(subject) and not subject.config.id2label):
        return "", Activation.NONE  # no pipeline takes it
    if model.task is Task.TOKEN_CLASSIFICATION:
        return "the pipeline for tokens", Activation.SOFTMAX
    if problem == "regression":
        return _PIPELINE, Activation.NONE
    is_one = model.num_labels == 1 and model.task in _SIGMOID_FOR_ONE
    return _PIPELINE, Activation.SIGMOID if is_one or problem == "multi_label_classification" else Activation.SOFTMAX


def _describe_cost(function: str, classes: int, *, is_training: bool) -> str:
    """Says what a function does to numbers between 0 and 1: each bound is reached by the right zeros and ones."""
    most = e / (e + classes - 1) if function == Activation.SOFTMAX else 1 / (1 + exp(-1))
    if is_training:
        what = f"no class more than {most:.2f}" if function == Activation.SOFTMAX else f"each class 0.50 to {most:.2f}"
        return f"it gives {what}, however sure the model is, and gradients are small"
    scores = (
        f"the largest of {classes} scores is at most" if function == Activation.SOFTMAX else "every score is 0.50 to"
    )
    return f"{scores} {most:.2f}, so no threshold above that is reached"
