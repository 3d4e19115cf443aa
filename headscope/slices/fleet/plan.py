"""Plan of a scan: how it examines each checkpoint, and with how many workers and which limits."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Generator, Iterable
from dataclasses import dataclass

from headscope.core.facts.heads.tasks import parse_task
from headscope.core.source.request import Request
from headscope.errors import UsageError
from headscope.slices.fleet.facts import ScanRow
from headscope.slices.fleet.pool import SECONDS, Limits, Work, scan_here, scan_in_pool
from headscope.slices.fleet.row import RowOptions
from headscope.slices.fleet.scratch import shared_folder
from headscope.slices.fleet.target import Target, without_repeats

_MOST_MEMORY = 2**62


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """Plan of a scan: how it examines each checkpoint, and with how many workers."""

    template: Request
    options: RowOptions
    workers: int
    limits: Limits

    @property
    def work(self) -> Work:
        """Work of every worker: how to examine each checkpoint."""
        return Work(self.template, self.options)

    def rows(self, targets: Iterable[Target]) -> Generator[ScanRow]:
        """Gives the rows of checkpoints as they are done, each checkpoint once."""
        once = without_repeats(targets)
        if self.workers == 0:
            yield from scan_here(once, self.work)
            return
        with shared_folder() as folder:
            yield from scan_in_pool(once, self.work.sharing(folder), self.workers, self.limits)


def check_template(template: Request) -> None:
    """Raises UsageError for an option that would make a useless row of every checkpoint."""
    count, seconds = template.num_labels, template.location.hub.timeout
    if template.task is not None:
        parse_task(template.task)
    if count is not None and count < 1:
        raise UsageError(f"the number of labels must be at least 1, not {count}", "1 means regression")
    if seconds is not None:
        _check_positive("the timeout", seconds, "give seconds, such as 120")


def worker_count(workers: int | None) -> int:
    """Gives the number of workers: two per core by default. Raises UsageError for what isn't a whole number from 0."""
    if workers is None:  # two a core, as some wait for the network
        return 2 * (os.cpu_count() or 1)
    if type(workers) is not int or workers < 0:  # True is an int too
        raise UsageError(f"workers must be a whole number from 0, not {workers!r}", "write workers=4")
    return workers


def limits_of(seconds: float, memory: float | None) -> Limits:
    """Gives the limits; a number that is too large for the system is taken for no limit. Raises UsageError."""
    _check_positive("the time limit", seconds, f"give seconds, such as {SECONDS:g}")
    if memory is not None:
        _check_positive("the memory limit", memory, "give GiB, such as 8")
    wanted = math.inf if memory is None else memory * 1024**3
    return Limits(float(min(seconds, threading.TIMEOUT_MAX)), int(wanted) if wanted < _MOST_MEMORY else None)


def _check_positive(name: str, value: object, hint: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UsageError(f"{name} must be a number above 0, not {value!r}", hint)
