"""The options of `scan` and `scan_batch` as a plan."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from headscope.api.checking import read_profile
from headscope.api.options import make_request, read_selection
from headscope.fleet.plan import Plan, check_template, limits_of, worker_count
from headscope.fleet.row import Asked
from headscope.fleet.target import Target

_OF_REQUESTS = ("num_labels", "task", "revision", "cache_dir", "token", "offline", "timeout")


def plan_of(arguments: Mapping[str, Any], **given: Any) -> Plan:
    """The plan that the arguments of `scan` make; `given` are those of the requests, if they are apart.

    Raises UsageError.
    """
    profile = arguments["profile"]
    template = make_request("", given or {name: arguments.get(name) for name in _OF_REQUESTS})
    check_template(template)
    return Plan(
        template=template,
        asked=Asked(
            read_profile(profile) if profile else None,
            read_selection(arguments["rules"], arguments["ignore"], arguments["fail_on"]),
        ),
        workers=worker_count(arguments["workers"]),
        limits=limits_of(arguments["time_limit"], arguments["memory_limit"]),
    )


def target_of(given: str | PathLike[str] | Target) -> Target:
    if isinstance(given, Target):
        return given
    return Target(make_request(given, {}).reference)
