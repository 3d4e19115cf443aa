"""`scan_batch`: the rows of a batch of checkpoints, for engines that call a function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, Unpack

from headscope.core.recent import Recent
from headscope.core.source.memory.memory import Memory
from headscope.errors import UsageError
from headscope.shell.options.calls import use_case
from headscope.slices.fleet.facts import columns
from headscope.slices.fleet.options import BatchOptions
from headscope.slices.fleet.pool import SECONDS, Work, memory_for, scan_here
from headscope.slices.fleet.run import plan_of, target_of
from headscope.slices.fleet.target import without_repeats


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
    kept = _kept_for(plan.work)
    targets = without_repeats(map(target_of, references))
    rows = {row.reference: row.to_dict() for row in scan_here(targets, kept.work, kept.memory)}
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


@dataclass(frozen=True, slots=True)
class _KeptWork:
    """Work and memory that a process keeps between two batches with the same options."""

    work: Work
    memory: Memory


_KEPT = Recent()


def _kept_for(work: Work) -> _KeptWork:
    """Gives the work and the memory that are kept for these options, new ones the first time."""
    kept: _KeptWork | None = _KEPT.get(work)
    if kept is None:
        kept = _KeptWork(work, memory_for(work))
        _KEPT.keep(work, kept)
    return kept
