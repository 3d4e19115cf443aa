"""`scan`: many checkpoints, one row each."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any, Unpack

from headscope.checks.given import read_selection
from headscope.checks.options import RuleOptions
from headscope.checks.rules import every_rule
from headscope.checks.run import read_profile
from headscope.core.recent import Recent
from headscope.core.source.memory.memory import Memory
from headscope.errors import UsageError
from headscope.shell.options.calls import use_case
from headscope.shell.values import make_request, options_of
from headscope.slices.fleet.facts import ScanRow, ScanSummary, Tally, columns
from headscope.slices.fleet.options import BatchOptions, EachOptions, ScanOptions
from headscope.slices.fleet.pool import (
    MEMORY,
    SECONDS,
    Limits,
    Work,
    memory_for,
    scan_here,
    scan_in_pool,
    shared_folder,
)
from headscope.slices.fleet.ray_engine import scan_on_ray
from headscope.slices.fleet.row import RowOptions
from headscope.slices.fleet.table_scan import ScanOutput, write_rows
from headscope.slices.fleet.target import ScanSources, Target, without_repeats

_MOST_MEMORY = 2**62


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """Plan of a scan: how it examines each checkpoint, and with how many workers and which limits."""

    work: Work
    workers: int
    limits: Limits

    def rows(self, targets: Iterable[Target]) -> Generator[ScanRow]:
        """Gives the rows of checkpoints as they are done, each checkpoint once."""
        once = without_repeats(targets)
        if self.workers == 0:
            yield from scan_here(once, self.work)
            return
        with shared_folder() as folder:
            yield from scan_in_pool(once, self.work.sharing(folder), self.workers, self.limits)


def plan_of(options: ScanOptions) -> ScanPlan:
    """Makes the plan of a scan from its options. Raises UsageError for an invalid value."""
    profile, rules = options.get("profile"), options_of(RuleOptions, options)
    template = make_request("", options_of(EachOptions, options))
    if template.num_labels is not None and template.num_labels < 1:
        raise UsageError(f"the number of labels must be at least 1, not {template.num_labels}", "1 means regression")
    row_options = RowOptions(read_profile(profile), read_selection(**rules), run=bool(options.get("run")))
    return ScanPlan(
        work=Work(template, row_options),
        workers=_worker_count(options.get("workers")),
        limits=_limits_of(options.get("time_limit", SECONDS), options.get("memory_limit", MEMORY / 1024**3)),
    )


def _worker_count(workers: int | None) -> int:
    """Gives the number of workers: two per core by default. Raises UsageError for a negative number."""
    if workers is None:  # two a core, as some wait for the network
        return 2 * (os.cpu_count() or 1)
    if workers < 0:
        raise UsageError(f"workers must be a whole number from 0, not {workers!r}", "write workers=4")
    return workers


def _limits_of(seconds: float, memory: float | None) -> Limits:
    """Gives the limits; a number that is too large for the system is taken for no limit. Raises UsageError."""
    _check_positive("the time limit", seconds, f"give seconds, such as {SECONDS:g}")
    if memory is not None:
        _check_positive("the memory limit", memory, "give GiB, such as 8")
    wanted = math.inf if memory is None else memory * 1024**3
    return Limits(float(min(seconds, threading.TIMEOUT_MAX)), int(wanted) if wanted < _MOST_MEMORY else None)


def _check_positive(name: str, value: float, hint: str) -> None:
    if not value > 0:  # NaN isn't either
        raise UsageError(f"{name} must be a number above 0, not {value!r}", hint)


def target_of(given: str | PathLike[str] | Target) -> Target:
    """Reads one checkpoint of a scan. Raises UsageError for what is not a reference."""
    if isinstance(given, Target):
        return given
    return Target(make_request(given, {}).reference)


@use_case
def scan(checkpoints: Iterable[str | PathLike[str] | Target], **options: Unpack[ScanOptions]) -> Iterator[ScanRow]:
    """Examines many checkpoints, as `inspect` examines each, and yields one row for each, as they are done.

    What checkpoints of one structure share (class, configuration, tensor shapes) is examined once. `checkpoints` is
    read as it is needed, so a generator may name thousands.

    Args:
        checkpoints: What `inspect` takes, in any number; a name that comes twice is examined once.
        options: See `ScanOptions`.

    Returns:
        An iterator over the rows: one for each checkpoint, in the order in which they are done. One that can't be
        examined is a row too: `verdict` is not determined, `not_determined` the cause in a word, `reason` the sentence.

    Raises:
        UsageError: An option is unknown or has an invalid value.

    Example:
        >>> import headscope
        >>> rows = headscope.scan(["bert-base-uncased", "roberta-base"], workers=0, offline=True)
        >>> [(row.class_name, row.pooling_kind, row.new_in_head) for row in rows]
        [('BertForSequenceClassification', 'first_token', 2), ('RobertaForSequenceClassification', 'first_token', 4)]
    """
    plan = plan_of(options)
    if isinstance(checkpoints, str | PathLike) or not isinstance(checkpoints, Iterable):
        raise UsageError(f"checkpoints must be several, not {checkpoints!r}", 'write scan(["gpt2"])')
    return plan.rows(map(target_of, checkpoints))


def run_scan(sources: ScanSources, output: ScanOutput, **options: Unpack[ScanOptions]) -> ScanSummary:
    """Scans everything that its sources name into a table, and sums the table up.

    Raises UsageError for options and files that can't be used, and HeadscopeError where the table can't be written.
    """
    plan, start = plan_of(options), time.perf_counter()
    output.check()
    if sources.on_hub:
        output.try_to_open()  # fail before the Hub lists models
    targets, tally = sources.targets(plan.work.request.location), Tally()
    scanned: Callable[[Sequence[Target]], Generator[ScanRow]] = plan.rows
    if output.executor == "ray":
        scanned = partial(scan_on_ray, work=plan.work, workers=options.get("workers"), limits=plan.limits)
    written, skipped = write_rows(scanned, targets, output, tally)
    seconds = time.perf_counter() - start
    names = {rule.id: (rule.name, rule.title) for rule in every_rule().values()}
    return tally.summary(written=written, skipped=skipped, seconds=seconds, rules=names)


@use_case
def scan_batch(batch: Mapping[str, Iterable[Any]], **options: Unpack[BatchOptions]) -> dict[str, list[Any]]:
    """The rows of one batch as columns, for Ray Data, Dask, Spark or Beam: a plain function of its arguments.

    The batch is examined in this process, without limits. What its checkpoints share with earlier batches (class,
    configuration, tensor shapes) is not examined again: a process keeps the structures that it used last, 96 for each
    set of options.

    Args:
        batch: Columns by name, such as a dictionary, a pandas DataFrame or an Arrow table; `reference` holds the
            checkpoints, as `scan` takes them.
        options: See `BatchOptions`.

    Returns:
        The columns of the table, each a list with one value per checkpoint, in the order of the batch.

    Raises:
        UsageError: The batch has no column `reference`, or an option is invalid.

    Example:
        >>> import headscope
        >>> rows = headscope.scan_batch({"reference": ["gpt2", "bert-base-uncased"]}, offline=True)
        >>> rows["pooling_kind"]
        ['last_non_pad_token', 'first_token']
    """
    plan = plan_of({**options, "workers": 0, "time_limit": SECONDS, "memory_limit": None})
    references = _read_references(batch)
    targets = without_repeats(map(target_of, references))
    rows = {row.reference: row.to_dict() for row in scan_here(targets, *_kept_for(plan.work))}
    found = [rows[reference] for reference in references]
    return {name: [row[name] for row in found] for name in columns()}


def _read_references(batch: Mapping[str, Any]) -> list[str]:
    """Reads the names of checkpoints from a batch; a missing value becomes "". Raises UsageError without the column."""
    try:
        column = batch["reference"]
    except (KeyError, IndexError, TypeError) as err:
        raise UsageError("the batch has no column `reference`", "name the column of the checkpoints so") from err
    if isinstance(column, str):
        raise UsageError("the column `reference` is one text", 'write {"reference": ["gpt2"]}')
    # The items of an Arrow column are objects of Arrow, not texts.
    values = column.to_pylist() if hasattr(column, "to_pylist") else column
    return [str(value) if isinstance(value, str | PathLike) else "" for value in values]


_KEPT = Recent()


def _kept_for(work: Work) -> tuple[Work, Memory]:
    """Gives the work and the memory that are kept between two batches with these options, new ones the first time."""
    kept: tuple[Work, Memory] | None = _KEPT.get(work)
    if kept is None:
        kept = work, memory_for(work)
        _KEPT.keep(work, kept)
    return kept
