"""All benchmarks, or those named: `python -m benchmarks [NAME ...] [--record]`; exit code 1 if a goal is missed."""

import argparse
import sys

from benchmarks import (
    bench_edit,
    bench_engines,
    bench_first,
    bench_help,
    bench_hub,
    bench_inspect_7b,
    bench_inspect_70b,
    bench_inspect_bert,
    bench_numbers,
    bench_probe,
    bench_ray,
    bench_repeat,
    bench_requests,
    bench_run,
    bench_save,
    bench_scan,
    bench_solvers,
    bench_states,
    bench_trace,
    bench_verify,
)
from benchmarks.goals import run
from benchmarks.record import recording

BENCHMARKS = {
    "help": bench_help,
    "first": bench_first,
    "bert": bench_inspect_bert,
    "trace": bench_trace,
    "repeat": bench_repeat,
    "states": bench_states,
    "numbers": bench_numbers,
    "run": bench_run,
    "verify": bench_verify,
    "engines": bench_engines,
    "save": bench_save,
    "edit": bench_edit,
    "probe": bench_probe,
    "solvers": bench_solvers,
    "hub": bench_hub,
    "requests": bench_requests,
    "scan": bench_scan,
    "7b": bench_inspect_7b,
    "70b": bench_inspect_70b,
    "ray": bench_ray,
}


def main() -> int:
    """Runs the named benchmarks (all by default) and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(BENCHMARKS)}")
    parser.add_argument(
        "--rounds", type=_positive, metavar="N", help="timed runs of each command, by default 5 (help: 21)"
    )
    parser.add_argument("--record", action="store_true", help="keep the results for scripts/pages/write_benchmarks.py")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    chosen = {name: BENCHMARKS[name] for name in given.names or BENCHMARKS}
    keep = recording if given.record else (lambda _name, benchmark: benchmark)
    return run([(keep(name, item.measure_goals), given.rounds or item.ROUNDS) for name, item in chosen.items()])


def _positive(text: str) -> int:
    if (count := int(text)) < 1:
        raise ValueError
    return count


if __name__ == "__main__":
    sys.exit(main())
