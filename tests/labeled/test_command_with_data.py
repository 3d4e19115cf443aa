"""`headscope check --data` as people type it: exit codes, the screen, JSON that follows the schema, hostile cells."""

import json
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest

from headscope.errors import ExitCode
from headscope.shell import main
from tests.checks.pipeline_formats import SCHEMA

MODEL = "distilbert-base-uncased-finetuned-sst-2-english"


def run(data: Path, *more: str, model: tuple[str, ...] = (MODEL,)) -> int:
    return main(["check", *model, "--offline", "--for", "inference", "--data", str(data), *more])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("text,label,stars\ngood,POSITIVE,0\nbad,NEGATIVE,1\nodd,MIXED,2\n")
    return path


def test_the_screen_shows_the_data_and_the_finding(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(file, "--label-column", "label") == ExitCode.OK
    shown = capsys.readouterr().out
    assert "warning     HS001 " in shown
    assert "3 rows; 3 labels: MIXED 1, NEGATIVE 1, POSITIVE 1" in " ".join(shown.split())
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_an_id_out_of_range_fails(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "--label-column", "stars") == ExitCode.FINDINGS
    assert "HS003" in capsys.readouterr().out


def test_the_json_follows_the_schema_for_one_model_and_for_two(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(file, "--label-column", "label", "--json")
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    (result,) = document["results"]
    assert result["data"]["rows"] == 3
    assert result["data"]["predictions"] is None
    run(file, "--label-column", "label", "--json", model=(MODEL, MODEL))
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert [item["data"]["classes"][0]["label"] for item in document["results"]] == ["MIXED", "MIXED"]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--label-column", "lable"], ExitCode.USAGE, "did you mean label?"),
        ([], ExitCode.USAGE, "--label-column"),
        (["--label-column", "label", "--split", "test"], ExitCode.UNDETERMINED, "is a single file"),
        (["--label-column", "label", "--predict", "8"], ExitCode.USAGE, "--text-column"),
        (["--label-column", "label", "--text-column", "text", "--predict", "8"], ExitCode.UNDETERMINED, "no weights"),
    ],
)
def test_what_cannot_be_done_is_said_with_a_code(
    file: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: ExitCode, words: str
) -> None:
    assert run(file, *options) == code
    assert words in capsys.readouterr().err


def test_options_for_data_need_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", MODEL, "--offline", "--label-column", "label"]) == ExitCode.USAGE
    assert "--data FILE" in capsys.readouterr().err
