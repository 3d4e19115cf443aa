"""Class and configuration: what the user and the checkpoint come to, and what cannot be."""

from typing import Any

import pytest
from peft import TaskType
from transformers.pipelines import PIPELINE_REGISTRY

from headscope.core.facts.heads.tasks import parse_task
from headscope.core.model.classes.model_request import ModelRequest, choose
from headscope.core.model.loading.adapters import task_of_adapter
from headscope.errors import HeadscopeError, Malformed, Unsupported, UsageError
from headscope.facts import Task

BERT: dict[str, Any] = {"model_type": "bert", "hidden_size": 32, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("config", "name", "task"),
    [
        (BERT | {"architectures": ["BertForMaskedLM"]}, "BertForSequenceClassification", Task.SEQUENCE_CLASSIFICATION),
        (BERT | {"architectures": ["BertForTokenClassification"]}, "BertForTokenClassification",
         Task.TOKEN_CLASSIFICATION),
        ({"model_type": "vit"}, "ViTForImageClassification", Task.IMAGE_CLASSIFICATION),
    ],
    ids=["of a language model", "of a classifier", "of a family without texts"],
)  # fmt: skip
def test_without_a_wish_the_class_is_the_named_one_or_the_first(config: dict[str, Any], name: str, task: Task) -> None:
    choice = choose(config, ModelRequest())
    assert (choice.cls.__name__, choice.task) == (name, task)


def test_tasks_may_have_the_names_of_pipelines() -> None:
    classes = {f"AutoModelFor{task.title().replace('-', '')}": task for task in Task}
    aliases = {other: PIPELINE_REGISTRY.check_task(other)[1] for other in PIPELINE_REGISTRY.task_aliases}
    known = aliases | dict(PIPELINE_REGISTRY.supported_tasks)
    pairs = {name: [cls.__name__ for cls in made["pt"]] for name, made in known.items()}
    wanted = {name: classes[names[0]] for name, names in pairs.items() if names[0] in classes}
    assert {"sentiment-analysis", "ner", "text-classification", "zero-shot-classification"} < wanted.keys()
    assert {name: parse_task(name) for name in wanted} == wanted


@pytest.mark.parametrize("name", TaskType)
def test_tasks_may_have_the_names_that_peft_has(name: TaskType) -> None:
    wanted = task_of_adapter({"task_type": name.value})
    if wanted is not None:
        assert parse_task(name.value) is wanted


def test_tasks_may_be_spelled_with_underscores() -> None:
    assert choose(BERT, ModelRequest(task="multiple_choice")).cls.__name__ == "BertForMultipleChoice"


def test_labels_decide_their_number_and_order() -> None:
    config = choose(BERT, ModelRequest(labels=("no", "yes", "maybe"))).config
    assert config.id2label == {0: "no", 1: "yes", 2: "maybe"}
    assert config.num_labels == 3


FAULTS: list[tuple[dict[str, Any], ModelRequest, type[HeadscopeError], str]] = [
    (BERT, ModelRequest(num_labels=0), UsageError, "at least one label"),
    (BERT, ModelRequest(num_labels=2, labels=("a", "b", "c")), UsageError, "3 label names"),
    (BERT, ModelRequest(labels=("a", "a")), UsageError, "given twice"),
    (BERT, ModelRequest(task="poetry"), UsageError, "no such task: poetry"),
    (BERT, ModelRequest(model_class="BertForSequenceClasification"), UsageError, "has no class"),
    (BERT, ModelRequest(model_class="BertTokenizer"), UsageError, "not a model class"),
    (BERT, ModelRequest(task="image-classification"), UsageError, "no class for image-classification"),
    ({}, ModelRequest(), Malformed, "no model_type"),
    ({"model_type": "barrt"}, ModelRequest(), Unsupported, "nearest: bart"),
    ({"model_type": "mine", "auto_map": {"AutoConfig": "a.B"}}, ModelRequest(), Unsupported, "own code"),
    (BERT | {"label2id": 3, "id2label": [1]}, ModelRequest(), Malformed, "BertConfig"),
    (BERT | {"num_labels": -1}, ModelRequest(), Malformed, "num_labels in config.json is '-1'"),
    (BERT | {"num_hidden_layers": 100_000}, ModelRequest(), Malformed, "100,000 layers"),
    (BERT | {"id2label": 7}, ModelRequest(), Malformed, "BertConfig"),
]


@pytest.mark.parametrize(("config", "wish", "error", "part"), FAULTS, ids=[row[3] for row in FAULTS])
def test_what_cannot_be_is_said_with_a_hint(
    config: dict[str, Any], wish: ModelRequest, error: type[HeadscopeError], part: str
) -> None:
    with pytest.raises(error) as caught:
        choose(config, wish)
    assert part in caught.value.message
    assert caught.value.hint


def test_a_misspelled_class_gets_a_suggestion() -> None:
    with pytest.raises(UsageError) as caught:
        choose(BERT, ModelRequest(model_class="BertForSequenceClasification"))
    assert "BertForSequenceClassification" in caught.value.hint
