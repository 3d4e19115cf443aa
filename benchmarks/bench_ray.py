"""The same scan by Ray and by the local pool, on this machine: a few snapshots, from start to exit."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

from benchmarks.goals import Goal, print_results, slowdown
from benchmarks.timing import PYTHON, ROOT, WORK, Command, measure

ROUNDS = 2
_CHECKPOINTS = 200
_WORKERS = "2"
# A scan ends with 1 where a checkpoint fails, and these may: what counts is that every row is there.
_SCAN = """
import sys
from pathlib import Path
from headscope.slices.fleet.run import run_scan
from headscope.slices.fleet.table_scan import ScanOutput
from headscope.slices.fleet.target import ScanSources

executor, folder, output, workers = sys.argv[1:]
Path(output).unlink(missing_ok=True)
sources = ScanSources(folders=[folder])
found = run_scan(sources, ScanOutput(output, executor=executor), workers=int(workers), offline=True)
assert found.rows == {count}, found
"""


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement; it promises nothing, as Ray is not there to be faster on one machine."""
    place = WORK / "ray"
    folder = _snapshots(place / "snapshots")
    if find_spec("ray") is None:
        print('Ray is not installed: pip install "headscope[ray]"')
        return []
    # Ray gives its workers a low priority, which says nothing about Ray on a machine that does something else too.
    with patch.dict(os.environ, RAY_worker_niceness="0"):
        ray, local = measure([_scan(executor, folder, place) for executor in ("ray", "local")], rounds)
    goals = [Goal("scan by Ray, over the local pool", slowdown(ray, local))]
    print_results(f"Scan of {_CHECKPOINTS} snapshots by {_WORKERS} workers", (ray, local), goals)
    return goals


def _scan(executor: str, folder: Path, place: Path) -> Command:
    code = _SCAN.replace("{count}", str(_CHECKPOINTS))
    return Command(executor, (PYTHON, "-c", code, executor, str(folder), str(place / f"{executor}.jsonl"), _WORKERS))


def _snapshots(folder: Path) -> Path:
    """Copies of the bundled snapshots: a few structures, each many times."""
    bundled = sorted((ROOT / "headscope" / "core" / "checkpoints" / "bundled").glob("*.json"))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number in range(_CHECKPOINTS):
        shutil.copy(bundled[number % len(bundled)], folder / f"{number:04}.json")
    return folder
