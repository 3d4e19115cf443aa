"""Options of `scan` and `scan_batch`."""

from functools import partial
from typing import Annotated

from headscope.checks.options import ProfileOption, RuleOptions
from headscope.shell.options.checkpoint import (
    CacheOptions,
    CountOption,
    ReportCacheOption,
    RevisionOption,
    TaskOption,
)
from headscope.shell.options.option import Option

_work = partial(Option, panel="Workers")


class EachOptions(CountOption, TaskOption, RevisionOption, CacheOptions, ReportCacheOption, total=False):
    """Options for examining each checkpoint and reaching the Hub."""


class BatchOptions(RuleOptions, EachOptions, ProfileOption, total=False):
    """Options for examining and judging each checkpoint of a table."""

    run: Annotated[bool, Option("Load each local checkpoint and call it, as `check` does.")]


class ScanOptions(BatchOptions, total=False):
    """Options of a scan: those of a batch, its processes and their limits."""

    workers: Annotated[
        int | None,
        _work(
            "Number of processes (default: two per core, as some wait for the network).",
            in_python="0 examines in this process, without limits.",
            metavar="N",
            least=1,
            is_main=True,
        ),
    ]
    time_limit: Annotated[
        float,
        _work(
            "Time limit for one checkpoint, in seconds.",
            300.0,
            in_python="Then its worker is replaced; `math.inf` for no limit.",
            metavar="SECONDS",
        ),
    ]
    memory_limit: Annotated[
        float | None,
        _work(
            "Memory limit for one checkpoint, in GiB, without the libraries.",
            8.0,
            in_python="Address space on Linux; None for no limit.",
            metavar="GIB",
        ),
    ]
