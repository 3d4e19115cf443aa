"""What the commands say of a checkpoint whose class cannot be built: the weight side, and never a pass."""

import json
from pathlib import Path

import jsonschema
import pytest
import torch
from safetensors.torch import save_file

from headscope.errors import ExitCode
from scripts.pages.write_schema import build_schema
from tests.cli.command import Cli

CONFIG = {
    "model_type": "their-own",
    "architectures": ["TheirModelForSequenceClassification"],
    "auto_map": {"AutoModelForSequenceClassification": "modeling.TheirModel"},
}


@pytest.fixture
def unknown(tmp_path: Path) -> Path:
    """A checkpoint that needs its repository's own code."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "modeling.py").write_text("raise SystemExit('run')")
    save_file(
        {
            "net.layers.0.weight": torch.zeros(4, 4, dtype=torch.bfloat16),
            "net.layers.1.weight": torch.zeros(4, 4, dtype=torch.bfloat16),
            "score.0.weight": torch.zeros(4, 4),
            "score.2.weight": torch.zeros(2, 4),
            "net.embed.weight": torch.zeros(9, 4),
            "score\x1b[31m.weight": torch.zeros(3, 4),
        },
        tmp_path / "model.safetensors",
    )
    return tmp_path


@pytest.mark.parametrize("arguments", [["inspect"], ["diff-weights"], ["forward"], ["check", "--for", "inference"]])
def test_the_weight_side_is_shown_and_the_rest_is_not_determined(unknown: Path, cli: Cli, arguments: list[str]) -> None:
    shown = cli(*arguments, unknown, code=ExitCode.UNDETERMINED)
    assert "6 tensors of 104 numbers: bfloat16 2, float32 4" in shown.out
    assert "net.embed.weight 9x4 float32" in shown.out
    assert "net.layers" not in shown.out
    assert "not determined: " in shown.out
    assert "\x1b" not in shown.out
    assert "TheirModel in auto_map" in shown.err


@pytest.mark.parametrize("arguments", [["inspect", "-q"], ["check", "--quiet"], ["diagram", "--format", "mermaid"]])
def test_stdout_stays_empty_where_no_screen_is_asked_for(unknown: Path, cli: Cli, arguments: list[str]) -> None:
    assert cli(*arguments, unknown, code=ExitCode.UNDETERMINED).out == ""


def test_the_object_of_the_error_carries_the_contents(unknown: Path, cli: Cli) -> None:
    document = cli.json("inspect", unknown, code=ExitCode.UNDETERMINED)
    jsonschema.validate(document, build_schema())
    assert document["error"]["code"] == "unsupported"
    assert document["contents"]["architecture"] == "TheirModelForSequenceClassification"
    assert [item["shape"] for item in document["contents"]["outside_blocks"]] == [[9, 4], [3, 4], [4, 4], [2, 4]]


def test_one_unreadable_model_of_several_keeps_its_place(
    unknown: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    models = unknown, "distilbert-base-uncased-finetuned-sst-2-english"
    shown = cli("check", *models, "--for", "inference", "--offline", code=ExitCode.UNDETERMINED).out
    assert "Not determined for inference" in shown
    assert "Passed on its files" in shown
