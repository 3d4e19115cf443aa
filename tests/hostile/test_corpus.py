"""Every hostile case through the command line: told what it is, within bounds, with nothing run and nothing written."""

import io
import json
import os
import re
import resource
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from headscope.shell import main
from hostile import servers
from hostile.corpus import CASES, GROUPS
from hostile.corpus.case import CANARY, Case
from hostile.measure import MOST_MEGABYTES, measured, run
from tests import warm

_SECONDS = 60
_PROCESS_SECONDS = 120
_PROCESS_BYTES = 12 << 30
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_IN_A_PROCESS = tuple(case for case in CASES if "million" in case.id or "pipe" in case.id or "link" in case.id)


class Terminal(io.StringIO):
    """A stream that somebody watches, in color."""

    def isatty(self) -> bool:
        return True


def active(text: str) -> set[str]:
    """The characters in `text` that would do something to a terminal or hide in it; Rich's own colors may."""
    plain = _STYLE.sub("", text)
    return {sign for sign in plain if sign != "\n" and unicodedata.category(sign) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}


def contents(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def check_words(case: Case, shown: str) -> None:
    assert "Traceback" not in shown
    assert "bug in headscope" not in shown
    plain = " ".join(shown.split())  # a screen breaks its lines anywhere
    assert all(word in shown or word in plain for word in case.words), shown[-1000:]
    assert active(shown) == set()


@pytest.fixture(scope="module", autouse=True)
def imports() -> None:
    """What every examination imports is no case's own."""
    run(["inspect", "distilbert-base-uncased", "--offline"], main)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_hostile_input_is_told_for_what_it_is(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = case.build(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    with measured() as taken:
        code = main(arguments)
    assert taken.seconds < _SECONDS
    assert taken.megabytes < MOST_MEGABYTES
    out, err = capsys.readouterr()
    assert code in case.codes, (out + err)[-1000:]
    check_words(case, out + err)
    assert contents(tmp_path) - before <= {"out.json"}
    assert not (tmp_path / CANARY).exists()
    if code:
        assert not (tmp_path / "out.json").exists()
    assert main([*arguments, "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    if code == 0:
        assert "error" not in document
    else:
        assert document.get("error", {}).get("message") or document["not_determined"]


@pytest.mark.parametrize("case", [case for case in CASES if "named" in case.id], ids=lambda case: case.id)
def test_a_terminal_sees_no_character_that_acts(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = case.build(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    streams = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    main(arguments)
    assert all(active(stream.getvalue()) <= {"\r", "\x1b"} for stream in streams)
    assert "\x1b[2J" not in streams[0].getvalue() + streams[1].getvalue()


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_PROCESS_BYTES, _PROCESS_BYTES))


@pytest.mark.parametrize("case", _IN_A_PROCESS, ids=lambda case: case.id)
def test_a_process_ends_in_time_and_within_its_memory(case: Case, tmp_path: Path) -> None:
    surroundings = os.environ | warm.offline()
    ended = subprocess.run(
        [*warm.python(environment=surroundings), "-m", "headscope", *case.build(tmp_path)],
        capture_output=True, text=True, check=False, timeout=_PROCESS_SECONDS, preexec_fn=_limit_memory,
        stdin=subprocess.DEVNULL, env=surroundings,
    )  # fmt: skip
    assert ended.returncode in case.codes
    check_words(case, ended.stdout + ended.stderr)


def test_the_page_on_security_counts_the_cases() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    counts = {name: len(cases) for name, cases in GROUPS.items()} | {"servers": len(servers.CASES)}
    assert [line for name, count in counts.items() if (line := f"| {name} | {count} |") not in page] == []
    assert f"| total | {sum(counts.values())} |" in page
    assert len({case.id for case in CASES}) == len(CASES)
