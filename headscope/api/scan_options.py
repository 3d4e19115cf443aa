"""The options of `scan` and `scan_batch` as a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, TypedDict

from headscope.api.checking import read_profile
from headscope.api.options import given_options, make_request, read_selection
from headscope.checks import Ignore
from headscope.fleet.plan import ScanPlan, check_template, limits_of, worker_count
from headscope.fleet.pool import MEMORY, SECONDS
from headscope.fleet.row import RowOptions
from headscope.fleet.target import Target

_OF_REQUESTS = ("num_labels", "task", "revision", "cache_dir", "token", "offline", "timeout")


class ScanOptions(TypedDict, total=False):
    """How each checkpoint is examined, as for `scan`."""

    workers: int | None
    profile: str | None
    rules: str | Iterable[str]
    ignore: str | Iterable[str | Ignore]
    fail_on: str
    num_labels: int | None
    task: str | None
    revision: str | None
    cache_dir: str | PathLike[str] | None
    token: str | None
    offline: bool
    timeout: float | None
    time_limit: float
    memory_limit: float | None


def plan_of(options: Mapping[str, Any]) -> ScanPlan:
    """The plan that `ScanOptions` make; other names are left out. Raises UsageError for an invalid value."""
    profile = options.get("profile")
    template = make_request("", given_options({name: options.get(name) for name in _OF_REQUESTS}))
    check_template(template)
    selection = read_selection(options.get("rules", ()), options.get("ignore", ()), options.get("fail_on", "error"))
    return ScanPlan(
        template=template,
        options=RowOptions(read_profile(profile) if profile else None, selection),
        workers=worker_count(options.get("workers")),
        limits=limits_of(options.get("time_limit", SECONDS), options.get("memory_limit", MEMORY / 1024**3)),
    )


def target_of(given: str | PathLike[str] | Target) -> Target:
    if isinstance(given, Target):
        return given
    return Target(make_request(given, {}).reference)
