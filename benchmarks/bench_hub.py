"""Reading headers from a Hub on loopback: requests, bytes and seconds against what is needed, and `huggingface_hub`.

The server is the one of the tests, with redirects to a second origin as the real Hub has them. Weights are sparse.
"""

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.checkpoints import LLAMA_7B, LLAMA_70B, bert_base, sparse_llama
from benchmarks.goals import Goal, Ratio, print_goals, run_alone
from benchmarks.timing import PYTHON, ROOT, WORK

ROUNDS = 3
OURS = """
import sys, time
begun = time.perf_counter()
from headscope.checkpoints import read_manifest
manifest = read_manifest(sys.argv[1])
print(len(manifest.tensors), time.perf_counter() - begun)
"""
THEIRS = """
import sys, time
begun = time.perf_counter()
from huggingface_hub import get_safetensors_metadata
found = get_safetensors_metadata(sys.argv[1])
print(sum(len(file.tensors) for file in found.files_metadata.values()), time.perf_counter() - begun)
"""


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    sys.path.insert(0, str(ROOT))
    print(f"Hub on loopback\n  {'':<34}{'requests':>9}{'bytes':>12}{'needed':>12}{'full size':>17}{'seconds':>10}")
    goals: list[Goal] = []
    shapes = (("BERT-base", bert_base()), ("7B", sparse_llama(LLAMA_7B)), ("70B", sparse_llama(LLAMA_70B)))
    for name, folder in shapes:
        goals += _measure(name, folder, rounds)
    print_goals(goals)
    return goals


def _measure(name: str, folder: Path, rounds: int) -> list[Goal]:
    from tests.hub import Hub, serve

    repo = f"someone/{folder.name}"
    needed, full = _needed(folder)
    ratios = {}
    for tool, code in (("headscope", OURS), ("huggingface_hub", THEIRS)):
        seconds, requests, sent = [], 0, 0
        for number in range(rounds):
            with serve(Hub({repo: _Files(folder)})) as hub:
                home = WORK / f"hub-home-{os.getpid()}-{tool}-{number}"
                environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "PYTHONPATH": str(ROOT)}
                environment |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
                begun = time.perf_counter()
                ran = subprocess.run(
                    [PYTHON, "-c", code, repo], env=environment, capture_output=True, text=True, check=False
                )
                seconds.append(time.perf_counter() - begun)
                if ran.returncode:
                    raise RuntimeError(ran.stderr[-2000:])
                requests, sent = len(hub.log), sum(item.sent for item in hub.log)
        ratios[tool] = sent / needed
        print(f"  {name + ', ' + tool:<34}{requests:>9}{sent:>12,}{needed:>12,}{full:>17,}{min(seconds):>9.2f}s")
    ours, theirs = ratios["headscope"], ratios["huggingface_hub"]
    return [
        Goal(f"bytes for {name}, over config + index + headers", Ratio(ours, ours, ours), 1.3),
        Goal(f"bytes for {name}, over huggingface_hub's", Ratio(ours / theirs, ours / theirs, ours / theirs), 1.0),
    ]


class _Files(dict[str, Any]):
    """The files of a folder, which the server reads only in parts."""

    def __init__(self, folder: Path) -> None:
        names = [path.name for path in folder.iterdir() if path.suffix in (".json", ".safetensors")]
        super().__init__({name: _Content(folder / name) for name in names})


class _Content:
    """Bytes of a file, by slices."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __len__(self) -> int:
        return self._path.stat().st_size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(len(self))
        with self._path.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)


def _needed(folder: Path) -> tuple[int, int]:
    """Bytes of configuration, index and headers; and of everything."""
    needed = full = 0
    for path in folder.iterdir():
        size = path.stat().st_size
        if path.suffix == ".safetensors":
            full += size
            with path.open("rb") as file:
                needed += 8 + struct.unpack("<Q", file.read(8))[0]
        elif path.name == "config.json" or path.name.endswith(".index.json"):
            needed += size
            json.loads(path.read_text())
    return needed, full + needed


if __name__ == "__main__":
    sys.exit(run_alone(measure_goals, ROUNDS))
