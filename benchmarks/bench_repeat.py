"""The second look at an unchanged checkpoint: `check`, then `inspect` and `check` again, from the cache of reports."""

import os
import shutil
import sys
from collections.abc import Sequence

from benchmarks.checkpoints import bert_base
from benchmarks.goals import Goal, Ratio, print_results, run_alone, slowdown
from benchmarks.timing import WORK, Command, headscope, measure

ROUNDS = 5
ALLOWED = 0.4  # seconds


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    place = WORK / "reports"
    shutil.rmtree(place, ignore_errors=True)
    folder = str(bert_base())
    commands = (
        _named("check, no cache", headscope("check", folder, "--no-cache")),
        _named("check, again", headscope("check", folder)),
        _named("inspect, after check", headscope("inspect", folder)),
    )
    os.environ["HEADSCOPE_CACHE"] = str(place)
    try:
        anew, again, inspected = measure(commands, rounds)
    finally:
        del os.environ["HEADSCOPE_CACHE"]
    goals = [
        Goal("check again, over check with no cache", slowdown(again, anew)),
        Goal(f"check again, over the {ALLOWED} s allowed", _over(again.seconds), 1.0),
        Goal(f"inspect after check, over the {ALLOWED} s allowed", _over(inspected.seconds), 1.0),
    ]
    print_results("Repeat, BERT-base", (anew, again, inspected), goals)
    return goals


def _named(name: str, command: Command) -> Command:
    return Command(name, command.arguments)


def _over(seconds: Sequence[float]) -> Ratio | None:
    if not seconds:
        return None
    middle = sorted(seconds)[len(seconds) // 2]
    return Ratio(middle / ALLOWED, min(seconds) / ALLOWED, max(seconds) / ALLOWED)


if __name__ == "__main__":
    sys.exit(run_alone(measure_goals, ROUNDS))
