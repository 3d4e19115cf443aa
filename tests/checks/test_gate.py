"""Selections, ignores, baselines and several models: what the gate counts, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headscope.shell import main

pytestmark = pytest.mark.usefixtures("remembered")

SST2 = "distilbert-base-uncased-finetuned-sst-2-english"
Gate = Callable[..., tuple[int, str, str]]


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Gate:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str, settings: str = "") -> tuple[int, str, str]:
        (tmp_path / "pyproject.toml").write_text(settings)
        code = main(["check", *arguments, "--offline"])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["roberta-base", "--for", "inference"], 1),
        (["roberta-base", "--for", "training"], 0),
        (["roberta-base"], 0),
        (["roberta-base", "--for", "inference", "--select", "HS3"], 0),
        (["roberta-base", "--for", "inference", "--select", "head-new"], 1),
        (["roberta-base", "--for", "inference", "--select", "HS1,HS2"], 1),
        (["roberta-base", "--for", "inference", "--ignore", "HS102"], 0),
        (["roberta-base", "--for", "training", "--fail-on", "note"], 1),
        (["roberta-base", "--for", "inference", "--ignore", "HS1,HS2,HS4", "--fail-on", "warning"], 0),
        ([SST2, "--for", "inference"], 0),
        ([SST2, "roberta-base", "--for", "inference"], 1),
        ([SST2, "no/such", "--for", "inference"], 3),
        (["no/such", "roberta-base", "--for", "inference"], 1),
        (["no/such"], 3),
        (["gpt2", "--for", "training"], 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_exit_codes(arguments: list[str], code: int, gate: Gate) -> None:
    assert gate(*arguments)[0] == code


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["roberta-base", "--select", "HS999"], "no such rule"),
        (["roberta-base", "--ignore", "head-knew"], "did you mean head-new"),
        (["roberta-base", "--select", "HS102", "--ignore", "HS102"], "selected and ignored"),
        (["roberta-base", "--fail-on", "fatal"], "severities: error, warning, note"),
        (["roberta-base", "--for", "fun"], "fun"),
        (["roberta-base", "--select", ","], "names no rule"),
        (["roberta-base", "--baseline", "missing.json"], "cannot be read"),
        ([], "check needs at least one model"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], sentence: str, gate: Gate) -> None:
    code, _, err = gate(*arguments)
    assert code == 2
    assert sentence in err


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ('[tool.headscope]\nfor = "inference"', 1),
        ('[tool.headscope]\nfor = "inference"\nselect = ["HS3"]', 0),
        ('[tool.headscope]\nfor = "inference"\nignore = ["HS102"]', 0),
        ('[tool.headscope]\nfor = "training"\nfail-on = "note"', 1),
        ('[tool.headscope]\nfor = "inference"\nignore = [{ rule = "HS102", reason = "x", until = 2999-01-01 }]', 0),
        ('[tool.headscope]\nfor = "inference"\nignore = [{ rule = "HS102", model = "roberta-*" }]', 0),
        ('[tool.headscope]\nfor = "inference"\nignore = [{ rule = "HS102", model = "bert-*" }]', 1),
        ('[tool.headscope]\nfor = "inference"\nignore = [{ rule = "HS102", until = 2020-01-01 }]', 1),
        ('[tool.headscope]\nfor = "training"\nignore = [{ rule = "HS102", until = 2020-01-01 }]', 0),
        ('[tool.headscope]\nfor = "inference"\nignore = [{ rule = "HS102", until = "soon" }]', 2),
        ('[tool.headscope]\nfor = "inference"\nignore = [{ reason = "x" }]', 2),
        ('[tool.headscope]\nfor = "inference"\nignore = "HS102"', 2),
        ('[tool.headscope]\nfro = "inference"', 2),
        ("[tool.headscope]\nfor = 3", 2),
        ("[tool.headscope]\nselect = 3", 2),
        ("[tool]\nheadscope = 3", 2),
        ("[tool.headscope", 2),
        ('[tool.headscope]\nbaseline = "none.json"', 2),
        ("[project]", 0),
        ('[tool.headscope]\nfor = "inference"\nmodels = ["roberta-base"]', 1),
        (f'[tool.headscope]\nfor = "inference"\nmodels = ["{SST2}"]', 0),
        (f'[tool.headscope]\nfor = "inference"\nmodels = ["{SST2}", "roberta-base"]', 1),
        ("[tool.headscope]\nmodels = []", 2),
        ("[tool.headscope]\nmodels = 'roberta-base'", 2),
    ],
)
def test_settings_of_a_project(settings: str, code: int, gate: Gate) -> None:
    found, _, err = gate(*([] if "models" in settings else ["roberta-base"]), settings=settings)
    assert found == code, err
    assert ("hint:" in err) is (code == 2)


def test_given_models_go_before_those_of_the_project(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = gate(SST2, "-q", settings='[tool.headscope]\nmodels = ["roberta-base"]')
    assert out.startswith(f"{SST2}  ")
    assert len(out.splitlines()) == 1


def test_a_folder_that_a_project_names_is_found_from_below(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    _, out, err = gate("--json", settings='[tool.headscope]\nmodels = ["models/mine", "roberta-base"]')
    first, second = json.loads(out)["results"]
    assert Path(first["reference"]) == tmp_path / "models" / "mine"
    assert second["reference"] == "roberta-base"
    assert err == ""


def test_the_command_line_goes_before_the_settings(gate: Gate) -> None:
    assert gate("roberta-base", "--for", "training", settings='[tool.headscope]\nfor = "inference"')[0] == 0


def test_a_finding_whose_ignore_ended_counts_and_says_why_it_was_ignored(gate: Gate) -> None:
    ignore = '{ rule = "HS102", reason = "trained next week", until = 2020-01-01 }'
    settings = f'[tool.headscope]\nfor = "inference"\nignore = [{ignore}]'
    code, out, _ = gate("roberta-base", "--json", settings=settings)
    (result,) = json.loads(out)["results"]
    assert (code, result["ignored"]) == (1, [])
    assert "HS102" in [item["id"] for item in result["findings"]]
    (notice,) = (text for text in result["notices"] if "HS102" in text)
    assert "trained next week" in notice
    assert "2020-01-01" in notice
    assert "HS102 was not" not in gate("roberta-base", settings=settings)[1]
    assert "HS102 was not" in gate(SST2, settings=settings)[1]


def test_an_ignored_finding_is_shown_with_its_reason(gate: Gate) -> None:
    settings = '[tool.headscope]\nfor = "inference"\nignore = [{ rule = "HS102", reason = "a demo" }]'
    _, out, _ = gate("roberta-base", settings=settings)
    assert "a demo" in out
    (document,) = json.loads(gate("roberta-base", "--json", settings=settings)[1])["results"]
    assert [item["reason"] for item in document["ignored"]] == ["a demo"]


def test_an_ignore_that_nothing_needs_is_told(gate: Gate) -> None:
    assert "HS301 was not" in gate("roberta-base", "--ignore", "HS301")[1]


def test_a_baseline_holds_what_is_known(gate: Gate, tmp_path: Path) -> None:
    arguments = ["roberta-base", "--for", "inference"]
    code, _, err = gate(*arguments, "--write-baseline", "known.json")
    assert code == 1
    assert err.startswith("baseline: 3 findings of 1 model ") and "known.json" in err
    assert gate(*arguments, "--write-baseline", "known.json", "-q")[2] == ""
    assert gate(*arguments, "--baseline", "known.json")[0] == 0
    assert gate("bert-base-uncased", "--for", "inference", "--baseline", "known.json")[0] == 1
    assert gate(*arguments, settings='[tool.headscope]\nbaseline = "known.json"')[0] == 0
    (tmp_path / "known.json").write_text('{"findings": [{"id": 3}]}')
    assert gate(*arguments, "--baseline", "known.json")[0] == 2


def test_a_table_of_several_models(gate: Gate) -> None:
    _, out, _ = gate(SST2, "roberta-base", "no/such", "--for", "inference")
    table = out.splitlines()[-4:]
    assert [line.split()[0] for line in table] == ["verdict", "passed", "failed", "not"]
    document = json.loads(gate(SST2, "roberta-base", "no/such", "--for", "inference", "--json")[1])
    assert [result["verdict"] for result in document["results"]] == ["passed", "failed", "not_determined"]


def test_models_that_cannot_be_read_say_what_to_do_next_and_list_no_rules(gate: Gate) -> None:
    code, out, _ = gate("bert-base-uncasd", "no/such", "--offline")
    assert code == 3
    shown = " ".join(out.split())
    assert "bert-base-uncased?" in shown
    assert "snapshot" in shown
    assert "HS" not in shown
    document = json.loads(gate("bert-base-uncasd", "no/such", "--offline", "--json")[1])
    [gap] = document["results"][0]["not_determined"]
    assert "bert-base-uncased?" in gap["reason"]
    assert len(document["results"][0]["not_applicable"]) == len(document["results"][0]["rules"])


def test_quiet_is_one_line_a_model(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert len(gate(SST2, "roberta-base", "--for", "inference", "-q")[1].splitlines()) == 2


@pytest.mark.parametrize("columns", ["60", "80", "100", "120", "200"])
def test_a_finding_names_its_tensors_before_its_remedy_at_every_width(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    _, text, _ = gate("roberta-base", "--for", "inference")
    names = [text.find(f"classifier.{name}") for name in ("dense.weight", "dense.bias", "out_proj.weight")]
    assert -1 < min(names) < max(names) < text.index("classifier.out_proj.bias") < text.index("Train it first.")
    assert "skipped     HS" not in text
    assert "skipped     HS" in gate("roberta-base", "--for", "inference", "--details")[1]


def test_rules_that_were_named_and_skipped_say_why(gate: Gate) -> None:
    assert "skipped     HS303" in gate("roberta-base", "--select", "HS303")[1]
