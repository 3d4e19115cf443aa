"""What a verdict says of unusual configurations and of the process it runs in, held against Transformers."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertForSequenceClassification,
)

import headscope
from headscope.core.checkpoints.reference import parse_reference
from headscope.errors import HeadscopeError, Unsupported, UsageError
from headscope.facts import Verdict
from tests.checks.broken import LABELS, dropped, named
from tests.edits import edit_json, edit_tensors
from tests.families import FAMILIES


@pytest.fixture
def model(tmp_path: Path) -> Path:
    FAMILIES["bert"].build("BertForSequenceClassification", num_labels=3).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def configure(folder: Path, **values: Any) -> None:
    edit_json(folder / "config.json", values)


def told(folder: Path, rule: str, profile: Any = "inference") -> list[str]:
    found = headscope.check(str(folder), profile, select=rule)
    return [item.message for item in found.findings]


@pytest.mark.parametrize(("value", "shown"), [(5, "5"), (["regression"], '["regression"]'), ({"a": 1}, '{"a": 1}')])
def test_a_problem_type_that_is_not_a_text_is_shown_as_json(value: Any, shown: str, model: Path) -> None:
    configure(model, problem_type=value)
    report = headscope.inspect(model)
    assert report.model.problem_type == shown
    assert report.to_dict()["model"]["problem_type"] == shown
    assert shown in str(report)
    assert told(model, "HS204")


@pytest.mark.parametrize("value", [["regression"], 1, {}, "Regression", True])
@pytest.mark.parametrize("profile", ["training", "inference"])
def test_a_problem_type_for_which_the_forward_has_no_loss_is_an_error(value: Any, profile: Any, model: Path) -> None:
    configure(model, problem_type=value)
    loaded = AutoModelForSequenceClassification.from_pretrained(model)
    assert loaded(torch.tensor([[1, 2]]), labels=torch.tensor([1])).loss is None
    assert "problem type" in told(model, "HS204", profile)[0]


@pytest.mark.parametrize("auto", [AutoModelForSequenceClassification, AutoModelForTokenClassification])
def test_an_auto_class_stands_for_the_class_that_it_loads(auto: Any, model: Path) -> None:
    wanted = type(auto.from_pretrained(model)).__name__
    assert headscope.inspect(str(model), model_class=auto.__name__).model.class_name == wanted
    configure(model, architectures=[auto.__name__])
    assert headscope.inspect(str(model)).model.class_name == wanted


def test_an_auto_class_that_does_not_map_the_family_is_refused(model: Path) -> None:
    with pytest.raises(HeadscopeError):
        headscope.inspect(str(model), model_class="AutoModelForAudioClassification")


@pytest.mark.parametrize(
    ("lost", "how"),
    [("classifier.bias", "scores"), ("bert.pooler.dense.weight", "input")],
)
def test_the_bias_of_the_classifier_is_not_in_its_input(lost: str, how: str, model: Path) -> None:
    edit_tensors(model / "model.safetensors", dropped(lost))
    _, info = AutoModelForSequenceClassification.from_pretrained(model, output_loading_info=True)
    assert info["missing_keys"] == {lost}
    assert re.search(rf"\bits {how}\b.*: {re.escape(lost)}", told(model, "HS103")[0])


def test_inside_another_default_device_the_answer_is_the_same(model: Path) -> None:
    expected = headscope.inspect(str(model), cache=False)
    with torch.device("meta"):
        assert headscope.inspect(str(model), cache=False) == expected
        assert torch.ones(1).device.type == "meta"


def test_a_tilde_inside_a_path_is_a_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~root").mkdir()
    assert parse_reference("./~root") == Path("~root")
    assert parse_reference("~") == Path.home()


@pytest.mark.skipif(os.name == "nt", reason="Windows doesn't remove the working directory")
def test_a_removed_working_directory_is_named(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError, match="working directory") as caught:
        headscope.check(str(model))
    assert (caught.value.hint or "").startswith("change ")


def test_a_missing_temporary_folder_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = "headscope.slices.inspect.run.make_request"
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nonexistent"])
    monkeypatch.setattr(place, lambda *given, **options: tempfile.gettempdir())
    with pytest.raises(Unsupported, match="temporary folder"):
        headscope.inspect(str(model))
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    monkeypatch.setattr(place, lambda *given, **options: Path("/nonexistent").stat())
    with pytest.raises(FileNotFoundError):
        headscope.inspect(str(model))


def test_python_without_docstrings_is_named(model: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-OO", "-m", "headscope", "inspect", str(model), "--no-cache"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert run.returncode == 3
    assert "without -OO" in run.stderr
    assert "bug" not in run.stderr


def test_a_class_for_an_unknown_task_is_named() -> None:
    from headscope.core.model.classes.catalog import mapped_name, other_classes
    from headscope.core.upstream.transformers import auto_tables

    if "AutoModelForDecision" not in auto_tables():
        pytest.skip("the installed Transformers has no task that headscope doesn't know")
    assert other_classes("jev") == ("JevForDecision (AutoModelForDecision)",)
    assert other_classes("bert") == ()
    assert mapped_name("AutoModelForSequenceClassification", "bert") == "BertForSequenceClassification"
    with pytest.raises(UsageError) as caught:
        headscope.heads("jev")
    assert "JevForDecision (AutoModelForDecision)" in (caught.value.hint or "")


def test_a_checkpoint_of_an_unknown_task_is_not_said_to_have_no_class(model: Path) -> None:
    configure(model, model_type="jev", architectures=["JevForDecision"])
    with pytest.raises(Unsupported, match=r"JevForDecision \(AutoModelForDecision\)"):
        headscope.inspect(str(model), num_labels=3)


class Focal(BertForSequenceClassification):
    """A loss of the scores that PyTorch has no function for."""

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None, labels: Any = None, **kwargs: Any) -> Any:
        output = super().forward(input_ids=input_ids, attention_mask=attention_mask)
        if labels is not None:
            right = output.logits.softmax(-1).gather(1, labels.reshape(-1, 1))
            output.loss = (-((1 - right) ** 2) * right.log()).mean()
        return output


@pytest.mark.parametrize(
    ("build", "profile", "is_open"),
    [(Focal, "training", True), (Focal, "inference", False), (BertForSequenceClassification, "training", False)],
)
def test_a_loss_that_is_not_known_is_not_green_in_training(build: Any, profile: Any, is_open: bool) -> None:
    torch.manual_seed(0)
    result = headscope.check(build(FAMILIES["bert"].build_config(**named(LABELS))), profile)
    told = [item.topic for item in result.not_determined if "loss" in item.reason]
    assert told == (["HS204 problem-type"] if is_open else [])
    if profile == "training":
        assert result.verdict is (Verdict.NOT_DETERMINED if is_open else Verdict.PASSED)
