"""Every format of `check` parses or is empty, whatever happens to the models that it is asked about."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from email.message import Message
from pathlib import Path

import jsonschema
import pytest

import headscope
from headscope.checks.ci import junit_text
from headscope.core.facts import Finding, Gap, Severity, environment
from headscope.core.facts.verdict import Verdict
from headscope.shell import main
from tests.checks.broken import saved, trained
from tests.checks.pipeline_formats import SCHEMA, validate_junit, validate_sarif

pytestmark = pytest.mark.usefixtures("remembered")

FORMATS = ("json", "sarif", "junit", "github", "markdown")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("bert", edit=trained)(tmp_path_factory.mktemp("good"))


def _changed(edit: Callable[[Path], object]) -> Callable[[Path, Path], list[str]]:
    def build(good: Path, folder: Path) -> list[str]:
        made = folder / "model"
        shutil.copytree(good, made)
        edit(made)
        return [str(made)]

    return build


def _config(**values: object) -> Callable[[Path, Path], list[str]]:
    return _changed(lambda made: (made / "config.json").write_text(json.dumps(values)))


CASES: dict[str, tuple[Callable[[Path, Path], list[str]], int]] = {
    "unknown model type": (_config(model_type="nobody", architectures=["NobodyForSomething"]), 3),
    "no model type": (_config(hidden_size=3), 3),
    "class that cannot be built": (_config(model_type="bert", hidden_size=30, num_attention_heads=4), 3),
    "malformed configuration": (_changed(lambda made: (made / "config.json").write_text("{")), 3),
    "truncated weights": (_changed(lambda made: (made / "model.safetensors").write_bytes(b"\x08")), 3),
    "no weights": (_changed(lambda made: (made / "model.safetensors").unlink()), 3),
    "not found": (lambda good, folder: [str(folder / "nothing|here\n::error::x")], 3),
    "a healthy one": (lambda good, folder: [str(good)], 0),
    "one of two cannot be found": (lambda good, folder: [str(good), str(folder / "nothing")], 3),
    "both cannot be found": (lambda good, folder: [str(folder / "nothing"), str(folder / "\x1b[2J")], 3),
    "unknown rule": (lambda good, folder: [str(good), "--select", "HS999"], 2),
    "unknown class": (lambda good, folder: [str(good), "--model-class", "NobodyForSomething"], 2),
    "unknown option": (lambda good, folder: [str(good), "--nothing"], 2),
    "no labels": (lambda good, folder: [str(good), "--num-labels", "0"], 2),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_parses_or_is_empty(
    kind: str, name: str, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build, expected = CASES[name]
    arguments = build(good, tmp_path)
    code = main(["check", *arguments, "--for", "inference", "--offline", "--format", kind])
    out, err = capsys.readouterr()
    assert code == expected, err
    assert "Traceback" not in err
    if expected == 2:
        assert err.startswith("error: ")
        assert not out or kind == "json"
    if kind == "json":
        jsonschema.validate(json.loads(out), SCHEMA)
        return
    if not out:
        assert expected == 2
        return
    if kind == "sarif":
        document = json.loads(out)
        validate_sarif(document)
        assert all(item["executionSuccessful"] for item in document["runs"][0]["invocations"]) is (code == 0)
    elif kind == "junit":
        validate_junit(out)
        assert ("<error" in out) is (code == 3)
    elif kind == "github":
        assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in out.splitlines())
        assert ("::error " in out) is (code == 3)
    else:
        assert out.startswith("| model | verdict | findings |\n|---|---|---|\n| ")
        assert ("not determined" in out) is (code == 3)


@pytest.mark.parametrize(("fail_on", "code", "level"), [("error", 0, "note"), ("warning", 3, "error")])
def test_a_gap_that_could_hide_no_failure_fails_no_job(
    fail_on: str, code: int, level: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved("bert")(tmp_path)  # 96 numbers and a bias of zeros: HS502 can't tell whether it was trained
    shown = {}
    for kind in ("junit", "github", "sarif"):
        assert main(["check", str(tmp_path), "--for", "inference", "--fail-on", fail_on, "--format", kind]) == code
        shown[kind] = capsys.readouterr().out
    validate_junit(shown["junit"])
    assert "HS502" in shown["github"]
    assert ("<error" in shown["junit"]) is ("::error" in shown["github"]) is (level == "error")
    assert level == "error" or "not determined" in shown["junit"]
    [run] = json.loads(shown["sarif"])["runs"]
    notes = run["invocations"][0]["toolExecutionNotifications"]
    assert [item["level"] for item in notes if "HS502" in item["message"]["text"]] == [level]


def test_a_rule_that_was_not_asked_is_no_passed_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path / "nothing"), "--offline", "--format", "junit"]) == 3
    out = capsys.readouterr().out
    validate_junit(out)
    assert out.count("<testcase") == out.count("<skipped") + out.count("<error")


def test_a_rule_with_an_error_and_a_gap_is_one_failure(tmp_path: Path) -> None:
    result = headscope.check(saved("bert")(tmp_path), profile="training", fail_on="warning")
    finding = Finding("HS101", Severity.ERROR, "title", "message", "remedy", (), "page")
    both = replace(result, verdict=Verdict.FAILED, findings=(finding,), not_determined=(Gap("one", "why", "HS101"),))
    text = junit_text([both], ())
    validate_junit(text)
    assert (text.count("<failure"), text.count("<error")) == (1, 0)


def test_a_failure_is_written_to_the_file_that_was_named(tmp_path: Path) -> None:
    report = tmp_path / "report.sarif"
    assert main(["check", str(tmp_path / "nothing"), "--offline", "--format", "sarif", "-o", str(report)]) == 3
    validate_sarif(json.loads(report.read_text()))


def test_what_is_not_determined_beside_a_verdict_is_in_the_table(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "random").mkdir()
    random = saved("bert")(tmp_path / "random")
    monkeypatch.setenv("COLUMNS", "200")
    main(["check", str(good), str(random), "--for", "inference"])
    [row] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("passed") and "random" in line]
    assert "not determined: HS502" in row


@pytest.mark.parametrize("urls", [[], ["Documentation, https://docs.example/headscope"]])
def test_sarif_links_rules_to_the_site_that_the_package_names(
    urls: list[str], good: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = Message()
    for url in ("Source, https://code.example", *urls):
        package["Project-URL"] = url
    monkeypatch.setattr(environment.metadata, "metadata", lambda name: package)
    environment.documentation_address.cache_clear()
    try:
        main(["check", str(good), "--format", "sarif"])
    finally:
        environment.documentation_address.cache_clear()
    report = json.loads(capsys.readouterr().out)
    validate_sarif(report)
    rules = report["runs"][0]["tool"]["driver"]["rules"]
    links = [item.get("helpUri") for item in rules]
    expected = [f"https://docs.example/headscope/rules.html#{item['id'].lower()}" for item in rules]
    assert links == (expected if urls else [None] * len(rules))
