"""`scan_batch`: the rows of a batch of checkpoints, for engines that call a function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from headscope.api.arguments import ProfileName, SeverityName
from headscope.api.arguments import use_case as refuses_unknown
from headscope.api.scan_options import plan_of, target_of
from headscope.checks import Ignore
from headscope.errors import UsageError
from headscope.examination.structure import ReportMemory
from headscope.facts.scan import columns
from headscope.fleet.pool import SECONDS, Work, memory_for, scan_here
from headscope.fleet.target import without_repeats
from headscope.recent import Recent


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
    plan = plan_of(locals() | {"workers": 0, "time_limit": SECONDS, "memory_limit": None})
    references = _references(batch)
    kept = _kept_for(plan.work)
    targets = without_repeats(map(target_of, references))
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
