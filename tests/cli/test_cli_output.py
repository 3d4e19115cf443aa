"""Where the commands write, and in which format: files, links, pictures, progress, readers who leave."""

import errno
import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reports import REPORTS

from headscope.errors import ExitCode, NotFound
from headscope.facts import Gap, Report
from headscope.shared.report.documents import inspect_document
from headscope.shell import main
from tests.cli.fake_api import FakeApi

PERMISSIONS = 0o640


@pytest.mark.parametrize("command", ["inspect", "diff-weights", "diff_weights"])
def test_quiet_is_the_verdict_only(fake: FakeApi, capsys: pytest.CaptureFixture[str], command: str) -> None:
    main([command, "roberta", "-q"])
    assert len(capsys.readouterr().out.splitlines()) == 1


DRAWINGS = (
    ([], "%%{init: "),
    (["--format", "mermaid"], "%%{init: "),
    (["--format", "dot"], "digraph head {\n"),
    (["--format=svg"], "<svg "),
    (["--format", "html", "-q"], "<!DOCTYPE html>\n"),
    (["--json"], "%%{init: "),
)


@pytest.mark.parametrize(("options", "beginning"), DRAWINGS)
def test_diagram_draws_in_the_format_asked_for(
    fake: FakeApi, capsys: pytest.CaptureFixture[str], options: list[str], beginning: str
) -> None:
    assert main(["diagram", "bert", *options]) == ExitCode.OK
    out, err = capsys.readouterr()
    assert out.startswith(beginning)
    assert err == ""


SUFFIXES = (
    ("head.svg", "<svg "),
    ("head.SVG", "<svg "),
    ("head.html", "<!DOCTYPE html>"),
    ("head.dot", "digraph"),
    ("head.gv", "digraph"),
    ("head.mmd", "%%{init: "),
    ("head", "%%{init: "),
)


@pytest.mark.parametrize(("name", "beginning"), SUFFIXES)
def test_diagram_takes_the_format_from_the_suffix(
    fake: FakeApi, capsys: pytest.CaptureFixture[str], name: str, beginning: str, tmp_path: Path
) -> None:
    assert main(["diagram", "bert", "-o", str(tmp_path / name)]) == ExitCode.OK
    assert (tmp_path / name).read_text(encoding="utf-8").lower().startswith(beginning.lower())
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["head.png", "head.pdf", "head.md", "head.svgz"])
def test_diagram_refuses_a_suffix_that_is_no_format(
    fake: FakeApi, capsys: pytest.CaptureFixture[str], name: str, tmp_path: Path
) -> None:
    assert main(["diagram", "bert", "-o", str(tmp_path / name)]) == ExitCode.USAGE
    assert ".svg" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main(["diagram", "bert", "--format", "dot", "-o", str(tmp_path / name)]) == ExitCode.OK
    assert (tmp_path / name).read_text(encoding="utf-8").startswith("digraph")


def test_diagram_of_what_is_not_determined_ends_with_3_and_says_so(
    fake: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REPORTS, "open", lambda: replace(REPORTS["bert"](), not_determined=(Gap("pooling", "why"),)))
    assert main(["diagram", "open"]) == ExitCode.UNDETERMINED
    assert "not determined: pooling" in capsys.readouterr().out


def test_diagram_fails_as_json_if_asked(fake: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    fake.error = NotFound("no such checkpoint", "look elsewhere")
    assert main(["diagram", "bert", "--format", "svg", "--json"]) == ExitCode.UNDETERMINED
    assert json.loads(capsys.readouterr().out)["error"]["code"] == NotFound.code


def test_diagram_has_no_json_of_its_own(fake: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagram", "bert", "--format", "json"]) == ExitCode.USAGE
    assert "error" in json.loads(capsys.readouterr().out)


def test_a_file_holds_the_whole_report(fake: FakeApi, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.write_text("old")
    target.chmod(PERMISSIONS)
    assert main(["inspect", "hostile", "--json", "-o", str(target)]) == ExitCode.OK
    assert json.loads(target.read_text()) == inspect_document(REPORTS["hostile"]())
    assert target.stat().st_mode & 0o777 == PERMISSIONS
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert capsys.readouterr().out == ""


def test_a_link_is_followed(fake: FakeApi, tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    assert main(["inspect", "bert", "-o", str(link)]) == ExitCode.OK
    assert link.is_symlink()
    assert target.read_text().startswith("Head partly new: ")


def test_a_file_that_fails_keeps_its_old_content(
    fake: FakeApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "report.txt"
    target.write_text("old")
    fake.error = NotFound("gone")
    main(["inspect", "bert", "-o", str(target)])
    capsys.readouterr()
    assert target.read_text() == "old"


@pytest.mark.parametrize("place", [".", "no/such/folder/file"])
def test_a_place_that_cannot_be_written_is_told_before_the_work(
    fake: FakeApi, capsys: pytest.CaptureFixture[str], tmp_path: Path, place: str
) -> None:
    assert main(["inspect", "bert", "-o", str(tmp_path / place)]) == ExitCode.USAGE
    assert fake.options == {}
    assert "hint: " in capsys.readouterr().err


def test_snapshot_says_what_it_wrote(fake: FakeApi, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = str(tmp_path / "bert.json")
    assert main(["snapshot", "bert", "-o", target]) == ExitCode.OK
    assert capsys.readouterr().out.startswith(f"wrote {target}: 0 tensors ")
    assert main(["snapshot", "bert", "-o", target, "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["output"] == target
    assert main(["snapshot", "bert", "-o", target, "-q"]) == ExitCode.OK
    assert capsys.readouterr().out == ""


class Terminal(io.StringIO):
    """A stream that somebody watches."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("arguments", "variable", "shown"),
    [([], "", True), (["-q"], "", False), ([], "1", False)],
    ids=["watched", "quiet", "disabled"],
)
def test_progress_is_shown_on_a_terminal_unless_it_is_unwanted(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch, arguments: list[str], variable: str, shown: bool
) -> None:
    from headscope.shell import progress

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.delenv("HEADSCOPE_NO_PROGRESS")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", variable)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress._StatusLine, "patience", 0.0)
    monkeypatch.setattr("headscope.slices.inspect.run.inspect", lambda *_, progress, **__: slow_report(progress))
    assert main(["inspect", "bert", *arguments]) == ExitCode.OK
    assert ("reading" in terminal.getvalue()) is shown


@pytest.mark.parametrize(
    ("arguments", "variable", "shown"),
    [([], "", "headscope: reading ...\n"), (["-q"], "", ""), ([], "1", "")],
    ids=["in a log", "quiet", "disabled"],
)
def test_a_log_gets_one_line_of_progress_if_it_takes_long(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch, arguments: list[str], variable: str, shown: str
) -> None:
    from headscope.shell import progress

    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.delenv("HEADSCOPE_NO_PROGRESS")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", variable)
    monkeypatch.setattr(progress._LateLine, "patience", 0.05)
    monkeypatch.setattr("headscope.slices.inspect.run.inspect", lambda *_, progress, **__: slow_report(progress))
    assert main(["inspect", "bert", *arguments]) == ExitCode.OK
    assert log.getvalue() == shown


def test_an_agent_gets_no_colors_no_spinner_and_no_next_commands(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = {}
    monkeypatch.delenv("HEADSCOPE_NO_PROGRESS")
    for agent in ("", "an-agent"):
        monkeypatch.setenv("AI_AGENT", agent)
        terminal = Terminal()
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stdout", terminal)
        assert main(["inspect", "bert"]) == ExitCode.OK
        shown[agent] = terminal.getvalue()
    assert "\x1b[" in shown[""] and "headscope inspect bert --details" in shown[""]
    assert "\x1b[" not in shown["an-agent"] and "headscope inspect" not in shown["an-agent"]


def test_the_brief_format_is_the_summary_of_the_json(fake: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "bert", "--json"]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert next(iter(document)) == "summary"
    assert main(["inspect", "bert", "--format", "brief"]) == ExitCode.OK
    brief = capsys.readouterr().out
    assert json.loads(brief) == document["summary"] and len(brief) < 1_200
    assert main(["inspect", "bert", "--format", "brief", "--no-such"]) == ExitCode.USAGE
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "usage"


def slow_report(progress: Any) -> Report:
    from time import sleep

    progress("reading")
    sleep(0.2)
    return REPORTS["bert"]()


@pytest.mark.parametrize(
    "words",
    [
        "inspect bert",
        "inspect bert --json",
        "diff-weights bert",
        "diagram bert",
        "diagram bert --format text",
        "env",
        "explain CLS",
        "explain",
    ],
)
def test_a_file_that_was_written_is_named_but_not_with_q(
    fake: FakeApi, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: str
) -> None:
    target = tmp_path / "out.txt"
    main([*words.split(), "-o", str(target)])
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[-1:]) == ("", [f"wrote {target}"])
    assert target.read_text(encoding="utf-8")
    if words.split(maxsplit=1)[0] not in {"env", "explain"}:
        main([*words.split(), "-q", "-o", str(target)])
        assert capsys.readouterr() == ("", "")


def test_a_reader_who_leaves_is_no_failure(fake: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "w", closefd=False) as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(["inspect", "bert"]) == ExitCode.OK
        assert main(["inspect", "bert", "--json"]) == ExitCode.OK


def test_a_diagram_is_boxes_in_a_terminal_and_mermaid_in_a_pipe(
    fake: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["diagram", "bert"])
    assert "flowchart TD" in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    main(["diagram", "bert"])
    assert "┌──" in capsys.readouterr().out
    main(["diagram", "bert", "--format", "dot"])
    assert "digraph" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["explain", "HS101", "-o"], ["snapshot", "roberta-base", "--offline", "-o"]])
def test_a_name_that_is_too_long_is_a_wish_that_cannot_be_meant(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, str(tmp_path / ("a" * 300))]) == 2
    assert "give a shorter name" in capsys.readouterr().err


def test_output_that_is_refused_has_the_hint_of_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("headscope.core.outputs.write_whole", refused)
    assert main(["explain", "HS101", "-o", str(tmp_path / "file")]) == 2
    assert "write where you have permission" in capsys.readouterr().err
