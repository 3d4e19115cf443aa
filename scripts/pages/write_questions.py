"""Writes the output of every `$ headscope` line in the docs again; with `--check`, compares."""

import io
import os
import re
import shlex
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from scripts.generated import write_or_compare

ROOT = Path(__file__).resolve().parents[2]
SKILL = ROOT / "packaging" / "skills" / "headscope" / "SKILL.md"
PAGES = (ROOT / "README.md", SKILL, *sorted((ROOT / "docs").glob("*.md")))
WIDTH = 100
_BLOCK = re.compile(r"```console\n(?P<body>\$ headscope .*?)```", re.DOTALL)
_COLORS = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


def fresh_page(text: str) -> str:
    """`text` with the output below every `$ headscope` line as the tool prints it now."""
    return _BLOCK.sub(lambda match: f"```console\n{_fresh_block(match['body'])}```", text)


def _fresh_block(body: str) -> str:
    commands = [line.removeprefix("$ ") for line in body.splitlines() if line.startswith("$ ")]
    return "".join(f"$ {command}\n{_output_of(command)}" for command in commands)


def _output_of(command: str) -> str:
    """What a command prints on both streams, on a terminal without color of the documented width."""
    from headscope.shell import main

    captured = io.StringIO()
    with redirect_stdout(captured), redirect_stderr(captured):
        main(shlex.split(command)[1:])
    return captured.getvalue()


def _settle_surroundings(empty: str) -> None:
    """The documented width, no color, no network, and an empty cache: the bundled snapshots answer."""
    for name in _COLORS:
        os.environ.pop(name, None)
    os.environ |= {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb", "HEADSCOPE_NO_PROGRESS": "1"}
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": empty, "HF_HUB_CACHE": empty}


def main(arguments: list[str]) -> int:
    """Rewrites the pages; with `--check` shows the difference instead and returns 1 where there is one."""
    with tempfile.TemporaryDirectory() as empty:
        _settle_surroundings(empty)
        fresh = {page: fresh_page(page.read_text(encoding="utf-8")) for page in PAGES}
    return max(write_or_compare(page, text, arguments) for page, text in fresh.items())
