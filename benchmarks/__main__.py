"""All benchmarks, or those named: `python -m benchmarks [help] [bert] [7b] [70b]`; exit code 1 if a goal is missed."""

import sys
from collections.abc import Callable

from benchmarks import bench_help, bench_inspect_7b, bench_inspect_70b, bench_inspect_bert
from benchmarks.goals import Goal
from benchmarks.timing import WORK

BENCHMARKS: dict[str, Callable[[], list[Goal]]] = {
    "help": bench_help.main,
    "bert": bench_inspect_bert.main,
    "7b": bench_inspect_7b.main,
    "70b": bench_inspect_70b.main,
}


def main(names: list[str]) -> int:
    """Runs the named benchmarks (all by default) and returns the exit code."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    WORK.mkdir(exist_ok=True)
    goals = [goal for name in names or BENCHMARKS for goal in BENCHMARKS[name]() if goal.limit is not None]
    missed = [goal for goal in goals if not goal.met]
    print(f"{len(goals) - len(missed)} of {len(goals)} goals met")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
