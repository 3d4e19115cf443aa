"""What reading every number of a checkpoint costs beside reading its file: BERT-base of 440 MB."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.checkpoints import bert_base
from benchmarks.goals import Goal, Ratio, memory_growth, print_results, ratio_of_rounds
from benchmarks.timing import headscope, measure
from headscope.checks.evidence.base_numbers import read_base_numbers
from headscope.core.facts.stored.location import Location
from headscope.core.source.checkpoint import examine
from headscope.core.source.request import Request

ROUNDS = 7
_BLOCK = 4 << 20


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    folder = str(bert_base())
    check = ("check", folder, "--for", "inference", "--no-cache", "--select", "HS108,HS504", "-q")
    commands = (headscope(*check), replace(headscope(*check, "--no-values"), name="check --no-values"))
    ours, bare = measure(commands, rounds)
    goals = [
        Goal(
            "every number, over plain reading of the file from the disk", _reading(folder, rounds, from_disk=True), 1.2
        ),
        Goal("the same from the page cache", _reading(folder, rounds, from_disk=False)),
        Goal("peak memory of check, over that of check --no-values", memory_growth(ours, bare, bare)),
    ]
    print_results("The numbers of BERT-base, 440 MB", (ours, bare), goals)
    return goals


def _reading(folder: str, rounds: int, *, from_disk: bool) -> Ratio:
    """The seconds of both in turn, from the disk or from the page cache."""
    checkpoint = examine("check", Request(Location(folder)), None)
    file = Path(folder, "model.safetensors")
    ratios = []
    for _ in range(rounds + 1):
        plain = _seconds(lambda: _read_plainly(file), file if from_disk else None)
        ours = _seconds(lambda: read_base_numbers(checkpoint), file if from_disk else None)
        ratios.append(ours / plain)
    return ratio_of_rounds(ratios[1:])  # the first round fills the page cache


def _seconds(run: Callable[[], object], forgotten: Path | None) -> float:
    """How long a run takes, after the system has forgotten a file."""
    if forgotten is not None:
        with forgotten.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _read_plainly(file: Path) -> None:
    buffer = bytearray(_BLOCK)
    with file.open("rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass
