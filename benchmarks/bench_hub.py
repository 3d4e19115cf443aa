"""Reading headers from a Hub on loopback: requests, bytes and seconds against what is needed, and `huggingface_hub`.

The server is the one of the tests, with redirects to a second origin as the real Hub has them. Weights are sparse.
"""

import struct
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.checkpoints import LLAMA_8B, LLAMA_70B, bert_base, sparse_llama
from benchmarks.goals import Goal, exact, print_goals
from benchmarks.timing import PYTHON, ROOT, WORK

ROUNDS = 3
LATENCY = 0.05
TELEMETRY = "/api/agent-harnesses"
OURS = """
import sys, time
begun = time.perf_counter()
from headscope.core.checkpoints.reading import read_manifest
from headscope.core.facts.stored.location import Location
manifest = read_manifest(Location(sys.argv[1]))
print(len(manifest.tensors), time.perf_counter() - begun)
"""
THEIRS = """
import sys, time
begun = time.perf_counter()
from huggingface_hub import get_safetensors_metadata
found = get_safetensors_metadata(sys.argv[1])
print(sum(len(file.tensors) for file in found.files_metadata.values()), time.perf_counter() - begun)
"""
DOWNLOAD = """
import sys, time
begun = time.perf_counter()
from huggingface_hub import hf_hub_download
for name in ("config.json", "model.safetensors"):
    hf_hub_download(sys.argv[1], name)
print(time.perf_counter() - begun)
"""


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    print(f"Hub on loopback, {1000 * LATENCY:.0f} ms before every answer")
    print(f"  {'':<44}{'requests':>9}{'bytes':>17}{'over needed':>13}{'seconds':>10}")
    shapes = {
        "BERT-base, 1 file": bert_base(),
        "8B, 8 shards": sparse_llama(LLAMA_8B, 2_200_000_000),
        "70B, 30 shards": sparse_llama(LLAMA_70B, 4_780_000_000),
    }
    rate = _download(shapes["BERT-base, 1 file"])
    goals = [goal for name, folder in shapes.items() for goal in _measure(name, folder, rounds, rate)]
    print_goals(goals)
    return goals


def _measure(name: str, folder: Path, rounds: int, rate: float) -> list[Goal]:
    """Both readers of one checkpoint; a download is reckoned at the rate that was measured for the smallest."""
    needed, full = _needed(folder)
    ours, theirs = (_read(name, folder, tool, needed, rounds) for tool in ("headscope", "huggingface_hub"))
    _print(f"{name}, download (at {rate / 1e6:.0f} MB/s)", "", full, needed, full / rate)
    goals = [
        Goal(f"bytes for {name}, over config + index + headers", exact(ours.sent / needed), 1.3),
        Goal(f"bytes for {name}, over huggingface_hub's", exact(ours.sent / theirs.sent), 1.0),
    ]
    is_sharded = (folder / "model.safetensors.index.json").exists()
    if is_sharded:  # of one file the client asks three times in all, and never for the configuration
        goals.append(Goal(f"seconds for {name}, over huggingface_hub's", exact(ours.seconds / theirs.seconds), 1.1))
    return goals


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one reading took; the seconds are the best of all rounds."""

    requests: int
    sent: int
    seconds: float


def _read(name: str, folder: Path, tool: str, needed: int, rounds: int) -> Traffic:
    samples = [_run(folder, {"headscope": OURS, "huggingface_hub": THEIRS}[tool]) for _ in range(rounds)]
    best = replace(samples[-1], seconds=min(sample.seconds for sample in samples))
    _print(f"{name}, {tool}", best.requests, best.sent, needed, best.seconds)
    return best


def _print(title: str, requests: int | str, sent: int, needed: int, seconds: float) -> None:
    print(f"  {title:<44}{requests:>9}{sent:>17,}{sent / needed:>12,.2f}x{seconds:>9.2f}s")


def _download(folder: Path) -> float:
    """Bytes a second of the client's own download of a checkpoint, hashes and disk included."""
    sample = _run(folder, DOWNLOAD)
    return sample.sent / sample.seconds


def _run(folder: Path, code: str) -> Traffic:
    """One process that reads the checkpoint from a separate Hub."""
    from tests.hub import Hub

    repo = f"someone/{folder.name}"
    output, asked = run_beside_hub(Hub({repo: _Files(folder)}, latency=LATENCY), "-c", code, repo)
    return Traffic(len(asked), sum(item.sent for item in asked), float(output.split()[-1]))


def run_beside_hub(hub: Any, *arguments: str, **settings: str) -> tuple[str, list[Any]]:
    """Runs Python with an empty cache and a Hub on loopback; what it prints, and its requests to the Hub.

    Raises RuntimeError where it ends in a traceback or is killed.
    """
    from tests.hub import client_settings, serve

    with tempfile.TemporaryDirectory(dir=WORK) as home, serve(hub) as served:
        environment = client_settings(served.endpoint, Path(home), PYTHONPATH=str(ROOT), **settings)
        ran = subprocess.run([PYTHON, *arguments], env=environment, capture_output=True, text=True, check=False)
        if "Traceback" in ran.stderr or ran.returncode < 0:
            raise RuntimeError(ran.stderr[-2000:])
        return ran.stdout, [request for request in served.log if request.path != TELEMETRY]


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
    return needed, full + needed
