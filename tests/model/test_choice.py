"""Class and configuration: what the user and the checkpoint come to, and what cannot be."""

from typing import Any

import pytest

from headscope.errors import HeadscopeError, Malformed, Unsupported, UsageError
from headscope.facts import Task
from headscope.model.choice import Wish, choose

BERT: dict[str, Any] = {"model_type": "bert", "hidden_size": 32, "num_attention_heads": 2}


def test_without_a_wish_a_language_model_becomes_a_sequence_classifier() -> None:
    choice = choose(BERT | {"architectures": ["BertForMaskedLM"]}, Wish())
    assert (choice.cls.__name__, choice.task) == ("BertForSequenceClassification", Task.SEQUENCE_CLASSIFICATION)


def test_a_classifier_stays_what_it_is() -> None:
    choice = choose(BERT | {"architectures": ["BertForTokenClassification"]}, Wish())
    assert (choice.cls.__name__, choice.task) == ("BertForTokenClassification", Task.TOKEN_CLASSIFICATION)


def test_a_family_without_texts_gets_its_first_task() -> None:
    choice = choose({"model_type": "vit"}, Wish())
    assert (choice.cls.__name__, choice.task) == ("ViTForImageClassification", Task.IMAGE_CLASSIFICATION)


def test_tasks_may_be_spelled_with_underscores() -> None:
    assert choose(BERT, Wish(task="multiple_choice")).cls.__name__ == "BertForMultipleChoice"


def test_labels_decide_their_number_and_order() -> None:
    config = choose(BERT, Wish(labels=("no", "yes", "maybe"))).config
    assert config.id2label == {0: "no", 1: "yes", 2: "maybe"}
    assert config.num_labels == 3


FAULTS: list[tuple[dict[str, Any], Wish, type[HeadscopeError], str]] = [
    (BERT, Wish(num_labels=0), UsageError, "at least one label"),
    (BERT, Wish(num_labels=2, labels=("a", "b", "c")), UsageError, "3 label names"),
    (BERT, Wish(labels=("a", "a")), UsageError, "given twice"),
    (BERT, Wish(task="poetry"), UsageError, "no such task: poetry"),
    (BERT, Wish(model_class="BertForSequenceClasification"), UsageError, "has no class"),
    (BERT, Wish(model_class="BertTokenizer"), UsageError, "no model class"),
    (BERT, Wish(task="image-classification"), UsageError, "no class for image-classification"),
    ({}, Wish(), Malformed, "no model_type"),
    ({"model_type": "barrt"}, Wish(), Unsupported, "nearest: bart"),
    ({"model_type": "mine", "auto_map": {"AutoConfig": "a.B"}}, Wish(), Unsupported, "own code"),
    (BERT | {"label2id": 3, "id2label": [1]}, Wish(), Malformed, "BertConfig"),
    (BERT | {"num_labels": -1}, Wish(), Malformed, "num_labels in config.json is '-1'"),
    (BERT | {"num_hidden_layers": 100_000}, Wish(), Malformed, "100,000 layers"),
    (BERT | {"id2label": 7}, Wish(), Malformed, "BertConfig"),
]


@pytest.mark.parametrize(("config", "wish", "error", "part"), FAULTS, ids=[row[3] for row in FAULTS])
def test_what_cannot_be_is_said_with_a_hint(
    config: dict[str, Any], wish: Wish, error: type[HeadscopeError], part: str
) -> None:
    with pytest.raises(error) as caught:
        choose(config, wish)
    assert part in caught.value.message
    assert caught.value.hint


def test_a_misspelled_class_gets_a_suggestion() -> None:
    with pytest.raises(UsageError) as caught:
        choose(BERT, Wish(model_class="BertForSequenceClasification"))
    assert "BertForSequenceClassification" in caught.value.hint
