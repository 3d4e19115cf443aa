"""Checkpoints that are broken where files show nothing: a sample; all by `python -m tests.verdicts.runs`."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional
from transformers import BertForSequenceClassification

import headscope
from headscope.checks.trial_process import TrialProcess
from headscope.core.facts.stored.location import Location
from headscope.core.source.checkpoint import examine
from headscope.core.source.request import Request
from headscope.shared.trial import deciding, opening
from headscope.shell.app import main
from tests.families import FAMILIES
from tests.verdicts import runs
from tests.verdicts.cases import sampled
from tests.verdicts.models import trained

CASES = (*runs.broken(), *runs.healthy())
_EVERY = 12


@pytest.mark.usefixtures("runs_here")
@pytest.mark.parametrize("case", sampled(CASES, _EVERY), ids=lambda case: case.name)  # type: ignore[type-var]
def test_green_means_that_the_model_answers(case: runs.RunCase, tmp_path: Path) -> None:
    found = runs.run_case(case, tmp_path / "model")
    assert not found.is_wrong, found
    assert found.ran or found.verdict in ("refused", "not_determined"), found


def test_the_table_is_large() -> None:
    assert len(list(runs.broken())) >= 150 and len(list(runs.healthy())) >= 400
    assert len({case.name for case in CASES}) == len(CASES)


def case_named(name: str) -> runs.RunCase:
    return next(case for case in CASES if case.name == name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint that answers."""
    return case_named("Bert english float32").write(tmp_path / "model")


@pytest.mark.usefixtures("runs_here")
def test_the_json_says_what_was_run_and_seen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", str(folder), "--for", "inference", "--run", "--json"])
    found = json.loads(capsys.readouterr().out)["results"][0]
    assert found["scope"]["run"] == {"inputs": 14, "batches": 1, "calls": 19, "device": "cpu"}
    assert found["scope"]["run_reason"] == "" and found["scope"]["values"] == ["head", "base"]
    seen = found["trial"]
    assert seen["raised"] == [] and seen["not_finite"] == 0 and seen["all_alike"] is False
    assert seen["ignores_middle"] is False and seen["repeats_equal"] is True and seen["side"] == "right"
    assert seen["batch_difference"] <= seen["batch_bound"] and seen["fails_at_length"] is None


@pytest.mark.usefixtures("runs_here")
def test_the_headline_says_whether_the_model_ran(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    ignored = ["--ignore", "HS502,HS202", "-q"]
    assert main(["check", str(folder), "--run", *ignored]) in (0, 3)
    said = capsys.readouterr().out
    assert "for inference (the checkpoint gives its head)" in said and "ran on 14 texts" in said
    assert main(["check", str(folder), "--no-run", "--for", "inference", *ignored]) in (0, 3)
    assert "not run: --no-run leaves it out" in capsys.readouterr().out
    assert main(["check", "roberta-base", "--offline", "-q"]) == 0
    said = capsys.readouterr().out
    assert "Passed on its files; not run: " in said and "for training (the checkpoint doesn't give its head)" in said


def test_a_run_that_is_asked_for_and_can_not_be_is_not_determined(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "roberta-base", "--offline", "--run", "-q"]) == 3
    assert "Not determined" in capsys.readouterr().out


def test_memory_decides_before_anything_is_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(deciding.OFF)
    checkpoint = examine("check", Request(Location(str(folder))), None)
    assert deciding.why_not_run(checkpoint) == ""
    monkeypatch.setattr("psutil.virtual_memory", type("Memory", (), {"available": 1000}))
    assert "half of the free memory" in deciding.why_not_run(checkpoint)
    assert deciding.why_not_run(checkpoint, is_wanted=True) == ""


def killed(request: Request, device: str) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def late(request: Request, device: str) -> Any:
    time.sleep(60)


@pytest.mark.parametrize(("run", "seconds", "said"), [(killed, 60, "signal 9"), (late, 0.5, "seconds")])
def test_a_process_that_dies_is_a_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch, run: object, seconds: float, said: str
) -> None:
    checkpoint = examine("check", Request(Location(str(folder)), run=True), None)
    monkeypatch.setattr(opening, "run_checkpoint", run)
    monkeypatch.setattr("headscope.checks.trial_process._SECONDS", seconds)
    with TrialProcess() as process:
        found = process.run(checkpoint, lambda sentence: None)
    assert isinstance(found, str) and said in found


def test_a_real_process_runs_the_model_and_the_cache_keeps_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADSCOPE_NO_CACHE")
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    first = headscope.check(folder, "inference", run=True, cache=True)
    assert first.trial is not None and first.trial.scope.inputs == 14
    monkeypatch.setattr(TrialProcess, "_run_in_worker", None)
    assert headscope.check(folder, "inference", run=True, cache=True).trial == first.trial


@pytest.mark.usefixtures("runs_here")
def test_a_scan_runs_local_folders_on_request(tmp_path: Path) -> None:
    folder = case_named("is_decoder Bert").write(tmp_path)
    (plain,) = headscope.scan([str(folder)], workers=0, profile="inference")
    (ran,) = headscope.scan([str(folder)], workers=0, profile="inference", run=True)
    assert (plain.run, plain.not_run) == (False, "scan runs models only with --run")
    assert ran.run is True and ran.verdict.value == "failed" and "HS523" in ran.findings


def test_a_model_in_memory_is_called_and_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(deciding.OFF)
    model = trained("bert").model
    state, mode = torch.get_rng_state(), model.training
    model.train()
    try:
        found = headscope.check(model, "inference")
        assert model.training and torch.equal(torch.get_rng_state(), state)
    finally:
        model.train(mode)
    assert found.trial is not None and found.trial.in_train_mode and not found.trial.all_alike
    assert "HS526" in {item.id for item in found.findings}


@pytest.mark.usefixtures("runs_here")
@pytest.mark.parametrize("family", ["Bart", "MBart", "T5"])
def test_padding_that_is_the_end_of_a_text_fails_in_a_batch(family: str, tmp_path: Path) -> None:
    config = {"pad_token_id": 3} | ({"decoder_start_token_id": 3} if family == "T5" else {})
    folder = runs.RunCase("end", family, config=config, tokenizer={"pad_token": "[SEP]"}).write(tmp_path)
    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model(**tokenizer(["w1 w2"], return_tensors="pt"))
    with pytest.raises(ValueError, match="same number of <eos> tokens"):
        model(**tokenizer(["w1 w2", "w3"], padding=True, return_tensors="pt"))
    report = headscope.inspect(folder)
    assert report.head is not None and report.head.pooling.kind.value == "eos_token"
    assert any("seen without padding" in note for note in report.notes)
    found = {item.id: item for item in headscope.check(folder, "inference", run=True).findings}
    assert "Likely cause: HS304" in found["HS521"].message
    assert found["HS521"].remedy == "Give the tokenizer a separate pad token."


@pytest.mark.usefixtures("runs_here")
@pytest.mark.parametrize(("family", "verdict"), [("ViT", "failed"), ("ResNet", "passed")])
def test_a_processor_that_keeps_the_shape_is_tried_with_several(family: str, verdict: str, tmp_path: Path) -> None:
    ran = runs.run_case(case_named(f"no crop {family}"), tmp_path)
    assert (ran.verdict, ran.truth.startswith("raises ValueError: Input image size")) == (verdict, family == "ViT")
    (found,) = [item for item in headscope.check(tmp_path, "inference", run=True).findings if item.id == "HS521"]
    assert ("7 of 8 images raise" in found.message) == (family == "ViT") and "do_center_crop" in found.remedy


@pytest.mark.usefixtures("runs_here")
@pytest.mark.parametrize(
    ("changes", "spread"),
    [
        ({"rescale_factor": 1 / 255**2}, 0.0078),
        ({"image_mean": [127.5] * 3, "image_std": [127.5] * 3}, 0.0078),
        ({"image_mean": [123.7, 116.3, 103.5], "image_std": [58.4, 57.1, 57.4]}, 0.0083),
        ({"image_mean": [127.5] * 3}, 0.0078),
        ({"image_mean": [127.5] * 3, "image_std": [127.5] * 3, "do_rescale": False}, None),
        ({"do_normalize": False}, None),
        ({"do_rescale": False, "do_normalize": False}, None),
    ],
)
def test_a_processor_that_leaves_nothing_of_an_image_is_named(
    changes: dict[str, Any], spread: float | None, tmp_path: Path
) -> None:
    folder = runs.RunCase("pixels", "ViT", "ImageClassification").write(tmp_path)
    runs.edit_json(folder / "preprocessor_config.json", **changes)
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    model = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    images = [np.full((32, 32, 3), color, np.uint8) for color in (0, 255)]
    with torch.no_grad():
        black, white = (model(**processor(images=image, return_tensors="pt")).logits for image in images)
    assert (float((black - white).abs().max()) < 0.02) == (spread is not None)
    result = headscope.check(folder, "inference", run=True)
    assert result.trial is not None and result.trial.image_spread is not None
    found = [item.severity.value for item in result.findings if item.id == "HS524"]
    assert found == (["warning"] if spread else [])
    assert result.trial.image_spread == pytest.approx(spread, rel=0.05) if spread else result.trial.image_spread > 0.5


@pytest.mark.usefixtures("runs_here")
def test_a_model_that_no_trace_can_follow_is_run(tmp_path: Path) -> None:
    folder = runs.RunCase("t5", "T5").write(tmp_path)  # its configuration names no token to start with
    found = headscope.check(folder, "inference", run=True)
    assert found.verdict.value == "failed" and "decoder_start_token_id" in str(found.findings)


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_dropout_that_is_always_on_is_seen_in_memory(monkeypatch: pytest.MonkeyPatch, is_fused: bool) -> None:
    class Noisy(BertForSequenceClassification):
        def forward(self, **given: Any) -> Any:
            returned = super().forward(**given)
            kept = functional.dropout(torch.ones_like(returned.logits), 0.5, training=True)
            drawn = torch.rand(returned.logits.shape)
            returned.logits = returned.logits * (kept if is_fused else drawn)
            return returned

    monkeypatch.delenv(deciding.OFF)
    model = Noisy(FAMILIES["bert"].build_config(num_labels=8)).eval()
    state = torch.get_rng_state()
    assert "HS526" in {item.id for item in headscope.check(model, "inference").findings}
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_in_memory_can_be_trained_after_it_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    class Keeps(BertForSequenceClassification):
        scale = None

        def forward(self, input_ids: Any = None, attention_mask: Any = None, **given: Any) -> Any:
            if self.scale is None:
                self.scale = torch.linspace(0.9, 1.1, 3)
            returned = super().forward(input_ids=input_ids, attention_mask=attention_mask)
            returned.logits = returned.logits * self.scale
            return returned

    monkeypatch.delenv(deciding.OFF)
    model = Keeps(FAMILIES["bert"].build_config(num_labels=3))
    assert headscope.check(model, "training").trial is not None
    model(input_ids=torch.randint(5, 99, (2, 6))).logits.sum().backward()
    assert model.classifier.weight.grad is not None
