"""`scan`: many checkpoints, one row each."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

from headscope.api.checking import read_profile
from headscope.api.options import ProfileName, SeverityName, make_request, read_selection, refuses_unknown
from headscope.checks import RULES, Ignore
from headscope.errors import UsageError
from headscope.examination.request import Request
from headscope.facts.check import Verdict
from headscope.facts.scan import ScanRow, ScanSummary, Tally
from headscope.fleet.pool import MEMORY, SECONDS, Limits, Work, scan_here, scan_in_pool
from headscope.fleet.row import Asked
from headscope.fleet.table import Table, open_table
from headscope.fleet.target import Target, found_below, without_repeats
from headscope.fleet.target import listed as listed_targets
from headscope.fleet.target import on_hub as targets_on_hub


@refuses_unknown
def scan(
    references: Iterable[str | PathLike[str] | Target],
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

    What checkpoints of one structure share (class, configuration, tensor shapes) is examined once. The references are
    read as they are needed, so a generator may name thousands.

    Args:
        references: What `inspect` takes, in any number; what is named twice is examined once.
        workers: Number of processes (default: two per core, as some wait for the network); 0 examines in this process,
            without limits.
        profile: What the findings are weighed for, `training` or `inference` (default: training for a checkpoint with
            new weights in its head, else inference, as `inspect` does).
        rules: Rules to ask, such as `HS1` or `"HS101,HS202"` (default: all).
        ignore: Rules not to count.
        fail_on: Severity from which a finding fails a checkpoint.
        num_labels: Number of classes (default: from each config).
        task: A task such as `token-classification` (default: from each checkpoint).
        revision: Branch, tag or commit on the Hub (default: `main`).
        cache_dir: The Hub's cache folder (default: `$HF_HUB_CACHE`).
        token: Access token (default: `$HF_TOKEN` or the stored login).
        offline: Make no network requests.
        timeout: Time limit for the Hub requests of one checkpoint, in seconds (default: 120).
        time_limit: Wall time that one checkpoint may take, in seconds; then its worker is replaced.
        memory_limit: Memory that one checkpoint may take, in GiB of address space beside the libraries (on Linux);
            None for no limit.

    Yields:
        A row for each checkpoint, in the order in which they are done. One that can't be examined is a row too:
        `verdict` is not determined, `not_determined` the cause in a word, `reason` the sentence.

    Raises:
        UsageError: An option is unknown or has an invalid value.

    Example:
        >>> import headscope
        >>> rows = headscope.scan(["bert-base-uncased", "roberta-base"], workers=0, offline=True)
        >>> [(row.class_name, row.pooling_kind, row.new_in_head) for row in rows]
        [('BertForSequenceClassification', 'first_token', 2), ('RobertaForSequenceClassification', 'first_token', 4)]
    """
    given = _given(locals())
    plan = _plan(profile, rules, ignore, fail_on, workers, time_limit, memory_limit, given)
    return plan.rows(map(_target, references))


_OF_REQUESTS = ("num_labels", "task", "revision", "cache_dir", "token", "offline", "timeout")


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: arguments[name] for name in _OF_REQUESTS if arguments[name]}


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a scan examines each checkpoint, and with how many workers."""

    template: Request
    asked: Asked
    workers: int
    limits: Limits

    def rows(self, targets: Iterable[Target]) -> Generator[ScanRow]:
        """The rows of checkpoints as they are done, each checkpoint once."""
        once = without_repeats(targets)
        if self.workers == 0:
            yield from scan_here(once, Work(self.template, self.asked))
            return
        with _shared_folder() as folder:
            place = self.template.location
            hub = replace(place.hub, budget=str(folder / "budget"))
            template = replace(self.template, location=replace(place, hub=hub))
            yield from scan_in_pool(once, Work(template, self.asked, folder), self.workers, self.limits)


def _plan(  # noqa: PLR0917  in the order of the options
    profile: str | None,
    rules: str | Iterable[str],
    ignore: str | Iterable[str | Ignore],
    fail_on: str,
    workers: int | None,
    time_limit: float,
    memory_limit: float | None,
    given: Mapping[str, Any],
) -> _Plan:
    """The plan that options make. Raises UsageError."""
    asked = Asked(read_profile(profile) if profile else None, read_selection(rules, ignore, fail_on))
    return _Plan(make_request("", dict(given)), asked, _count(workers), _limits(time_limit, memory_limit))


@dataclass(frozen=True, slots=True)
class Progressed:
    """How far a scan is: rows done, those of them without a verdict, and all (None where that isn't known)."""

    done: int
    undetermined: int
    total: int | None


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
    **given: Any,
) -> ScanSummary:
    """Scans everything that its sources name into a table, and sums the table up.

    `on_hub` says which models a listing of the Hub should name (see `listed_models`). `output` is as for `open_table`.
    `write` gets each row too, and ends the scan by returning False.

    Raises UsageError for options and files that can't be used, and HeadscopeError where the table can't be written.
    """
    start = time.perf_counter()
    plan = _plan(profile, rules, ignore, fail_on, workers, time_limit, memory_limit, given)
    sources = [map(_target, references), listed_targets(listed) if listed else (), *map(found_below, folders)]
    if on_hub:
        sources.append(targets_on_hub(plan.template.location.hub, **on_hub))
    targets = list(without_repeats(chain.from_iterable(sources)))
    if not targets:
        raise UsageError(
            "there is nothing to scan", "name models, or a source such as --from FILE, --folder or --author"
        )
    if (resume or only_new) and output is None:
        raise UsageError("rows on stdout can't be gone on with", "name a file with -o")
    tally, written, undetermined = Tally(), 0, 0
    with open_table(output, go_on=resume or only_new, seen=tally.add) if output else nullcontext() as table:
        wanted = [target for target in targets if not _is_known(target, table, resume=resume, only_new=only_new)]
        skipped = len(targets) - len(wanted)
        with closing(plan.rows(wanted)) as rows:
            for done, row in enumerate(rows, 1):
                if table is not None and only_new and table.known.holds_commit(row.reference, row.commit):
                    skipped += 1
                else:
                    tally.add(row.to_dict())
                    written += 1
                    if table is not None:
                        table.write(row)
                if write is not None and not write(row):
                    break
                undetermined += row.not_determined is not None
                if progress is not None:
                    progress(Progressed(done, undetermined, len(wanted)))
    seconds = time.perf_counter() - start
    names = {rule.id: (rule.name, rule.title) for rule in RULES.values()}
    return tally.summary(written=written, skipped=skipped, seconds=seconds, rules=names)


def _is_known(target: Target, table: Table | None, *, resume: bool, only_new: bool) -> bool:
    if table is None:
        return False
    if resume and table.known.holds(target.reference):
        return True
    return only_new and table.known.holds_commit(target.reference, target.commit)


def scan_batch(batch: Mapping[str, Any], **options: Any) -> dict[str, list[Any]]:
    """The rows of one batch as columns, for Ray Data, Dask, Spark or Beam: a plain function of its arguments.

    Args:
        batch: Columns by name; `reference` holds the checkpoints, as `scan` takes them.
        options: Those of `scan`, but for `workers`: the batch is examined in this process.

    Returns:
        The columns of the table, each a list with one value per checkpoint, in the order of the batch.

    Raises:
        UsageError: The batch has no column `reference`, or an option is invalid.
    """
    if "reference" not in batch:
        raise UsageError("the batch has no column `reference`", "name the column of the checkpoints so")
    references = [str(item) for item in batch["reference"]]
    rows = {row.reference: row.to_dict() for row in scan(references, **options, workers=0)}
    found = [rows[reference] for reference in references]
    names = list(ScanRow("", Verdict.NOT_DETERMINED).to_dict())
    return {name: [row[name] for row in found] for name in names}


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
    for name, value in (("time_limit", seconds), ("memory_limit", memory)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
            raise UsageError(f"{name} must be a number above 0, not {value!r}", f"write {name}=60")
    return Limits(float(seconds), None if memory is None else int(memory * 1024**3))


@contextmanager
def _shared_folder() -> Iterator[Path]:
    """A folder in which workers keep the structures that they know, for one another."""
    folder = Path(tempfile.mkdtemp(prefix="headscope-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
