"""Classes that Transformers maps to each model type and task."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import transformers

from headscope.core.facts import Task
from headscope.core.facts.stored.checkpoint import architectures_in
from headscope.core.upstream.transformers import auto_tables, classes_by_type, config_classes

AUTO_CLASS_OF_TASK = {
    Task.SEQUENCE_CLASSIFICATION: "AutoModelForSequenceClassification",
    Task.TOKEN_CLASSIFICATION: "AutoModelForTokenClassification",
    Task.MULTIPLE_CHOICE: "AutoModelForMultipleChoice",
    Task.QUESTION_ANSWERING: "AutoModelForQuestionAnswering",
    Task.NEXT_SENTENCE_PREDICTION: "AutoModelForNextSentencePrediction",
    Task.IMAGE_CLASSIFICATION: "AutoModelForImageClassification",
    Task.AUDIO_CLASSIFICATION: "AutoModelForAudioClassification",
    Task.AUDIO_FRAME_CLASSIFICATION: "AutoModelForAudioFrameClassification",
    Task.AUDIO_XVECTOR: "AutoModelForAudioXVector",
    Task.VIDEO_CLASSIFICATION: "AutoModelForVideoClassification",
}

_HEAD_OF_PRETRAINING = {
    "AutoModelForMaskedLM": "masked-LM head",
    "AutoModelForCausalLM": "language-model head",
    "AutoModelForSeq2SeqLM": "sequence-to-sequence LM head",
    "AutoModelForNextSentencePrediction": "next-sentence head",
    "AutoModelForSequenceClassification": "sequence-classification head",
    "AutoModelForTokenClassification": "token-classification head",
    "AutoModelForQuestionAnswering": "question-answering head",
    "AutoModelForMultipleChoice": "multiple-choice head",
    "AutoModelForImageClassification": "image-classification head",
    "AutoModelForAudioClassification": "audio-classification head",
    "AutoModelForPreTraining": "pretraining head",
    "AutoModelForMaskedImageModeling": "masked-image head",
    "AutoModel": "base model",
}


@dataclass(frozen=True, slots=True)
class HeadClass:
    """A class of Transformers by name, with the task it is mapped to."""

    name: str
    task: Task


def classes_of_task(task: Task) -> dict[str, str]:
    """Maps model type to class name, as the installed Transformers maps them for `task`."""
    return _first_name_by_type(AUTO_CLASS_OF_TASK[task])


def all_classes_of_task(task: Task) -> tuple[tuple[str, str], ...]:
    """Lists (model type, class name) of every class for `task`, those that no auto class maps included.

    Classes that no auto class maps (`LukeForEntityClassification`) are found by their names.
    """
    found = [(kind, name) for kind, names in classes_by_type(AUTO_CLASS_OF_TASK[task]).items() for name in names]
    mapped = {name for _, name in found}
    return (*dict.fromkeys(found), *(pair for pair in _classes_in_no_mapping(task) if pair[1] not in mapped))


def _classes_in_no_mapping(task: Task) -> tuple[tuple[str, str], ...]:
    """Lists the classes whose name says `task` and that no auto class maps, with their model types."""
    mapped = set().union(*map(names_of_auto_class, AUTO_CLASS_OF_TASK.values()))
    names = [name for name in _exported_names() if name not in mapped and _task_in_name(name) is task]
    classes = [(name, getattr(transformers, name)) for name in names if not name.startswith("Auto")]
    return tuple(
        (cls.config_class.model_type, name) for name, cls in classes if getattr(cls, "config_class", None) is not None
    )


@cache
def _exported_names() -> tuple[str, ...]:
    """Lists every name that Transformers exports."""
    # Transformers' lazy module takes a second to collect them, so they are cached.
    return tuple(dir(transformers))


_TASKS_OF_NAMES = (
    (re.compile(r"For(SequenceClassification|Entity(Pair|Span)?Classification)$"), Task.SEQUENCE_CLASSIFICATION),
    (re.compile(r"ForTokenClassification$"), Task.TOKEN_CLASSIFICATION),
    (re.compile(r"ForImageClassification"), Task.IMAGE_CLASSIFICATION),
    (re.compile(r"ForVideoClassification$"), Task.VIDEO_CLASSIFICATION),
    (re.compile(r"ForAudioClassification$"), Task.AUDIO_CLASSIFICATION),
)


def _task_in_name(name: str) -> Task | None:
    return next((task for pattern, task in _TASKS_OF_NAMES if pattern.search(name)), None)


_TASKS_OF_OWN_CLASSES = (
    (
        re.compile(r"Token_?Classif|NER(?![a-z])|Ner(?![a-z])|Tagg|CRF(?!.*Sequence)|SequenceLabel"),
        Task.TOKEN_CLASSIFICATION,
    ),
    (re.compile(r"QuestionAnswer|QA(?![a-z])"), Task.QUESTION_ANSWERING),
    (re.compile(r"MultipleChoice"), Task.MULTIPLE_CHOICE),
    (re.compile(r"Sequence|Text|Document|Sentence"), Task.SEQUENCE_CLASSIFICATION),
    (re.compile(r"Image"), Task.IMAGE_CLASSIFICATION),
    (re.compile(r"Video"), Task.VIDEO_CLASSIFICATION),
    (re.compile(r"Audio|Speech"), Task.AUDIO_CLASSIFICATION),
)
_TASKS_OF_TENSORS = (
    (re.compile(r"(^|[._])(start_|end_)?transitions?(_matrix)?$"), Task.TOKEN_CLASSIFICATION),
    (re.compile(r"(^|\.)qa_outputs\.weight$"), Task.QUESTION_ANSWERING),
)


def task_of_own_class(name: str, keys: Iterable[str]) -> Task | None:
    """Guesses the task of a class outside Transformers by its name, then by its tensors; None if neither says one."""
    named = next((task for pattern, task in _TASKS_OF_OWN_CLASSES if pattern.search(name)), None)
    held = tuple(keys) if named is None else ()
    return named or next((task for pattern, task in _TASKS_OF_TENSORS if any(map(pattern.search, held))), None)


def saved_class_of(config: Mapping[str, Any], shown: str) -> tuple[str | None, bool]:
    """Gives the class that a configuration names, unless it is the one shown, and whether Transformers lacks it.

    The classes that earlier versions had for other frameworks count as those of PyTorch.
    """
    names = architectures_in(config)
    if not names or shown in names:
        return None, False
    # Older checkpoints name the class of the framework that saved them; `FSDP` comes from a model saved while wrapped.
    plain = re.sub(r"^(TF|Flax|FSDP)(?=[A-Z])", "", names[0])
    return names[0], not (plain == shown or names[0].startswith("Auto") or is_known_class(plain))


def class_for(model_type: str, task: Task) -> HeadClass | None:
    """Gives the class that Transformers maps `model_type` to for `task`, or None."""
    name = classes_of_task(task).get(model_type)
    return HeadClass(name, task) if name else None


def classes_of_family(model_type: str) -> tuple[HeadClass, ...]:
    """Lists every classification class of a family, in the order of the tasks."""
    found = (class_for(model_type, task) for task in Task)
    return tuple(head_class for head_class in found if head_class)


def task_of_class(name: str) -> Task | None:
    """Gives the task a class is mapped to, or the one in its name; None for a class without a classification task."""
    for task, auto in AUTO_CLASS_OF_TASK.items():
        if name in names_of_auto_class(auto):
            return task
    return _task_in_name(name) if is_known_class(name) else None


def task_of_bases(cls: type) -> Task | None:
    """Gives the task of the nearest class of Transformers that a class is, or is made from; then that of its name.

    A user may give a subclass any name, and Transformers fills its tensors as those of the base.
    """
    for base in (base for base in cls.__mro__ if base.__module__.startswith("transformers.")):
        name, is_generic = base.__name__, base.__name__.startswith("GenericFor")  # parts of many families' classes
        task = task_of_class(name) or (task_of_own_class(name, ()) if is_generic else None)
        if task is not None:
            return task
    return task_of_class(cls.__name__)


def mapped_name(name: str, model_type: str) -> str | None:
    """Gives the class that an auto class (`AutoModelForTokenClassification`) loads for a model type, or None."""
    names = auto_tables().get(name, {}).get(model_type, ())
    return names[0] if names else None


def _is_any(text: str, model_type: str) -> bool:
    return True


def other_classes(model_type: str, is_wanted: Callable[[str, str], bool] = _is_any) -> tuple[str, ...]:
    """Writes the classes of `other_mappings` as texts: `JevForDecision (AutoModelForDecision)`."""
    return tuple(f"{name} ({auto})" for name, auto in sorted(other_mappings(model_type, is_wanted).items()))


def other_mappings(model_type: str, is_wanted: Callable[[str, str], bool] = _is_any) -> dict[str, str]:
    """Maps a family's classes with a head for tasks that headscope doesn't know to the auto classes that map them.

    Classes that continue or fill texts, or that have no head, are left out. Only classes whose text and model type are
    wanted are imported.
    """
    known = set().union(*map(names_of_auto_class, (*AUTO_CLASS_OF_TASK.values(), *_HEAD_OF_PRETRAINING)))
    return {
        names[0]: auto
        for auto, table in auto_tables().items()
        if (names := table.get(model_type)) and names[0] not in known
        if is_wanted(f"{names[0]} ({auto})", model_type) and not _can_generate(names[0])
    }


_OUTPUT_OF_SCORES = re.compile(r"\.\w*(Classifi|QuestionAnswering|MultipleChoice|Regression)\w*Output")


def gives_other_scores(name: str) -> bool:
    """True if a class returns scores of classes, answers or numbers, for a task that headscope doesn't know.

    The annotated return type of its forward shows it: classes that detect, segment, fill or continue return another.
    """
    forward = getattr(getattr(transformers, name, None), "forward", None)
    returned = str(getattr(forward, "__annotations__", {}).get("return"))
    return task_of_class(name) is None and _OUTPUT_OF_SCORES.search(returned) is not None


def every_other_class(is_wanted: Callable[[str, str], bool] = _is_any) -> dict[str, str]:
    """Maps the texts of `other_classes` of every family to its model type; only the wanted ones."""
    return {item: kind for kind in config_classes() for item in other_classes(kind, is_wanted)}


def _can_generate(name: str) -> bool:
    try:
        return bool(getattr(transformers, name).can_generate())
    except (AttributeError, ImportError):
        return False


def is_known_class(name: str) -> bool:
    """True if the installed Transformers has a class of that name."""
    return isinstance(getattr(transformers, name, None), type)


def family_of_class(name: str) -> str | None:
    """Gives the model type whose configuration a class takes; None for anything but a model class of one family."""
    config_class = getattr(getattr(transformers, name, None), "config_class", None)
    family = getattr(config_class, "model_type", None)
    return family if family in config_classes() else None


def language_model_of(model_type: str) -> str | None:
    """Gives the class of a family that continues texts token by token, or None."""
    return _first_name_by_type("AutoModelForCausalLM").get(model_type)


def siblings_with_heads(model_type: str) -> tuple[tuple[str, str], ...]:
    """Lists classes of a family that own a head, as (class name, what its head is called), the most specific first."""
    found: dict[str, str] = {}
    for auto, word in _HEAD_OF_PRETRAINING.items():
        name = _first_name_by_type(auto).get(model_type)
        if name:
            found.setdefault(name, word)
    return tuple(found.items())


def _first_name_by_type(auto: str) -> dict[str, str]:
    return {kind: names[0] for kind, names in classes_by_type(auto).items() if names}


@cache
def names_of_auto_class(auto: str) -> frozenset[str]:
    """Collects the classes in the table of an auto class; raises what `classes_by_type` raises."""
    return frozenset(name for names in classes_by_type(auto).values() for name in names)
