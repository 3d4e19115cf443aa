"""The record of the last measurement of each benchmark, as it was printed; `docs/benchmarks.md` is written from it."""

import contextlib
import io
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from benchmarks.goals import Benchmark, Goal
from benchmarks.timing import ROOT

RECORD = ROOT / "benchmarks" / "measured.json"
_PACKAGES = ("torch", "transformers", "huggingface_hub")


def recording(name: str, benchmark: Benchmark) -> Benchmark:
    """`benchmark`, which also puts what it prints and what it is promised into the record."""

    def measured(rounds: int) -> list[Goal]:
        commit = _commit()
        with _kept_output() as kept:
            goals = benchmark(rounds)
        _write(name, {"goals": [_plain(goal) for goal in goals], "with": _surroundings(rounds, commit)}, kept.text())
        return goals

    return measured


def read_record() -> dict[str, Any]:
    """What was measured last, by benchmark; empty where nothing was."""
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    return found


@dataclass
class _Kept(io.TextIOBase):
    """A stream that passes everything on and keeps it."""

    onward: Any
    parts: list[str] = field(default_factory=list)

    def write(self, text: str) -> int:
        self.parts.append(text)
        self.onward.write(text)
        return len(text)

    def flush(self) -> None:
        self.onward.flush()

    def text(self) -> str:
        return "".join(self.parts)


@contextlib.contextmanager
def _kept_output() -> Iterator[_Kept]:
    kept = _Kept(sys.stdout)
    with contextlib.redirect_stdout(kept):
        yield kept


def _plain(goal: Goal) -> dict[str, Any]:
    ratio = None if goal.ratio is None else [goal.ratio.value, goal.ratio.low, goal.ratio.high]
    return {"what": goal.what, "limit": goal.limit, "at_least": goal.at_least, "ratio": ratio}


def _surroundings(rounds: int, commit: str) -> dict[str, Any]:
    versions = {name: metadata.version(name) for name in _PACKAGES}
    return {
        "commit": commit,
        "rounds": rounds,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **versions,
    }


def _commit() -> str:
    """The commit that is measured, with a `+` where files of the package differ from it; "" outside of git."""
    words = ("describe", "--always", "--abbrev=12", "--exclude=*"), ("status", "--porcelain", "--", "headscope")
    ran = [subprocess.run(["git", *line], cwd=ROOT, capture_output=True, text=True, check=False) for line in words]
    return ran[0].stdout.strip() + ("+" if ran[1].stdout.strip() else "")


def _write(name: str, entry: dict[str, Any], output: str) -> None:
    record = read_record() | {name: entry | {"output": output.splitlines()}}
    RECORD.write_text(json.dumps(dict(sorted(record.items())), indent=2) + "\n", encoding="utf-8")
