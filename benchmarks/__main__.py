"""All benchmarks, or those named: `python -m benchmarks [NAME ...]`; exit code 1 if a goal is missed."""

import argparse
import sys

from benchmarks import (
    bench_help,
    bench_hub,
    bench_inspect_7b,
    bench_inspect_70b,
    bench_inspect_bert,
    bench_repeat,
    bench_trace,
)
from benchmarks.goals import add_rounds, run

BENCHMARKS = {
    "help": bench_help,
    "bert": bench_inspect_bert,
    "trace": bench_trace,
    "repeat": bench_repeat,
    "hub": bench_hub,
    "7b": bench_inspect_7b,
    "70b": bench_inspect_70b,
}


def main() -> int:
    """Runs the named benchmarks (all by default) and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to run: {', '.join(BENCHMARKS)}; else all")
    add_rounds(parser)
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    chosen = [BENCHMARKS[name] for name in given.names or BENCHMARKS]
    return run([(benchmark.measure_goals, given.rounds or benchmark.ROUNDS) for benchmark in chosen])


if __name__ == "__main__":
    sys.exit(main())
