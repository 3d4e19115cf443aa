"""The tasks whose heads headscope knows, as on the command line, and the losses, by their PyTorch names."""

from enum import StrEnum

from headscope.core.facts.counting import safe_repr
from headscope.errors import UsageError, did_you_mean


class Loss(StrEnum):
    """The losses of forwards that headscope knows, by their PyTorch names."""

    CROSS_ENTROPY = "CrossEntropyLoss"
    BINARY_CROSS_ENTROPY = "BCEWithLogitsLoss"
    SQUARED_ERROR = "MSELoss"
    ABSOLUTE_ERROR = "L1Loss"
    SMOOTH_ABSOLUTE_ERROR = "SmoothL1Loss"
    NONE = "none"
    """The forward takes no labels."""
    NOT_DETERMINED = "not determined"
    """No forward told."""


class Activation(StrEnum):
    """What makes probabilities of scores; a module in memory may apply another function, by its own name."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    NONE = "none"
    NOT_DETERMINED = "not determined"
    """No forward told."""


class Task(StrEnum):
    """A classification task of Transformers."""

    SEQUENCE_CLASSIFICATION = "sequence-classification"
    TOKEN_CLASSIFICATION = "token-classification"
    MULTIPLE_CHOICE = "multiple-choice"
    QUESTION_ANSWERING = "question-answering"
    NEXT_SENTENCE_PREDICTION = "next-sentence-prediction"
    IMAGE_CLASSIFICATION = "image-classification"
    AUDIO_CLASSIFICATION = "audio-classification"
    AUDIO_FRAME_CLASSIFICATION = "audio-frame-classification"
    AUDIO_XVECTOR = "audio-xvector"
    VIDEO_CLASSIFICATION = "video-classification"


OTHER_NAMES = {
    "text-classification": Task.SEQUENCE_CLASSIFICATION,
    "sentiment-analysis": Task.SEQUENCE_CLASSIFICATION,
    "zero-shot-classification": Task.SEQUENCE_CLASSIFICATION,
    "natural-language-inference": Task.SEQUENCE_CLASSIFICATION,
    "text-ranking": Task.SEQUENCE_CLASSIFICATION,
    "seq-cls": Task.SEQUENCE_CLASSIFICATION,
    "ner": Task.TOKEN_CLASSIFICATION,
    "token-cls": Task.TOKEN_CLASSIFICATION,
    "extractive-question-answering": Task.QUESTION_ANSWERING,
    "question-ans": Task.QUESTION_ANSWERING,
}
"""What the Hub, pipelines and PEFT call a task that Transformers' classes have another name for."""


def parse_task(name: str) -> Task:
    """Finds the task of a name, also a name of the Hub, a pipeline or PEFT; case, `-` and `_` make no difference.

    Raises UsageError with the nearest name for an unknown one.
    """
    name = name if isinstance(name, str) else safe_repr(name)
    spelled = name.strip().lower().replace("_", "-").replace(" ", "-")
    known = {task.value: task for task in Task} | OTHER_NAMES
    if spelled not in known:
        hint = did_you_mean(spelled, known, f"tasks: {', '.join(task.value for task in Task)}")
        raise UsageError(f"no such task: {name}", hint)
    return known[spelled]


WITHOUT_CLASSES = {
    Task.MULTIPLE_CHOICE: "each choice gets one score, and the best choice is the answer",
    Task.QUESTION_ANSWERING: "each token gets a score as the start and one as the end of the answer",
    Task.NEXT_SENTENCE_PREDICTION: "two, fixed: 0 the second text follows the first, 1 it does not",
}
"""Tasks whose scores are of no classes of the user's, and what they are instead."""

TEXT_TASKS = frozenset(
    {
        Task.SEQUENCE_CLASSIFICATION,
        Task.TOKEN_CLASSIFICATION,
        Task.MULTIPLE_CHOICE,
        Task.QUESTION_ANSWERING,
        Task.NEXT_SENTENCE_PREDICTION,
    }
)
"""Tasks whose inputs are texts."""


_ACTIVATIONS: dict[str, Activation] = {
    Loss.CROSS_ENTROPY: Activation.SOFTMAX,
    Loss.BINARY_CROSS_ENTROPY: Activation.SIGMOID,
    Loss.SQUARED_ERROR: Activation.NONE,
    Loss.ABSOLUTE_ERROR: Activation.NONE,
    Loss.SMOOTH_ABSOLUTE_ERROR: Activation.NONE,
}


def activation_for(loss: str) -> str:
    """Gives the function that turns scores into probabilities under `loss`; `not determined` for an unknown loss."""
    return _ACTIVATIONS.get(loss, Activation.NOT_DETERMINED).value


class Input(StrEnum):
    """What is classified."""

    TEXT = "text"
    IMAGE = "image"
    AUDIO = "audio"

    @property
    def noun(self) -> str:
        """Name of one of them."""
        return "sound" if self is Input.AUDIO else self.value

    @property
    def one(self) -> str:
        """Noun with its article."""
        return f"an {self.noun}" if self is Input.IMAGE else f"a {self.noun}"
