"""Which class Transformers maps to which model type and task."""

from dataclasses import dataclass
from typing import Any

from transformers.models.auto import modeling_auto

from headscope.facts import Task

_MAPPING_OF_TASK = {
    Task.SEQUENCE_CLASSIFICATION: "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    Task.TOKEN_CLASSIFICATION: "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    Task.MULTIPLE_CHOICE: "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",
    Task.QUESTION_ANSWERING: "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    Task.NEXT_SENTENCE_PREDICTION: "MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES",
    Task.IMAGE_CLASSIFICATION: "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    Task.AUDIO_CLASSIFICATION: "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    Task.AUDIO_FRAME_CLASSIFICATION: "MODEL_FOR_AUDIO_FRAME_CLASSIFICATION_MAPPING_NAMES",
    Task.AUDIO_XVECTOR: "MODEL_FOR_AUDIO_XVECTOR_MAPPING_NAMES",
    Task.VIDEO_CLASSIFICATION: "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES",
}

_HEAD_OF_PRETRAINING = {
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "masked-LM head",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "language-model head",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": "sequence-to-sequence LM head",
    "MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES": "next-sentence head",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": "sequence-classification head",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": "token-classification head",
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": "question-answering head",
    "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES": "multiple-choice head",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES": "image-classification head",
    "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES": "audio-classification head",
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES": "pretraining head",
    "MODEL_MAPPING_NAMES": "base model",
}


@dataclass(frozen=True, slots=True)
class HeadClass:
    """A class of Transformers by name, with the task it is mapped to."""

    name: str
    task: Task


def classes_of_task(task: Task) -> dict[str, str]:
    """Model type to class name, as the installed Transformers maps them for `task`."""
    return _first_names(getattr(modeling_auto, _MAPPING_OF_TASK[task], {}))


def class_for(model_type: str, task: Task) -> HeadClass | None:
    """The class that Transformers maps `model_type` to for `task`, or None."""
    name = classes_of_task(task).get(model_type)
    return HeadClass(name, task) if name else None


def classes_of_family(model_type: str) -> tuple[HeadClass, ...]:
    """Every classification class of a family, in the order of the tasks."""
    found = (class_for(model_type, task) for task in Task)
    return tuple(head_class for head_class in found if head_class)


def task_of_class(name: str) -> Task | None:
    """The task a class is mapped to, or None for a class that no classification task maps."""
    for task, mapping in _MAPPING_OF_TASK.items():
        if name in _all_names(getattr(modeling_auto, mapping, {})):
            return task
    return None


def kin_with_heads(model_type: str) -> tuple[tuple[str, str], ...]:
    """Classes of a family that own a head, as (class name, what its head is called), the most specific first."""
    found: dict[str, str] = {}
    for mapping, word in _HEAD_OF_PRETRAINING.items():
        name = _first_names(getattr(modeling_auto, mapping, {})).get(model_type)
        if name:
            found.setdefault(name, word)
    return tuple(found.items())


def _first_names(mapping: Any) -> dict[str, str]:
    return {kind: names if isinstance(names, str) else names[0] for kind, names in mapping.items()}


def _all_names(mapping: Any) -> set[str]:
    return {name for names in mapping.values() for name in ((names,) if isinstance(names, str) else names) if name}
