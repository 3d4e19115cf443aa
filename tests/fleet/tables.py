"""Rows for tests of tables, readers that aren't ours, and a process that writes them until it is killed."""

import contextlib
import csv
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from headscope.core.facts.verdict import Verdict
from headscope.slices.fleet.facts import ScanRow

VERDICTS = tuple(Verdict)


def row(name: str, number: int = 0, **fields: object) -> ScanRow:
    """A row whose verdict, labels and length differ from those beside it."""
    given: dict[str, object] = {
        "commit": f"c{number}",
        "class_name": "BertForSequenceClassification",
        "labels": ("a", "b")[: number % 3],
        "new": None if number % 2 else number,
        "reason": "x" * (number % 50),
        "seconds": number / 8,
    }
    return ScanRow(name, VERDICTS[number % 3], **(given | fields))  # type: ignore[arg-type]


def rows_in(path: Path) -> list[dict[str, Any]]:
    """The rows of a table, by readers that accept nothing but whole lines of JSON or CSV."""
    if path.suffix == ".csv":
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return list(csv.DictReader(stream, strict=True))
    return [json.loads(line) for line in path.read_bytes().decode().split("\n")[:-1]]


def names_in(path: Path) -> list[str]:
    """The references in a table."""
    return [one["reference"] for one in rows_in(path)]


def files_in(path: Path) -> list[str]:
    """The files in a folder, and in those below it."""
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def workers_below(process: int) -> int:
    """How many worker processes of headscope are descendants of a process."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(words[1])
    below = {process}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    count = 0
    for one in below:
        with contextlib.suppress(OSError):
            count += b"headscope.core.workers" in Path(f"/proc/{one}/cmdline").read_bytes()
    return count


_WRITER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from tables import row
from headscope.slices.fleet.table.table import open_table

table = open_table(sys.argv[2], go_on=True)
for number in range(1_000_000):
    if not table.known.holds(f"m{number}"):
        table.write(row(f"m{number}", number))
        os.write(1, f"m{number}\\n".encode())
"""


def write_until_killed(path: Path, seconds: float) -> list[str]:
    """Starts a process that goes on with a table, kills it, and returns the names that it reported as written."""
    command = [sys.executable, "-c", _WRITER, str(Path(__file__).parent), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        first = process.stdout.readline()
        time.sleep(seconds)
        process.kill()
        return [name.strip() for name in (first, *process.stdout) if name.endswith("\n")]


def random_seconds(rounds: int) -> list[float]:
    """When to kill; another sequence in each run, as no instant may lose a row."""
    return [random.random() / 20 for _ in range(rounds)]
