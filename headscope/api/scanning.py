"""`scan`: many checkpoints, one row each."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

from headscope.api.checking import read_profile
from headscope.api.options import (
    ProfileName,
    SeverityName,
    given_options,
    make_request,
    read_selection,
    refuses_unknown,
)
from headscope.checks import RULES, Ignore
from headscope.errors import HeadscopeError, UsageError
from headscope.examination.request import Request
from headscope.examination.structure import ReportMemory
from headscope.facts.scan import ScanRow, ScanSummary, Tally, columns
from headscope.facts.tasks import parse_task
from headscope.fleet.output import Known
from headscope.fleet.parquet import RowFolder
from headscope.fleet.pool import MEMORY, SECONDS, Limits, Work, memory_for, scan_here, scan_in_pool
from headscope.fleet.row import Asked
from headscope.fleet.scratch import shared_folder
from headscope.fleet.table import SharedTable, Table, is_stream, open_shared_table, open_table
from headscope.fleet.target import Target, found_below, without_repeats
from headscope.fleet.target import listed as listed_targets
from headscope.fleet.target import on_hub as targets_on_hub
from headscope.recent import Recent


@refuses_unknown
def scan(
    checkpoints: Iterable[str | PathLike[str] | Target],
    *,
    workers: int | None = None,
    profile: ProfileName | None = None,
    rules: str | Iterable[str] = (),
    ignore: str | Iterable[str | Ignore] = (),
    fail_on: SeverityName = "error",
    num_labels: int | None = None,
    task: str | None = None,
    revision: str | None = None,
    cache_dir: str | PathLike[str] | None = None,
    token: str | None = None,
    offline: bool = False,
    timeout: float | None = None,
    time_limit: float = SECONDS,
    memory_limit: float | None = MEMORY / 1024**3,
) -> Iterator[ScanRow]:
    """Examines many checkpoints, as `inspect` examines each, and yields one row for each, as they are done.

    What checkpoints of one structure share (class, configuration, tensor shapes) is examined once. `checkpoints` is
    read as it is needed, so a generator may name thousands.

    Args:
        checkpoints: What `inspect` takes, in any number; a name that comes twice is examined once.
        workers: Number of processes (default: two per core, as some wait for the network); 0 examines in this process,
            without limits.
        profile: What the findings are weighed for, `training` or `inference` (default: training for a checkpoint with
            new weights in its head, otherwise inference, as for `inspect`).
        rules: Rules to run, such as `HS1` or `"HS101,HS202"` (default: all).
        ignore: Rules not to count.
        fail_on: Severity from which a finding fails a checkpoint.
        num_labels: Number of classes (default: from each config).
        task: A task such as `token-classification` (default: from each checkpoint).
        revision: Branch, tag or commit on the Hub (default: `main`).
        cache_dir: The Hub's cache folder (default: `$HF_HUB_CACHE`).
        token: Access token (default: `$HF_TOKEN` or the stored login).
        offline: Make no network requests.
        timeout: Time limit for the Hub requests of one checkpoint, in seconds (default: 120).
        time_limit: Wall time that one checkpoint may take, in seconds; then its worker is replaced (`math.inf` for no
            limit).
        memory_limit: Memory that one checkpoint may take, in GiB of address space beside the libraries (on Linux);
            None for no limit.

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
    plan = _plan_of(locals())
    if isinstance(checkpoints, str | PathLike) or not isinstance(checkpoints, Iterable):
        raise UsageError(f"checkpoints must be several, not {checkpoints!r}", 'write scan(["gpt2"])')
    return plan.rows(map(_target, checkpoints))


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a scan examines each checkpoint, and with how many workers."""

    template: Request
    asked: Asked
    workers: int
    limits: Limits

    @property
    def work(self) -> Work:
        """What every worker does."""
        return Work(self.template, self.asked)

    def rows(self, targets: Iterable[Target]) -> Generator[ScanRow]:
        """The rows of checkpoints as they are done, each checkpoint once."""
        once = without_repeats(targets)
        if self.workers == 0:
            yield from scan_here(once, self.work)
            return
        with shared_folder() as folder:
            yield from scan_in_pool(once, self.work.sharing(folder), self.workers, self.limits)


_OF_REQUESTS = ("num_labels", "task", "revision", "cache_dir", "token", "offline", "timeout")


def _plan_of(arguments: Mapping[str, Any], **given: Any) -> _Plan:
    """The plan that the arguments of `scan` make; `given` are those of the requests, if they are apart.

    Raises UsageError.
    """
    profile = arguments["profile"]
    template = make_request("", given_options(given or {name: arguments.get(name) for name in _OF_REQUESTS}))
    _check_template(template)
    return _Plan(
        template=template,
        asked=Asked(
            read_profile(profile) if profile else None,
            read_selection(arguments["rules"], arguments["ignore"], arguments["fail_on"]),
        ),
        workers=_count(arguments["workers"]),
        limits=_limits(arguments["time_limit"], arguments["memory_limit"]),
    )


def _check_template(template: Request) -> None:
    """Raises UsageError for an option that would make a useless row of every checkpoint."""
    count, seconds = template.num_labels, template.location.hub.timeout
    if template.task is not None:
        parse_task(template.task)
    if count is not None and count < 1:
        raise UsageError(f"the number of labels must be at least 1, not {count}", "1 means regression")
    if seconds is not None:
        _check_positive("the timeout", seconds, "give seconds, such as 120")


@dataclass(frozen=True, slots=True)
class Progressed:
    """How far a scan is: rows done, those of them without a verdict, and all (None where that isn't known)."""

    done: int
    undetermined: int
    total: int | None


ENGINES = ("local", "ray")
_MOST_MEMORY = 2**62
_MISCOUNTED = (
    "name a folder that every node can write; where there are too many rows, keep the last one of each reference"
)


def run_scan(
    references: Iterable[str],
    *,
    listed: str | None = None,
    folders: Iterable[str] = (),
    on_hub: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    write: Callable[[ScanRow], bool] | None = None,
    resume: bool = False,
    only_new: bool = False,
    progress: Callable[[Progressed], None] | None = None,
    profile: str | None = None,
    rules: str | Iterable[str] = (),
    ignore: str | Iterable[str | Ignore] = (),
    fail_on: str = "error",
    workers: int | None = None,
    time_limit: float = SECONDS,
    memory_limit: float | None = MEMORY / 1024**3,
    engine: str = "local",
    **given: Any,
) -> ScanSummary:
    """Scans everything that its sources name into a table, and sums the table up.

    `on_hub` says which models a listing of the Hub should name (see `listed_models`). `output` is as for `open_table`.
    `write` gets each row too, and ends the scan by returning False. The engine `ray` writes to a folder that all nodes
    share, or to a URL, and calls no `write`; `workers` are its actors.

    Raises UsageError for options and files that can't be used, and HeadscopeError where the table can't be written.
    """
    plan, start = _plan_of(locals(), **given), time.perf_counter()
    if engine not in ENGINES:
        raise UsageError(f"engine must be {' or '.join(ENGINES)}, not {engine!r}", "write engine='local'")
    folders = tuple(folders)
    sources = [map(_target, references), () if listed is None else listed_targets(listed), *map(found_below, folders)]
    if on_hub:
        if output is not None and not is_stream(output):  # fail before the Hub lists models
            with (open_shared_table if engine == "ray" else open_table)(output, go_on=resume or only_new):
                pass
        sources.append(targets_on_hub(plan.template.location, **on_hub))
    targets = list(without_repeats(chain.from_iterable(sources)))
    if not targets:
        raise _nothing_to_scan(listed, folders, on_hub=bool(on_hub))
    if (resume or only_new) and output is None:
        raise UsageError("a table on stdout can't be continued", "name a file with -o")
    tally = Tally()
    asked = _Scan(plan, targets, tally, resume=resume, only_new=only_new, progress=progress)
    written, skipped = asked.on_ray(output, workers) if engine == "ray" else asked.here(output, write)
    seconds = time.perf_counter() - start
    names = {rule.id: (rule.name, rule.title) for rule in RULES.values()}
    return tally.summary(written=written, skipped=skipped, seconds=seconds, rules=names)


def _nothing_to_scan(listed: str | None, folders: Sequence[str], *, on_hub: bool) -> UsageError:
    """Which sources were empty."""
    empty = [] if listed is None else [f"{'stdin' if listed == '-' else listed} lists no models"]
    empty += [f"{folder} holds no config.json beside weights, no adapter and no snapshot" for folder in folders]
    empty += ["the listing of the Hub names no models"] if on_hub else []
    told = f"there is nothing to scan: {'; '.join(empty)}" if empty else "there is nothing to scan"
    return UsageError(told, "name models, or a source such as --from FILE, --folder or --author")


@dataclass(frozen=True, slots=True)
class _Scan:
    """A scan into a table: each engine counts the rows of the table in `tally`.

    It returns how many rows it wrote, and how many checkpoints it skipped because the table holds them.
    """

    plan: _Plan
    targets: Sequence[Target]
    tally: Tally
    resume: bool
    only_new: bool
    progress: Callable[[Progressed], None] | None

    @property
    def goes_on(self) -> bool:
        """Whether the table may hold rows already."""
        return self.resume or self.only_new

    def here(self, output: str | Path | None, write: Callable[[ScanRow], bool] | None) -> tuple[int, int]:
        """By worker processes of this machine."""
        written, undetermined = 0, 0
        opened = nullcontext() if output is None else open_table(output, go_on=self.goes_on, seen=self.tally.add)
        with opened as table:
            wanted = self._wanted(table)
            skipped = len(self.targets) - len(wanted)
            with closing(self.plan.rows(wanted)) as rows:
                for done, row in enumerate(rows, 1):
                    if table is not None and self.only_new and table.known.holds_commit(row.reference, row.commit):
                        skipped += 1
                    else:
                        self.tally.add(row.to_dict())
                        written += 1
                        if table is not None:
                            table.write(row)
                    if write is not None and not write(row):
                        break
                    undetermined += row.not_determined is not None
                    if self.progress is not None:
                        self.progress(Progressed(done, undetermined, len(wanted)))
        return written, skipped

    def on_ray(self, output: str | Path | None, workers: int | None) -> tuple[int, int]:
        """By the actors of a Ray cluster, which write the table themselves."""
        from headscope.fleet.ray_engine import Wanted, check_installed, write_with_ray

        check_installed()
        with open_shared_table(output, go_on=self.goes_on, seen=self.tally.add) as table:
            wanted = self._wanted(table)
            if wanted:
                known = table.known if self.only_new else Known()
                place = str(output) if "://" in str(output) else str(Path(str(output)).absolute())
                write_with_ray(
                    [Wanted(target, known.commits_of(target.reference)) for target in wanted],
                    self.plan.work,
                    workers,
                    self.plan.limits,
                    place,
                    self._watching(table, len(wanted)),
                )
            written = sum(self._counted(table))
        if written != len(wanted) and not self.only_new:
            raise HeadscopeError(f"{output} has {written:,} new rows of {len(wanted):,} checkpoints", _MISCOUNTED)
        return written, len(self.targets) - written

    def _wanted(self, table: Table | SharedTable | None) -> list[Target]:
        return [one for one in self.targets if not _is_known(one, table, resume=self.resume, only_new=self.only_new)]

    def _counted(self, table: SharedTable) -> Iterator[int]:
        """Counts the rows of what was added, and yields 1 for each."""
        for path in table.added():
            for row in table.rows_of(path):
                self.tally.add(row)
                yield 1

    def _watching(self, table: SharedTable, total: int) -> Callable[[], None] | None:
        """What shows how far the writers are; None where that can't be seen from here, or nobody looks."""
        progress = self.progress
        if progress is None or not isinstance(table, RowFolder):
            return None
        known: dict[Path, tuple[int, int]] = {}

        def watch() -> None:
            for path in table.added():
                if path not in known:
                    rows = list(table.rows_of(path))
                    known[path] = len(rows), sum(row["not_determined"] is not None for row in rows)
            done, undetermined = (sum(column) for column in zip((0, 0), *known.values(), strict=True))
            progress(Progressed(done, undetermined, total))

        return watch


def _is_known(target: Target, table: Table | SharedTable | None, *, resume: bool, only_new: bool) -> bool:
    if table is None:
        return False
    if resume and table.known.holds(target.reference):
        return True
    return only_new and table.known.holds_commit(target.reference, target.commit)


@refuses_unknown
def scan_batch(
    batch: Mapping[str, Iterable[Any]],
    *,
    profile: ProfileName | None = None,
    rules: str | Iterable[str] = (),
    ignore: str | Iterable[str | Ignore] = (),
    fail_on: SeverityName = "error",
    num_labels: int | None = None,
    task: str | None = None,
    revision: str | None = None,
    cache_dir: str | PathLike[str] | None = None,
    token: str | None = None,
    offline: bool = False,
    timeout: float | None = None,
) -> dict[str, list[Any]]:
    """The rows of one batch as columns, for Ray Data, Dask, Spark or Beam: a plain function of its arguments.

    The batch is examined in this process, without limits. What its checkpoints share with earlier batches (class,
    configuration, tensor shapes) is not examined again: a process keeps the structures that it used last, 96 for each
    set of options.

    Args:
        batch: Columns by name, such as a dictionary, a pandas DataFrame or an Arrow table; `reference` holds the
            checkpoints, as `scan` takes them.
        profile: What the findings are weighed for, `training` or `inference` (default: as for `scan`).
        rules: Rules to run, such as `HS1` or `"HS101,HS202"` (default: all).
        ignore: Rules not to count.
        fail_on: Severity from which a finding fails a checkpoint.
        num_labels: Number of classes (default: from each config).
        task: A task such as `token-classification` (default: from each checkpoint).
        revision: Branch, tag or commit on the Hub (default: `main`).
        cache_dir: The Hub's cache folder (default: `$HF_HUB_CACHE`).
        token: Access token (default: `$HF_TOKEN` or the stored login).
        offline: Make no network requests.
        timeout: Time limit for the Hub requests of one checkpoint, in seconds (default: 120).

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
    plan = _plan_of(locals() | {"workers": 0, "time_limit": SECONDS, "memory_limit": None})
    references = _references(batch)
    kept = _kept_for(plan.work)
    targets = without_repeats(map(_target, references))
    rows = {row.reference: row.to_dict() for row in scan_here(targets, kept.work, kept.memory)}
    found = [rows[reference] for reference in references]
    return {name: [row[name] for row in found] for name in columns()}


def _references(batch: Mapping[str, Any]) -> list[str]:
    """The checkpoints of a batch; a missing value is an empty name. Raises UsageError."""
    try:
        column = batch["reference"]
    except (KeyError, IndexError, TypeError) as err:
        raise UsageError("the batch has no column `reference`", "name the column of the checkpoints so") from err
    if isinstance(column, str):
        raise UsageError("the column `reference` is one text", 'write {"reference": ["gpt2"]}')
    values = column.to_pylist() if hasattr(column, "to_pylist") else column
    return [str(value) if isinstance(value, str | PathLike) else "" for value in values]


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a process keeps between two batches with the same options."""

    work: Work
    memory: ReportMemory


_KEPT = Recent()


def _kept_for(work: Work) -> _Kept:
    """What is kept for work with these options."""
    kept: _Kept | None = _KEPT.get(work)
    if kept is None:
        kept = _Kept(work, memory_for(work))
        _KEPT.keep(work, kept)
    return kept


def _target(given: str | PathLike[str] | Target) -> Target:
    if isinstance(given, Target):
        return given
    return Target(make_request(given, {}).reference)


def _count(workers: int | None) -> int:
    if workers is None:
        return 2 * (os.cpu_count() or 1)
    if type(workers) is not int or workers < 0:
        raise UsageError(f"workers must be a whole number from 0, not {workers!r}", "write workers=4")
    return workers


def _limits(seconds: float, memory: float | None) -> Limits:
    """The limits; a number that is too large for the system to count is none. Raises UsageError."""
    _check_positive("the time limit", seconds, f"give seconds, such as {SECONDS:g}")
    if memory is not None:
        _check_positive("the memory limit", memory, "give GiB, such as 8")
    wanted = math.inf if memory is None else memory * 1024**3
    return Limits(float(min(seconds, threading.TIMEOUT_MAX)), int(wanted) if wanted < _MOST_MEMORY else None)


def _check_positive(name: str, value: object, hint: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UsageError(f"{name} must be a number above 0, not {value!r}", hint)
