"""A repository's own model code (`auto_map`): imported and run only where the user said that it may be."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from headscope.errors import Unsupported
from headscope.facts import Task
from headscope.facts.counting import few_of
from headscope.facts.stored.location import Location
from headscope.model.quiet import quiet
from headscope.upstream.transformers import class_of_repository

_AUTO_CLASSES = {
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


@dataclass(frozen=True, slots=True)
class RemoteClasses:
    """The classes that a repository's own code defines for a task."""

    config_class: Any
    model_class: type[PreTrainedModel]
    task: Task


def models_in_auto_map(config: Mapping[str, Any]) -> str:
    """The model classes that `auto_map` names, without running their code; "" where it names none."""
    auto_map = config.get("auto_map")
    named = auto_map.items() if isinstance(auto_map, dict) else ()
    return few_of(sorted({str(value).rpartition(".")[2] for auto, value in named if str(auto).startswith("AutoModel")}))


def load_remote_classes(config: dict[str, Any], task: Task | None, source: Location) -> RemoteClasses:
    """The configuration and model class that `auto_map` names for `task`, or for the first task that it names.

    Runs code of the repository. Raises Unsupported where it defines no such class or cannot be imported.
    """
    auto_map = config["auto_map"]
    tasks = (task,) if task else tuple(Task)
    found = next((item for item in tasks if isinstance(auto_map.get(_AUTO_CLASSES[item]), str)), None)
    if found is None or not isinstance(auto_map.get("AutoConfig"), str):
        lacking = (
            f"class for {task.value if task else 'a classification task'}"
            if found is None
            else "AutoConfig, which it must name"
        )
        raise Unsupported(
            f"the repository's own code defines no {lacking}",
            f"its auto_map names: {', '.join(sorted(map(str, auto_map)))}",
        )
    return RemoteClasses(
        _import(auto_map["AutoConfig"], source), _import(auto_map[_AUTO_CLASSES[found]], source), found
    )


def _import(reference: str, source: Location) -> Any:
    try:
        with quiet():
            return class_of_repository(reference, source.reference, **source.keywords())
    except Exception as err:
        raise Unsupported(
            f"the repository's own class {reference} cannot be imported: {type(err).__name__}: {err}",
            "install what its code needs",
        ) from err
