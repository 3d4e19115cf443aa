"""The second look at an unchanged checkpoint: `check`, then `inspect` and `check` again, from the cache of reports."""

import os
import shutil
from collections.abc import Sequence
from unittest.mock import patch

from benchmarks.checkpoints import bert_base
from benchmarks.goals import Goal, Ratio, print_results, ratio_of_rounds, slowdown
from benchmarks.timing import WORK, measure, module

ROUNDS = 5
ALLOWED = 0.4  # seconds


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    place = WORK / "reports"
    shutil.rmtree(place, ignore_errors=True)
    folder = str(bert_base())
    commands = (
        module("check, no cache", "headscope", "check", folder, "--no-cache"),
        module("check, again", "headscope", "check", folder),
        module("inspect, after check", "headscope", "inspect", folder),
    )
    with patch.dict(os.environ, HEADSCOPE_CACHE=str(place)):
        anew, again, inspected = measure(commands, rounds)
    goals = [
        Goal("check again, over check with no cache", slowdown(again, anew)),
        Goal(f"check again, over the {ALLOWED} s allowed", _over(again.seconds), 1.0),
        Goal(f"inspect after check, over the {ALLOWED} s allowed", _over(inspected.seconds), 1.0),
    ]
    print_results("Repeat, BERT-base", (anew, again, inspected), goals)
    return goals


def _over(seconds: Sequence[float]) -> Ratio | None:
    return ratio_of_rounds([one / ALLOWED for one in seconds]) if seconds else None
