"""Writes the output of every `$ headscope` line in the docs anew: `write_questions.py`, or `--check` to compare."""

import difflib
import io
import os
import re
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "questions.md")
WIDTH = 100
_BLOCK = re.compile(r"```console\n(?P<body>\$ headscope .*?)```", re.DOTALL)


def fresh_page(text: str) -> str:
    """`text` with the output below every `$ headscope` line as the tool prints it now."""
    return _BLOCK.sub(lambda match: f"```console\n{_fresh_block(match['body'])}```", text)


def _fresh_block(body: str) -> str:
    commands = [line.removeprefix("$ ") for line in body.splitlines() if line.startswith("$ ")]
    return "".join(f"$ {command}\n{_output_of(command)}" for command in commands)


def _output_of(command: str) -> str:
    """What a command prints on both streams, on a terminal without colour of the documented width."""
    os.environ |= {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
    from headscope.cli import main

    captured = io.StringIO()
    with redirect_stdout(captured), redirect_stderr(captured):
        main(shlex.split(command)[1:])
    return captured.getvalue()


def main(arguments: list[str]) -> int:
    """Rewrites the pages; with `--check` shows the difference instead and returns 1 where there is one."""
    stale = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        fresh = fresh_page(text)
        if "--check" in arguments:
            difference = difflib.unified_diff(text.splitlines(), fresh.splitlines(), page.name, "now", lineterm="")
            lines = list(difference)
            stale += bool(lines)
            print("\n".join(lines))
        else:
            page.write_text(fresh, encoding="utf-8")
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
