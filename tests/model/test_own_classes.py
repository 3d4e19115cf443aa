"""Classes that Transformers doesn't have, and classes of Transformers whose scores headscope has no task for."""

from pathlib import Path
from typing import Any

import pytest
import transformers
from torch import nn
from transformers.modeling_layers import GenericForTokenClassification

import headscope
from headscope.core.model.classes.catalog import (
    gives_other_scores,
    saved_class_of,
    task_of_bases,
    task_of_own_class,
)
from headscope.core.model.classes.model_request import Choice, ModelRequest, choose
from headscope.errors import Unsupported, UsageError
from headscope.facts import Task

TOKENS, TEXTS, ANSWERS = Task.TOKEN_CLASSIFICATION, Task.SEQUENCE_CLASSIFICATION, Task.QUESTION_ANSWERING
CODE = """
from torch import nn
from transformers import BertForTokenClassification, BertModel, BertPreTrainedModel
class BertTagger(BertPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.bert = BertModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
class Mine(BertForTokenClassification): ...
class Other: ...
"""


def chosen(name: str, model_type: str = "bert", **wish: Any) -> Choice:
    return choose({"architectures": [name], "model_type": model_type}, ModelRequest(**wish))


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("BertCRFForTokenClassification", TOKENS),
        ("BertForNER", TOKENS),
        ("BertCrfForNer", TOKENS),
        ("RobertaTokenClassif", TOKENS),
        ("BiLSTMTagger", TOKENS),
        ("BertLSTMForSequenceClassification", TEXTS),
        ("BertForMultiLabelTextClassification", TEXTS),
        ("BertMultiSpanForQuestionAnswering", ANSWERS),
        ("MyImageClassifier", Task.IMAGE_CLASSIFICATION),
        ("Wav2Vec2ForSpeechClassification", Task.AUDIO_CLASSIFICATION),
        ("Partner", None),
        ("BertForEmotion", None),
    ],
)
def test_the_task_follows_the_name(name: str, task: Task | None) -> None:
    assert task_of_own_class(name, ()) is task


@pytest.mark.parametrize(
    ("bases", "task"),
    [
        ((transformers.BertForTokenClassification,), TOKENS),
        ((transformers.BertForQuestionAnswering,), ANSWERS),
        ((transformers.BertForMultipleChoice,), Task.MULTIPLE_CHOICE),
        ((transformers.ViTForImageClassification,), Task.IMAGE_CLASSIFICATION),
        # mapped to the task by Transformers, against its name
        ((transformers.Wav2Vec2ForSequenceClassification,), Task.AUDIO_CLASSIFICATION),
        ((GenericForTokenClassification, transformers.LlamaPreTrainedModel), TOKENS),
        ((transformers.BertPreTrainedModel,), None),
        ((nn.Module,), None),
    ],
)
@pytest.mark.parametrize("name", ["Mine", "TextTagger"])
def test_the_task_of_a_subclass_is_that_of_its_base(name: str, bases: tuple[type, ...], task: Task | None) -> None:
    assert task_of_bases(type(name, (type("Between", bases, {}),), {})) is task


def test_a_class_of_transformers_counts_more_than_the_name_of_a_subclass() -> None:
    named = type("BertForSequenceClassification", (transformers.BertForTokenClassification,), {})
    assert task_of_bases(named) is TOKENS
    assert task_of_bases(type("BertForTokenClassification", (nn.Module,), {})) is TOKENS


def test_the_tensors_tell_the_task_where_the_name_does_not() -> None:
    assert task_of_own_class("MyModel", ("bert.x", "crf.start_transitions", "crf.transitions")) is TOKENS
    assert task_of_own_class("MyModel", ("qa_outputs.weight",)) is ANSWERS
    assert chosen("MyModel", keys=("crf.transitions",)).cls.__name__ == "BertForTokenClassification"
    assert chosen("MyModel").cls.__name__ == "BertForSequenceClassification"


@pytest.mark.parametrize(
    ("architectures", "expected"),
    [
        (["BertForSequenceClassification"], (None, False)),
        (["BertForMaskedLM"], ("BertForMaskedLM", False)),
        (["TFBertForSequenceClassification"], ("TFBertForSequenceClassification", False)),
        (["AutoModelForSequenceClassification"], ("AutoModelForSequenceClassification", False)),
        (["BertLSTMForSequenceClassification"], ("BertLSTMForSequenceClassification", True)),
        ([], (None, False)),
        (None, (None, False)),
        ([7], (None, False)),
    ],
)
def test_a_class_that_transformers_lacks_is_told_from_one_that_it_has(architectures: Any, expected: Any) -> None:
    assert saved_class_of({"architectures": architectures}, "BertForSequenceClassification") == expected


@pytest.mark.parametrize(
    ("name", "model_type"),
    [("SegformerForSemanticSegmentation", "segformer"), ("MobileViTForSemanticSegmentation", "mobilevit")],
)
def test_scores_of_a_task_that_headscope_does_not_know_are_no_random_head(name: str, model_type: str) -> None:
    with pytest.raises(Unsupported, match=f"{name} .* scores classes for a task that headscope doesn't know"):
        chosen(name, model_type)
    assert chosen(name, model_type, task="image-classification").task is Task.IMAGE_CLASSIFICATION


@pytest.mark.parametrize(
    ("name", "model_type"),
    [
        ("XLMForQuestionAnswering", "xlm"),
        ("TapasForQuestionAnswering", "tapas"),
        ("LayoutLMForQuestionAnswering", "layoutlm"),
        ("VisualBertForMultipleChoice", "visual_bert"),
        ("ViltForImagesAndTextClassification", "vilt"),
        ("PatchTSTForClassification", "patchtst"),
        ("PatchTSMixerForRegression", "patchtsmixer"),
    ],
)
def test_a_class_that_returns_scores_is_never_one_without_a_head(name: str, model_type: str) -> None:
    for call in (lambda: chosen(name, model_type), lambda: headscope.inspect(name)):
        with pytest.raises((Unsupported, UsageError), match="gives scores for a task that headscope doesn't know"):
            call()
    assert chosen(name, model_type, model_class=name, task="sequence-classification").cls.__name__ == name


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "BertForMaskedLM", "GPT2LMHeadModel", "BertModel",
                                  "DetrForObjectDetection", "SegformerForSemanticSegmentation", "Wav2Vec2ForCTC",
                                  "BlipForQuestionAnswering", "PatchTSTForPrediction", "Nothing"])  # fmt: skip
def test_what_detects_fills_or_continues_gives_no_scores_of_another_task(name: str) -> None:
    assert not gives_other_scores(name)


@pytest.mark.parametrize(
    ("name", "model_type"), [("BertForMaskedLM", "bert"), ("ViTForMaskedImageModeling", "vit"), ("BertModel", "bert")]
)
def test_a_class_of_pretraining_is_fine_tuned(name: str, model_type: str) -> None:
    assert chosen(name, model_type).cls.__name__.endswith("Classification")


def test_a_class_in_a_file_is_built(tmp_path: Path) -> None:
    file = tmp_path / "my model.py"
    file.write_text(CODE, encoding="utf-8")
    found = chosen("BertTagger", model_class=f"{file}:BertTagger")
    assert (found.cls.__name__, found.task, found.config.num_labels) == ("BertTagger", TOKENS, 2)
    assert chosen("BertTagger", model_class=f"{file}:BertTagger").cls is found.cls
    assert chosen("Mine", model_class=f"{file}:Mine").task is TOKENS


@pytest.mark.parametrize(
    ("named", "error", "message"),
    [
        ("{}/none.py:A", UsageError, "there is no file"),
        ("{}/model.py:Missing", UsageError, "has no class Missing"),
        ("{}/model.py:Other", UsageError, "has no class Other that is a PreTrainedModel"),
        ("{}/broken.py:A", Unsupported, "ZeroDivisionError"),
        ("no_such_package.models:A", UsageError, "there is no module"),
    ],
)
def test_code_that_gives_no_class_is_told(named: str, error: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "broken.py").write_text("1 / 0", encoding="utf-8")
    with pytest.raises(error, match=message):
        chosen("A", model_class=named.format(tmp_path))
