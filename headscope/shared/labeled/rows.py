"""What every file of rows has: the names of its columns, and the cells of some of them row by row."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from headscope.core.facts.counting import list_of, shortened
from headscope.errors import UsageError, did_you_mean

RowCells = tuple[Any, ...]


@dataclass(frozen=True)
class RowSource:
    """Rows of labeled data. `read` gives the cells of the columns asked for, from the first row on, at every call.

    `columns` is empty where only the rows themselves know (JSON lines). `names` are declared class names by column.
    `is_typed` says that the file tells numbers from texts.
    """

    name: str
    format: str
    split: str | None
    columns: tuple[str, ...]
    read: Callable[[Sequence[str]], Iterator[RowCells]]
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    is_typed: bool = True


def check_columns(wanted: Sequence[str], columns: Sequence[str], name: str) -> None:
    """Raises UsageError for a column that is not there, or is there twice."""
    for column in wanted:
        if column not in columns:
            listed = f"columns: {list_of(map(shortened, columns), 12)}" if columns else "the file has no columns"
            raise UsageError(
                f"{name} has no column {column!r}; {listed}",
                did_you_mean(column, [name for name in columns if shortened(name) == name], _HINT),
            )
        if list(columns).count(column) > 1:
            raise UsageError(f"{name} has several columns {column!r}", "give each column a different name")


_HINT = (
    "name the column with --label-column or --text-column; the first line of a csv or tsv file must name its columns"
)
