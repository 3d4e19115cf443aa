"""`scan`: many checkpoints, one row each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

from headscope.api.arguments import ProfileName, SeverityName
from headscope.api.arguments import use_case as refuses_unknown
from headscope.api.scan_options import plan_of, target_of
from headscope.checks import RULES, Ignore
from headscope.errors import UsageError
from headscope.facts.scan import ScanRow, ScanSummary, Tally
from headscope.fleet.pool import MEMORY, SECONDS
from headscope.fleet.table import is_stream, open_shared_table, open_table
from headscope.fleet.table_scan import Progressed, TableScan
from headscope.fleet.target import Target, found_below, without_repeats
from headscope.fleet.target import listed as listed_targets
from headscope.fleet.target import on_hub as targets_on_hub

ENGINES = ("local", "ray")


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
    plan = plan_of(locals())
    if isinstance(checkpoints, str | PathLike) or not isinstance(checkpoints, Iterable):
        raise UsageError(f"checkpoints must be several, not {checkpoints!r}", 'write scan(["gpt2"])')
    return plan.rows(map(target_of, checkpoints))


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
    plan, start = plan_of(locals(), **given), time.perf_counter()
    if engine not in ENGINES:
        raise UsageError(f"engine must be {' or '.join(ENGINES)}, not {engine!r}", "write engine='local'")
    folders = tuple(folders)
    sources = [map(target_of, references), () if listed is None else listed_targets(listed), *map(found_below, folders)]
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
    asked = TableScan(plan, targets, tally, resume=resume, only_new=only_new, progress=progress)
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
