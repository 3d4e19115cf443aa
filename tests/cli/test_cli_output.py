"""Where the commands write, and in which format: files, links, pictures, progress, readers who leave."""

import errno
import io
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import sleep

import pytest
from reports import REPORTS

from headscope.errors import ExitCode, NotFound
from headscope.facts import Gap, Report
from headscope.shared.report.documents import inspect_document
from headscope.shell import main, progress as status
from tests.cli.command import Cli
from tests.cli.fake_api import FakeApi

PERMISSIONS = 0o640


@pytest.mark.parametrize("command", ["inspect", "diff-weights", "diff_weights"])
def test_quiet_is_the_verdict_only(fake: FakeApi, cli: Cli, command: str) -> None:
    assert len(cli(command, "roberta", "-q").out.splitlines()) == 1


DRAWINGS = (
    ([], "%%{init: "),
    (["--format", "mermaid"], "%%{init: "),
    (["--format", "dot"], "digraph head {\n"),
    (["--format=svg"], "<svg "),
    (["--format", "html", "-q"], "<!DOCTYPE html>\n"),
    (["--json"], "%%{init: "),
)


@pytest.mark.parametrize(("options", "beginning"), DRAWINGS)
def test_diagram_draws_in_the_format_asked_for(fake: FakeApi, cli: Cli, options: list[str], beginning: str) -> None:
    out, err = cli("diagram", "bert", *options)
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
    fake: FakeApi, cli: Cli, name: str, beginning: str, tmp_path: Path
) -> None:
    assert cli("diagram", "bert", "-o", tmp_path / name).out == ""
    assert (tmp_path / name).read_text(encoding="utf-8").lower().startswith(beginning.lower())
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["head.png", "head.pdf", "head.md", "head.svgz"])
def test_diagram_refuses_a_suffix_that_is_no_format(fake: FakeApi, cli: Cli, name: str, tmp_path: Path) -> None:
    assert ".svg" in cli("diagram", "bert", "-o", tmp_path / name, code=ExitCode.USAGE).err
    assert list(tmp_path.iterdir()) == []
    cli("diagram", "bert", "--format", "dot", "-o", tmp_path / name)
    assert (tmp_path / name).read_text(encoding="utf-8").startswith("digraph")


def test_diagram_of_what_is_not_determined_ends_with_3_and_says_so(
    fake: FakeApi, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REPORTS, "open", lambda: replace(REPORTS["bert"](), not_determined=(Gap("pooling", "why"),)))
    assert "not determined: pooling" in cli("diagram", "open", code=ExitCode.UNDETERMINED).out


def test_diagram_fails_as_json_if_asked(fake: FakeApi, cli: Cli) -> None:
    fake.error = NotFound("no such checkpoint", "look elsewhere")
    document = cli.json("diagram", "bert", "--format", "svg", code=ExitCode.UNDETERMINED)
    assert document["error"]["code"] == NotFound.code


def test_diagram_has_no_json_of_its_own(fake: FakeApi, cli: Cli) -> None:
    assert "error" in json.loads(cli("diagram", "bert", "--format", "json", code=ExitCode.USAGE).out)


def test_a_file_holds_the_whole_report(fake: FakeApi, cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.write_text("old")
    target.chmod(PERMISSIONS)
    assert cli("inspect", "hostile", "--json", "-o", target).out == ""
    assert json.loads(target.read_text()) == inspect_document(REPORTS["hostile"]())
    assert target.stat().st_mode & 0o777 == PERMISSIONS
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_link_is_followed(fake: FakeApi, cli: Cli, tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    cli("inspect", "bert", "-o", link)
    assert link.is_symlink()
    assert target.read_text().startswith("Head partly new: ")


def test_a_file_that_fails_keeps_its_old_content(fake: FakeApi, cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "report.txt"
    target.write_text("old")
    fake.error = NotFound("gone")
    cli("inspect", "bert", "-o", target, code=ExitCode.UNDETERMINED)
    assert target.read_text() == "old"


@pytest.mark.parametrize("place", [".", "no/such/folder/file"])
def test_a_place_that_cannot_be_written_is_told_before_the_work(
    fake: FakeApi, cli: Cli, tmp_path: Path, place: str
) -> None:
    assert "hint: " in cli("inspect", "bert", "-o", tmp_path / place, code=ExitCode.USAGE).err
    assert fake.options == {}


def test_snapshot_says_what_it_wrote(fake: FakeApi, cli: Cli, tmp_path: Path) -> None:
    command = "snapshot", "bert", "-o", str(tmp_path / "bert.json")
    assert cli(*command).out.startswith(f"wrote {command[-1]}: 0 tensors ")
    assert cli.json(*command)["output"] == command[-1]
    assert cli(*command, "-q").out == ""


class Terminal(io.StringIO):
    """A stream that somebody watches."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stderr", "arguments", "variable", "shown"),
    [
        (Terminal, [], "", "(?s).*reading.*"),
        (Terminal, ["-q"], "", ""),
        (Terminal, [], "1", ""),
        (io.StringIO, [], "", r"headscope: reading \.\.\.\n"),
        (io.StringIO, ["-q"], "", ""),
        (io.StringIO, [], "1", ""),
    ],
    ids=["watched", "watched, quiet", "watched, disabled", "in a log", "in a log, quiet", "in a log, disabled"],
)
def test_progress_is_shown_on_a_terminal_and_is_one_line_of_a_log_unless_it_is_unwanted(
    stderr: type[io.StringIO], arguments: list[str], variable: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inspect(*_: object, progress: Callable[[str], None], **__: object) -> Report:
        progress("reading")
        sleep(0.2)
        return REPORTS["bert"]()

    stream = stderr()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.delenv("HEADSCOPE_NO_PROGRESS")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", variable)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(status._StatusLine, "patience", 0.0)
    monkeypatch.setattr(status._LateLine, "patience", 0.05)
    monkeypatch.setattr("headscope.slices.inspect.run.inspect", inspect)
    assert main(["inspect", "bert", *arguments]) == ExitCode.OK
    assert re.fullmatch(shown, stream.getvalue())


def test_an_agent_gets_no_colors_no_spinner_and_no_next_commands(
    fake: FakeApi, monkeypatch: pytest.MonkeyPatch
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


def test_the_brief_format_is_the_summary_of_the_json(fake: FakeApi, cli: Cli) -> None:
    document = cli.json("inspect", "bert")
    assert next(iter(document)) == "summary"
    brief, _ = cli("inspect", "bert", "--format", "brief")
    assert json.loads(brief) == document["summary"] and len(brief) < 1_200
    refused, _ = cli("inspect", "bert", "--format", "brief", "--no-such", code=ExitCode.USAGE)
    assert json.loads(refused)["error"]["code"] == "usage"


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
def test_a_file_that_was_written_is_named_but_not_with_q(fake: FakeApi, cli: Cli, tmp_path: Path, words: str) -> None:
    target = tmp_path / "out.txt"
    out, err = cli(*words.split(), "-o", target)
    assert (out, err.splitlines()[-1:]) == ("", [f"wrote {target}"])
    assert target.read_text(encoding="utf-8")
    if words.split(maxsplit=1)[0] not in {"env", "explain"}:
        assert cli(*words.split(), "-q", "-o", target) == ("", "")


def test_a_reader_who_leaves_is_no_failure(fake: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "w", closefd=False) as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(["inspect", "bert"]) == ExitCode.OK
        assert main(["inspect", "bert", "--json"]) == ExitCode.OK


def test_a_diagram_is_boxes_in_a_terminal_and_mermaid_in_a_pipe(
    fake: FakeApi, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "flowchart TD" in cli("diagram", "bert").out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "┌──" in cli("diagram", "bert").out
    assert "digraph" in cli("diagram", "bert", "--format", "dot").out


@pytest.mark.parametrize("words", [["explain", "HS101", "-o"], ["snapshot", "roberta-base", "--offline", "-o"]])
def test_a_name_that_is_too_long_is_a_wish_that_cannot_be_meant(words: list[str], tmp_path: Path, cli: Cli) -> None:
    assert "give a shorter name" in cli(*words, tmp_path / ("a" * 300), code=2).err


def test_output_that_is_refused_has_the_hint_of_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("headscope.core.outputs.write_whole", refused)
    assert "write where you have permission" in cli("explain", "HS101", "-o", tmp_path / "file", code=2).err
