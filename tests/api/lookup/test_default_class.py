"""A class of Transformers as MODEL: shown in its default configuration, and never taken for a checkpoint."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import transformers

import headscope
from headscope import api
from headscope.core.upstream.torch import on_meta
from headscope.errors import Offline, Unsupported, UsageError
from headscope.facts import CheckpointKind, ParameterStatus
from tests.families import FAMILIES

_CLASSES = {
    "BertForSequenceClassification": transformers.BertConfig,
    "RobertaForTokenClassification": transformers.RobertaConfig,
    "BartForSequenceClassification": transformers.BartConfig,
    "ViTForImageClassification": transformers.ViTConfig,
    "T5ForSequenceClassification": transformers.T5Config,
    "GPT2ForSequenceClassification": transformers.GPT2Config,
}


@pytest.mark.parametrize("name", _CLASSES)
def test_the_model_is_that_of_the_default_configuration(name: str) -> None:
    report = api.inspect(name)
    with on_meta():
        model = getattr(transformers, name)(_CLASSES[name]())
    held = dict(model.named_parameters(remove_duplicate=False))
    assert report.model.class_name == name
    assert report.model.parameters.total == sum(item.numel() for item in model.parameters())
    assert report.model.num_labels == model.config.num_labels
    assert report.checkpoint.kind is CheckpointKind.CLASS
    assert report.checkpoint.files == ()
    assert report.head is not None
    assert all(item.shape == tuple(held[item.name].shape) for item in report.head.parameters)
    atlas = next(entry for entry in api.heads(f"{name[:-1]}?", workers=1))
    assert atlas.head is not None
    assert report.head.formula == atlas.head.formula


def test_nothing_is_said_of_weights_that_no_checkpoint_gives() -> None:
    report = api.inspect("BertForSequenceClassification")
    assert {item.status for item in report.weights.parameters} == {ParameterStatus.UNKNOWN}
    assert (report.weights.new, report.findings, report.not_determined) == ((), (), ())


def test_labels_are_counted_as_asked() -> None:
    report = api.inspect("BertForSequenceClassification", labels=("A", "B", "C"))
    assert report.model.labels == ("A", "B", "C")
    assert report.head is not None and report.head.parameters[-2].shape == (3, 768)


@pytest.mark.parametrize("command", ["inspect", "diagram", "forward"])
def test_commands_that_need_no_weights_take_a_class(command: str, show: Callable[..., str]) -> None:
    assert "BertForSequenceClassification" in show(command, "BertForSequenceClassification")


def test_the_screen_says_that_no_checkpoint_was_read(show: Callable[..., str]) -> None:
    shown = " ".join(show("inspect", "BertForSequenceClassification").split())
    assert "BertForSequenceClassification in its default" in shown
    assert "headscope check Bert" not in shown


@pytest.mark.parametrize(
    "use", [api.check, api.diff_weights, api.verify, lambda name: api.snapshot(name, "never.json")]
)
def test_what_needs_weights_says_to_name_a_checkpoint(use: Callable[[str], object]) -> None:
    with pytest.raises(UsageError, match="not a checkpoint") as caught:
        use("BertForSequenceClassification")
    assert "headscope inspect BertForSequenceClassification" in caught.value.hint


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "BertForSequenceClassification"
    FAMILIES["bert"].build(name).save_pretrained(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert api.inspect(name).checkpoint.kind is CheckpointKind.LOCAL


@pytest.mark.parametrize(
    "name", ["BertModel", "BertConfig", "AutoModelForSequenceClassification", "BertPooler", "Linear"]
)
def test_a_class_without_a_head_is_refused_with_those_that_have_one(name: str) -> None:
    with pytest.raises(UsageError, match="no head") as caught:
        api.inspect(name)
    assert "Classification" in caught.value.hint or f"headscope explain {name}" in caught.value.hint


def test_a_name_with_an_underscore_is_a_class_too() -> None:
    name = "Qwen3_5TextForSequenceClassification"
    assert api.inspect(name).model.class_name == name


@pytest.mark.parametrize("wrong", ["BertForSequenceClasification", "bertforsequenceclassification"])
def test_a_misspelled_class_gets_the_nearest(wrong: str) -> None:
    with pytest.raises(Offline) as caught:
        api.inspect(wrong, offline=True)
    assert "BertForSequenceClassification" in caught.value.hint


@pytest.mark.parametrize(
    "options", [{"adapter": "x"}, {"revision": "main"}, {"model_class": "BertForTokenClassification"}]
)
def test_options_of_a_checkpoint_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        headscope.inspect("BertForSequenceClassification", **options)  # type: ignore[call-overload]


def test_another_task_than_that_of_the_class_is_refused() -> None:
    with pytest.raises(UsageError, match="token-classification"):
        api.inspect("BertForSequenceClassification", task="ner")


def test_json_says_what_kind_of_thing_was_examined(show: Callable[..., str]) -> None:
    assert json.loads(show("inspect", "BertForSequenceClassification", "--json"))["checkpoint"]["kind"] == "class"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("PerceiverForImageClassificationFourier", "must be divisible"),  # at its own defaults
        ("LayoutLMv2ForSequenceClassification", "detectron2"),
    ],
)
def test_a_class_that_cannot_be_built_says_why(name: str, reason: str) -> None:
    if reason == "detectron2" and find_spec(reason):
        pytest.skip("detectron2 is installed")
    with pytest.raises(Unsupported, match=reason) as caught:
        api.inspect(name)
    assert "config.json" not in caught.value.message + caught.value.hint
