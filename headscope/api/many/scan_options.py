"""The options of `scan` and `scan_batch` as a plan."""

from __future__ import annotations

from os import PathLike
from typing import Annotated

from headscope.api.arguments import CacheOptions, CountOption, ProfileName, RevisionOption, RuleOptions, TaskOption
from headscope.api.checking import read_profile
from headscope.api.options import make_request, options_of, read_selection
from headscope.fleet.plan import ScanPlan, check_template, limits_of, worker_count
from headscope.fleet.pool import MEMORY, SECONDS
from headscope.fleet.row import RowOptions
from headscope.fleet.target import Target


class EachOptions(CountOption, TaskOption, RevisionOption, CacheOptions, total=False):
    """What each checkpoint is examined as, and how the Hub is reached."""


class BatchOptions(RuleOptions, EachOptions, total=False):
    """How each checkpoint of a table is examined and judged."""

    profile: Annotated[
        ProfileName | None,
        "What the findings are weighed for, `training` or `inference` (default: training for a checkpoint with new "
        "weights in its head, otherwise inference, as for `inspect`).",
    ]


class ScanOptions(BatchOptions, total=False):
    """The same with the processes of a scan and their limits, as `scan` takes them."""

    workers: int | None
    time_limit: float
    memory_limit: float | None


def plan_of(options: ScanOptions) -> ScanPlan:
    """The plan that options make. Raises UsageError for an invalid value."""
    profile, rules = options.get("profile"), options_of(RuleOptions, options)
    template = make_request("", options_of(EachOptions, options))
    check_template(template)
    return ScanPlan(
        template=template,
        options=RowOptions(read_profile(profile) if profile else None, read_selection(**rules)),
        workers=worker_count(options.get("workers")),
        limits=limits_of(options.get("time_limit", SECONDS), options.get("memory_limit", MEMORY / 1024**3)),
    )


def target_of(given: str | PathLike[str] | Target) -> Target:
    if isinstance(given, Target):
        return given
    return Target(make_request(given, {}).reference)
