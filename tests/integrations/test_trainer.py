"""The callback in real training runs of tiny models: a healthy one trains, a broken one stops before its first step."""

import ast
import logging
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import transformers

import headscope
from headscope.core.facts.verdict import Verdict
from headscope.errors import CheckFailed, Unsupported, UsageError
from headscope.integrations.gate import TrainingGate
from tests.families import FAMILIES
from tests.integrations.small import LABELS, trained, with_new_head


def train(model: Any, folder: Path, callback: Any, **given: Any) -> int:
    """How many steps a run of one step took."""
    return trained(model, folder, callback, max_steps=1, save_strategy="no", **given).state.global_step


def test_a_healthy_model_trains(model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = headscope.HeadscopeCallback()
    with caplog.at_level(logging.INFO, logger="headscope"):
        assert train(model, tmp_path, callback) == 1
    assert callback.result.verdict == "passed"
    assert ": classifier.{weight,bias}" in caplog.text


def test_a_frozen_head_stops_before_the_first_step(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.Trainer, "training_step", lambda *_, **__: pytest.fail("a step was begun"))
    model.classifier.requires_grad_(False)
    with pytest.raises(CheckFailed, match="HS601"):
        train(model, tmp_path, headscope.HeadscopeCallback())


def test_a_head_beside_the_optimizer_stops(model: Any, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(model.bert.parameters(), lr=0.1)
    with pytest.raises(CheckFailed, match="HS602"):
        train(model, tmp_path, headscope.HeadscopeCallback(), optimizers=(optimizer, None))


def test_a_pooler_that_the_load_did_not_give_is_known(tmp_path: Path) -> None:
    callback = headscope.HeadscopeCallback()
    assert train(with_new_head(tmp_path, "BertForMaskedLM"), tmp_path, callback) == 1
    assert "bert.pooler.dense.weight" in callback.result.report.weights.new


def test_what_the_load_told_is_judged_and_nothing_is_read(tmp_path: Path) -> None:
    model, info = with_new_head(tmp_path, "BertForMaskedLM", output_loading_info=True)
    (tmp_path / "base" / "model.safetensors").unlink()
    callback = headscope.HeadscopeCallback(loading_info=info)
    assert train(model, tmp_path, callback) == 1
    report = callback.result.report
    assert set(report.weights.new) == set(info["missing_keys"])
    assert set(report.weights.unused) == set(info["unexpected_keys"])
    statuses = {item.name: item.status.value for item in report.head.parameters}
    assert statuses == dict.fromkeys(statuses, "new")
    assert "HS102" in {item.id for item in callback.result.findings}


def test_a_base_that_was_not_loaded_stops_training(tmp_path: Path) -> None:
    wrong = FAMILIES["roberta"].build("RobertaModel")
    wrong.save_pretrained(tmp_path / "wrong")
    config = FAMILIES["bert"].build("BertModel").config
    model, info = transformers.BertForSequenceClassification.from_pretrained(
        tmp_path / "wrong", config=config, output_loading_info=True, ignore_mismatched_sizes=True
    )
    info["missing_keys"] = {name for name, _ in model.named_parameters()}
    with pytest.raises(CheckFailed, match="HS101") as failed:
        train(model, tmp_path, headscope.HeadscopeCallback(loading_info=info))
    lines = str(failed.value).splitlines()
    assert lines[1].startswith("error HS101")
    assert len(lines[-1]) < len(", ".join(info["missing_keys"])) / 2
    assert "encoder.layer.{0,1}" in lines[-1]


def test_labels_are_those_of_the_live_model_and_not_of_its_checkpoint(tmp_path: Path) -> None:
    model = with_new_head(tmp_path, "BertForMaskedLM", num_labels=2)
    for profile in ("training", "inference"):
        result = headscope.check(model, profile)
        assert "HS202" not in {item.id for item in result.findings}
        assert result.report.model.labels == tuple(LABELS["id2label"].values())
    unnamed = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=2)
    assert "HS202" in {item.id for item in headscope.check(unnamed).findings}


def test_the_pad_token_is_that_of_the_live_model(tmp_path: Path) -> None:
    model = with_new_head(tmp_path, "GPT2Model", "gpt2")
    assert "HS301" in {item.id for item in headscope.check(model).findings}
    model.config.pad_token_id = 0
    assert "HS301" not in {item.id for item in headscope.check(model).findings}


def test_the_remedy_for_a_head_that_an_adapter_freezes_works() -> None:
    peft = pytest.importorskip("peft")
    for family, targets in ((FAMILIES["roberta"], ["query"]), (FAMILIES["gpt2"], ["c_attn"])):
        made = peft.get_peft_model(family.build(family.classifier), peft.LoraConfig(target_modules=targets))
        finding = next(item for item in headscope.check(made).findings if item.id == "HS601")
        named = re.search(r"modules_to_save=(\[.*?\])", finding.remedy)
        assert named is not None, finding
        config = peft.LoraConfig(target_modules=targets, modules_to_save=ast.literal_eval(named[1]))
        mended = peft.get_peft_model(family.build(family.classifier), config)
        trained = {path for path, item in mended.named_parameters() if item.requires_grad}
        assert all(any(part in path for path in trained) for part in ast.literal_eval(named[1]))
        assert "HS601" not in {item.id for item in headscope.check(mended).findings}


@pytest.mark.parametrize(
    "info", [{}, {"missing_keys": 1}, {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": [1]}]
)
def test_a_loading_info_that_is_none_is_refused(model: Any, info: Any) -> None:
    with pytest.raises(UsageError, match="from_pretrained"):
        headscope.check(model, "training", loading_info=info)


def test_an_adapter_is_judged_by_the_load_of_its_base(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model, info = with_new_head(tmp_path, output_loading_info=True)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query", "pooler.dense"]))
    result = headscope.check(wrapped, "training", loading_info=info)
    report = result.report
    assert "HS103" in {item.id for item in result.findings}, result.findings
    assert not {"HS601", "HS602", "HS101"} & {item.id for item in result.findings}, result.findings
    statuses = {item.name: item.status.value for item in report.head.parameters}
    classifier = {name: status for name, status in statuses.items() if "classifier" in name}
    assert set(classifier.values()) == {"new"}, statuses
    assert {status for name, status in statuses.items() if name not in classifier} == {"loaded"}, statuses


def test_what_cannot_be_told_warns_or_raises(model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "base").rename(tmp_path / "moved")
    assert train(model, tmp_path, headscope.HeadscopeCallback()) == 1
    assert "Not determined" in caplog.text
    with pytest.raises(CheckFailed, match="Not determined"):
        train(model, tmp_path, headscope.HeadscopeCallback(on_undetermined="raise"))


def test_an_unknown_reaction_or_option_is_refused() -> None:
    with pytest.raises(UsageError, match="shrug"):
        headscope.HeadscopeCallback(on_fail="shrug")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=": on_fial") as refused:
        headscope.HeadscopeCallback(on_fial="warn")  # type: ignore[call-arg]
    assert "on_fail" in refused.value.hint


def test_a_model_without_a_pad_token_is_examined(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = headscope.HeadscopeCallback(on_fail="warn")
    bare = with_new_head(tmp_path, "GPT2Model", "gpt2")
    assert train(bare, tmp_path, callback, per_device_train_batch_size=1) == 1
    assert callback.result.report.head.pooling.kind == "last_non_pad_token"
    assert "score.weight" in caplog.text


class Broken(Exception):
    """A bug of headscope's."""


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("check", Broken("oops\nmore"), "could not"),
        ("check", SystemExit(1), "could not"),
        ("check", Unsupported("no head", "look"), "could not"),
        ("check", MemoryError(), "could not"),
        ("failure_sentence", Broken("words"), "words"),  # the verdict is there, and can't be shown
    ],
)
def test_where_a_warning_was_asked_for_no_failure_of_ours_ends_a_training(  # noqa: PLR0917
    name: str, error: BaseException, said: str, model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(f"headscope.integrations.gate.{name}", Mock(side_effect=error))
    assert train(model, tmp_path, headscope.HeadscopeCallback(on_fail="warn", on_undetermined="raise")) == 1
    assert said in caplog.text


def test_a_model_that_cannot_be_examined_is_undetermined(
    model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headscope.integrations.gate.check", Mock(side_effect=Unsupported("no head", "look")))
    assert train(model, tmp_path, headscope.HeadscopeCallback()) == 1
    assert "no head; look" in caplog.text
    with pytest.raises(Unsupported, match="no head"):
        train(model, tmp_path, headscope.HeadscopeCallback(on_undetermined="raise"))


def test_an_impossible_rule_ends_a_training_that_may_fail(model: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        train(model, tmp_path, headscope.HeadscopeCallback(select=("HS999",)))


TEXT = "headscope: roberta: Passed for training: 3 notes\nnote HS102: all is new"


@pytest.mark.parametrize(("wanted", "lines"), [(logging.WARNING, 1), (logging.ERROR, 0), (logging.INFO, 0)])
def test_a_passed_check_is_one_line(
    wanted: int, lines: int, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(wanted, logger="headscope"):
        TrainingGate()._react_to_verdict(Verdict.PASSED, "headscope: one line", TEXT)
    assert capsys.readouterr().err.splitlines() == ["headscope: one line"] * lines
    assert ("note HS102" in caplog.text) is (wanted == logging.INFO)
