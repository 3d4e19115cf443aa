"""A census as proof: thousands of checkpoints of every family behind a faulty Hub, killed and resumed, none lost.

    python -m tests.sweeps.census --count 5000 --kills 3

Makes `count` checkpoints without values, of one class of each family, in the variants that people have; serves
them with a latency of 50 ms and a fault in one of twenty answers (429, 503, a connection that is cut), twenty of them
gated, missing or damaged. Scans them once undisturbed and once with kills (SIGKILL, any moment) and `--resume`. Every
checkpoint has to have one row in both tables, and the rows have to be equal, but for what the network adds.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headers_only import Checkpoint, checkpoint_of, class_names, header_of, labeled, variants
from hub import Answer, Hub, client_settings, serve

_LATENCY = 0.05
_OF_THE_NETWORK = ("seconds", "requests", "bytes_read")
_FAULTS = (503, 0, 503, 0, 503, 0, 500, 0, 429)  # after a 429 all workers wait
_KINDS = ("named", "contradicting labels", "half")


class Hollow:
    """A file whose first bytes are `header`, and all others zeros that nobody holds."""

    def __init__(self, header: bytes, zeros: int) -> None:
        self.header, self.length = header, len(header) + zeros

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> bytes:
        begin, end, _ = part.indices(self.length)
        return self.header[begin:end].ljust(end - begin, b"\0")


@dataclass
class Faults:
    """One answer of twenty fails, and never two in a row for one path."""

    of_a_hundred: int
    counts: Counter[str] = field(default_factory=Counter)
    failed: set[str] = field(default_factory=set)

    def __call__(self, origin: str, method: str, path: str) -> Answer | None:
        self.counts[path] += 1
        draw = zlib.crc32(f"{path} {self.counts[path]}".encode()) % 100
        if path in self.failed or draw >= self.of_a_hundred:
            self.failed.discard(path)
            return None
        self.failed.add(path)
        status = _FAULTS[zlib.crc32(path.encode()) % len(_FAULTS)]
        return status, {"Retry-After": "1"} if status == 429 else {}, b""


def population(count: int, seed: int) -> Iterator[Checkpoint]:
    """So many checkpoints, of one class of each family: most differ in their labels, some in what they hold."""
    families = list({model_type: (model_type, name) for model_type, name in class_names()}.values())
    bases = [found for found in (checkpoint_of(*family) for family in families) if found is not None]
    draw = random.Random(seed)
    for number, base in enumerate(bases):
        first, last = count * number // len(bases), count * (number + 1) // len(bases)
        kinds = [one for one in variants(base, draw) if one.name.endswith(_KINDS)][: last - first]
        yield from kinds
        yield from (labeled(base, draw, f"labels {more}") for more in range(len(kinds), last - first))


def repositories(checkpoints: Iterator[Checkpoint]) -> dict[str, dict[str, Any]]:
    """The files of each checkpoint by the id of its repository."""
    found: dict[str, dict[str, Any]] = {}
    for number, one in enumerate(checkpoints):
        repo = f"org-{number % 40}/{one.name.partition(',')[0].lower()}-{number}"
        found[repo] = {"config.json": json.dumps(one.config).encode(), "model.safetensors": Hollow(*header_of(one))}
    return found


def hostile(repos: dict[str, dict[str, Any]]) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """Twenty repositories that can't be examined, and which of them are gated."""
    some = next(iter(repos.values()))
    config, header = some["config.json"], some["model.safetensors"].header
    many_layers = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "num_hidden_layers": 10**9}
    configs = {
        "no-json": b"{",
        "a-list": b"[]",
        "deep": b"[" * 100_000,
        "no-type": b"{}",
        "unknown-type": b'{"model_type": "nothing"}',
        "huge-layers": json.dumps(many_layers).encode(),
    }
    weights = {
        "cut-header": Hollow(header[:50], 0),
        "huge-header": Hollow(b"\xff" * 8, 10**6),
        "no-header": Hollow(b"", 10**4),
        "html": Hollow(b"<html>not found</html>", 0),
        "short-file": Hollow(header, 0),
        "lfs": Hollow(b"version https://git-lfs.github.com/spec/v1\n", 0),
    }
    broken: dict[str, dict[str, Any]] = {
        **{name: some | {"config.json": text} for name, text in configs.items()},
        **{name: some | {"model.safetensors": file} for name, file in weights.items()},
        "no-weights": {"config.json": config},
        "empty": {"README.md": b""},
        "pickle": {"config.json": config, "pytorch_model.bin": Hollow(b"\x80\x04cos\nsystem\n(S'true'\ntR.", 0)},
    }
    found = {f"hostile/{name}": files for name, files in broken.items()}
    gated = {f"hostile/gated-{number}": some for number in range(4)}
    return found | gated, set(gated)


def server(count: int, seed: int, faults: int, told: Any) -> None:
    """Serves the population until the process is ended; tells the address and the ids."""
    repos = repositories(population(count, seed))
    more, gated = hostile(repos)
    hub = Hub(repos=repos | more, gated=gated, latency=_LATENCY, own_cache=True, answer=Faults(faults))
    hub.log = _Forgetting()
    with serve(hub):
        told.put((hub.endpoint, [*repos, *more, "hostile/not-there"]))
        signal.pause()


class _Forgetting(list):  # type: ignore[type-arg]
    """A log of requests that keeps none: there are hundreds of thousands."""

    def append(self, item: object) -> None:
        return


def scan(table: Path, listed: Path, endpoint: str, *more: str) -> subprocess.Popen[bytes]:
    """A scan that runs."""
    environment = client_settings(endpoint, table.parent, HEADSCOPE_NO_CACHE="1")
    command = [sys.executable, "-m", "headscope", "scan", "--from", str(listed), "-o", str(table), *more]
    return subprocess.Popen(command, env=environment, stdout=sys.stderr, start_new_session=True)


def rows_of(table: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows by reference, without what the network adds."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in table.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found.setdefault(row["reference"], []).append({k: v for k, v in row.items() if k not in _OF_THE_NETWORK})
    return found


def disturbed(table: Path, listed: Path, endpoint: str, kills: int, between: float, *more: str) -> list[int]:
    """A scan that is killed so often, at random moments, and resumed; how many rows there were at each kill."""
    draw = random.Random(kills)
    at = []
    for _ in range(kills):
        process = scan(table, listed, endpoint, "--resume", *more)
        try:
            process.wait(between * draw.uniform(0.4, 1.2))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        at.append(table.read_bytes().count(b"\n"))
    scan(table, listed, endpoint, "--resume", *more).wait()
    return at


def verdicts(rows: dict[str, list[dict[str, Any]]]) -> str:
    """The verdicts and the causes, counted."""
    counts = Counter(row["not_determined"] or row["verdict"] for found in rows.values() for row in found)
    return ", ".join(f"{number} {name}" for name, number in counts.most_common())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=5, help="answers of a hundred that fail")
    parser.add_argument("--workers", default="4")
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--calm", type=Path, help="the rows of an earlier undisturbed scan of the same population")
    parser.add_argument("--between", type=float, help="about how many seconds lie between two kills")
    parser.add_argument("--local", nargs="*", default=[], help="folders and snapshots to scan beside")
    given = parser.parse_args()
    given.place.mkdir(parents=True, exist_ok=True)
    told: Any = multiprocessing.Queue()
    serving = multiprocessing.Process(target=server, args=(given.count, given.seed, given.faults, told), daemon=True)
    serving.start()
    endpoint, ids = told.get()
    listed = given.place / "list.txt"
    wanted = [*ids, *given.local]
    listed.write_text("\n".join(wanted), encoding="utf-8")
    print(f"{len(wanted)} checkpoints are served", flush=True)
    options = ("--workers", given.workers, "-q")
    calm, seconds = given.calm, 0.0
    if calm is None:
        begun = time.monotonic()
        calm = given.place / "calm.jsonl"
        scan(calm, listed, endpoint, *options).wait()
        seconds = time.monotonic() - begun
    alone = rows_of(calm)
    print(f"undisturbed: {len(alone)} rows in {seconds:.0f} s: {verdicts(alone)}", flush=True)
    killed = given.place / "killed.jsonl"
    at = disturbed(killed, listed, endpoint, given.kills, given.between or seconds / (given.kills + 1), *options)
    resumed = rows_of(killed)
    lost = [name for name in wanted if name not in resumed or name not in alone]
    twice = [name for name, rows in (*alone.items(), *resumed.items()) if len(rows) > 1]
    other = [name for name in alone if name in resumed and alone[name] != resumed[name]]
    print(f"killed at {at} rows: {len(resumed)} rows: {verdicts(resumed)}")
    print(f"lost {len(lost)}, twice {len(twice)}, different {len(other)}")
    for name in other[:5]:
        print(alone[name], resumed[name], sep="\n  ")
    serving.terminate()
    return 1 if lost or twice or other else 0


if __name__ == "__main__":
    sys.exit(main())
