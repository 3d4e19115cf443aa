"""`scan`: many checkpoints, one row each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from os import PathLike
from typing import Unpack

from headscope.checks.given import read_selection
from headscope.checks.options import RuleOptions
from headscope.checks.rules import RULES
from headscope.checks.run import read_profile
from headscope.errors import UsageError
from headscope.shell.options.calls import use_case
from headscope.shell.values import make_request, options_of
from headscope.slices.fleet.facts import ScanRow, ScanSummary, Tally
from headscope.slices.fleet.options import EachOptions, ScanOptions
from headscope.slices.fleet.plan import ScanPlan, check_template, limits_of, worker_count
from headscope.slices.fleet.pool import MEMORY, SECONDS
from headscope.slices.fleet.row import RowOptions
from headscope.slices.fleet.table_scan import ScanOutput, TableScan
from headscope.slices.fleet.target import ScanSources, Target


def plan_of(options: ScanOptions) -> ScanPlan:
    """Makes the plan of a scan from its options. Raises UsageError for an invalid value."""
    profile, rules = options.get("profile"), options_of(RuleOptions, options)
    template = make_request("", options_of(EachOptions, options))
    check_template(template)
    return ScanPlan(
        template=template,
        options=RowOptions(read_profile(profile), read_selection(**rules), run=bool(options.get("run"))),
        workers=worker_count(options.get("workers")),
        limits=limits_of(options.get("time_limit", SECONDS), options.get("memory_limit", MEMORY / 1024**3)),
    )


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
    table = TableScan(plan, sources.targets(plan.template.location), output, Tally())
    written, skipped = table.run(options.get("workers"))
    seconds = time.perf_counter() - start
    names = {rule.id: (rule.name, rule.title) for rule in RULES.values()}
    return table.tally.summary(written=written, skipped=skipped, seconds=seconds, rules=names)
