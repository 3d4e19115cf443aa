"""Rows and tables for tests, readers that aren't ours, scans, and a process that writes until it is killed."""

import contextlib
import csv
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from headscope.core.facts.verdict import Verdict
from headscope.slices.fleet.facts import ScanRow
from headscope.slices.fleet.table import open_table
from tests import warm
from tests.headers_only import Checkpoint, checkpoint_of

VERDICTS = tuple(Verdict)


class Killed(BaseException):
    """Stands for a kill: nothing that a process does at its end happens."""


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


def written(path: Path, *rows: ScanRow, go_on: bool = False) -> Path:
    """A table, after these rows were added."""
    with open_table(path, go_on=go_on) as table:
        for one in rows:
            table.write(one)
    return path


def lines_of(path: Path) -> Path:
    """The file of JSON lines of a table: itself, or the one beside a table of CSV."""
    return path.with_name(f"{path.name}.jsonl") if path.suffix == ".csv" else path


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


@cache
def small_bert() -> Checkpoint:
    """A classifier of texts with few layers."""
    found = checkpoint_of("bert", "BertForSequenceClassification")
    assert found is not None
    return found


def scan(
    *arguments: str, folder: Path, settings: Mapping[str, str] | None = None, **streams: Any
) -> subprocess.CompletedProcess[str]:
    """`headscope scan` in a process of its own, without the Hub unless the settings name one."""
    surroundings = dict(os.environ | warm.offline() if settings is None else settings)
    surroundings.pop("COLUMNS", None)
    command = [*warm.python(environment=surroundings), "-m", "headscope", "scan", "--workers", "1", *arguments]
    to = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.run(command, text=True, check=False, cwd=folder, env=surroundings, **to)


def until(is_so: Callable[[], bool], seconds: float = 300) -> None:
    """Waits for what another process does."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


def workers_below(process: int) -> int:
    """How many worker processes of headscope are descendants of a process."""
    count = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in psutil.Process(process).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                count += "headscope.core.workers" in " ".join(one.cmdline())
    return count


def python(code: str, *words: object) -> list[str]:
    """A process whose code may use what is here."""
    folders = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
    begin = f"import os, sys; sys.path += {folders}\nfrom tables import open_table, row\n"
    return [sys.executable, "-c", begin + code, *map(str, words)]


_WRITER = """
table = open_table(sys.argv[1], go_on=True)
for number in range(1_000_000):
    if not table.known.holds(f"m{number}"):
        table.write(row(f"m{number}", number))
        os.write(1, f"m{number}\\n".encode())
"""


def write_until_killed(path: Path, seconds: float) -> list[str]:
    """Starts a process that goes on with a table, kills it, and returns the names that it reported as written."""
    with subprocess.Popen(python(_WRITER, path), stdout=subprocess.PIPE, text=True) as process:
        first = process.stdout.readline()
        time.sleep(seconds)
        process.kill()
        return [name.strip() for name in (first, *process.stdout) if name.endswith("\n")]


def random_seconds(rounds: int) -> list[float]:
    """When to kill; another sequence in each run, as no instant may lose a row."""
    return [random.random() / 20 for _ in range(rounds)]
