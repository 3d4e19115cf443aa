"""Writes the table of docs/states.md from the record of real saves, or `--check`s it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.generated import with_part, write_or_compare

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "states.md"
RECORD = ROOT / "tests" / "states" / "table" / "record.json"


def main(arguments: list[str]) -> int:
    """Writes the page, or says whether it is as it would be written."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    table = "\n".join((*_table(record), ""))
    return write_or_compare(PAGE, with_part(PAGE, "pages/write_states.py", table), arguments)


def _table(record: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield "| state | made by | `inspect` | `check` | named | after the repair |"
    yield "|---|---|---|---|---|---|"
    for row in record.values():
        made = f"`{row['code']}` ({', '.join(row['versions'])})"
        named = ", ".join(filter(None, (*row["rules"], row["tool"]))) or "clean"
        exits = (f"exit {row['inspect']}", f"exit {row['check']}, {row['verdict']}")
        cells = (row["name"], made, *exits, named, _after(row))
        yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _after(row: dict[str, Any]) -> str:
    """What the load found after the repair, or why none was run."""
    if row["not_run"]:
        return f"not run: {row['not_run']}"
    return f"`check` passes, {row['after']}" if row["after"] else "nothing to repair"
