"""Rows for tests of tables, and a process that writes them until it is killed."""

import random
import subprocess
import sys
import time
from pathlib import Path

from headscope.facts.check import Verdict
from headscope.facts.scan import ScanRow

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


_WRITER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tables import row
from headscope.fleet.output import RowFile
from headscope.fleet.parquet import RowFolder

path = Path(sys.argv[2])
table = RowFolder(path, go_on=True, rows=7) if path.suffix == ".parquet" else RowFile(path, go_on=True)
for number in range(1_000_000):
    if not table.known.holds(f"m{number}"):
        table.write(row(f"m{number}", number))
        os.write(1, f"m{number}\\n".encode())
"""


def write_until_killed(path: Path, seconds: float) -> list[str]:
    """Starts a process that goes on with a table, kills it, and returns the names that it reported as written."""
    command = [sys.executable, "-c", _WRITER, str(Path(__file__).parent), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(seconds)
        process.kill()
        return [name.strip() for name in (first, *process.stdout) if name.endswith("\n")]


def random_seconds(rounds: int) -> list[float]:
    """When to kill; another sequence in each run, as no instant may lose a row."""
    return [random.random() / 20 for _ in range(rounds)]
