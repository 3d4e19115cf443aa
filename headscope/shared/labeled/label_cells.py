"""Cells of a column of labels that hold none: words for a missing value, and infinite values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headscope.core.facts.counting import counted, list_of
from headscope.errors import UsageError
from headscope.shared.labeled.facts import DataClass
from headscope.shared.labeled.opening import open_data
from headscope.shared.labeled.rows import RowCells, RowSource
from headscope.shared.labeled.tally import spelled_out

_NOT_A_NUMBER = frozenset({"nan", "-nan", "na", "n/a", "#n/a", "#na", "<na>", "null"})
_OF_PYTHON = "None"
"""How Python writes a missing value. In other spellings, `none` is the name of a class."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Cells:
    """A source whose missing labels are empty cells, and a note on the words that stood for them ("" for none)."""

    source: RowSource
    note: str = ""


def open_labeled(path: str, split: str | None, labels: Sequence[str]) -> Cells:
    """Opens a file or a folder, with words such as `nan` as empty cells where all other labels of a column are numbers.

    A typed file (Parquet, JSON) is returned unchanged: it marks missing values itself. Raises as `open_data`, and
    UsageError, with the row, for an infinite number.
    """
    source = open_data(path, split)
    columns = () if source.is_typed else labels
    words = {column: found for column in columns if (found := _count_missing_words(source, column))}
    if not words:
        return Cells(source)
    totals = sum(words.values(), Counter[str]())
    named = list_of((repr(word) for word, _ in totals.most_common()), _SHOWN)
    note = f"{named} read as a missing label in {counted(totals.total(), 'cell')}: the other labels are numbers"
    return Cells(_with_empty_cells(source, frozenset(words)), note)


def _count_missing_words(source: RowSource, column: str) -> Counter[str]:
    """Counts each word for a missing value in a column of numbers; empty for a column of names or lists.

    Raises UsageError for an infinite number, in a list of numbers too.
    """
    found: Counter[str] = Counter()
    infinite: tuple[str, int] | None = None
    numbers, has_lists = 0, False
    for row, (cell,) in enumerate(source.read((column,)), 1):
        text = str(cell or "").strip()
        label = spelled_out(text)
        has_lists = has_lists or isinstance(label, tuple)
        for part in label if isinstance(label, tuple) else (text,) if text else ():
            word = str(part)
            if _is_missing_word(word):
                found[word] += 1
            elif _is_infinite(word):
                infinite = infinite or (word, row)
            elif isinstance(spelled_out(word), int | float):
                numbers += 1
            else:
                return Counter()
    # Without any number the column holds names, and `inf` may be one of them.
    if infinite is not None and numbers:
        raise _infinite_number_error(source, column, *infinite)
    return found if numbers and not has_lists else Counter()


def _is_missing_word(text: str) -> bool:
    return text == _OF_PYTHON or text.casefold() in _NOT_A_NUMBER


def check_finite(source: RowSource, columns: Sequence[str]) -> None:
    """Raises UsageError, with the row, for an infinite number in a file that tells numbers from texts."""
    for column in columns:
        for row, (cell,) in enumerate(source.read((column,)), 1):
            for part in cell if isinstance(cell, list | tuple) else (cell,):
                if isinstance(part, float) and math.isinf(part):
                    raise _infinite_number_error(source, column, str(part), row)


def _is_infinite(text: str) -> bool:
    try:
        return math.isinf(float(text))
    except ValueError:
        return False


def _infinite_number_error(source: RowSource, column: str, text: str, row: int) -> UsageError:
    nothing = "null as the label" if source.is_typed else "leave the cell empty"
    return UsageError(
        f"{column!r} of {source.name} has the infinite number {text!r} in row {row:,}",
        f"write a finite number, or {nothing}: its row is left out then",
    )


def _with_empty_cells(source: RowSource, columns: frozenset[str]) -> RowSource:
    def is_missing(cell: Any) -> bool:
        return isinstance(cell, str) and _is_missing_word(cell.strip())

    def read(wanted: Sequence[str]) -> Iterator[RowCells]:
        at = {place for place, name in enumerate(wanted) if name in columns}
        for row in source.read(wanted):
            yield tuple("" if place in at and is_missing(cell) else cell for place, cell in enumerate(row))

    return replace(source, read=read)


def note_on_names(classes: Sequence[DataClass]) -> str:
    """Gives a note on classes whose name often stands for a missing label, "" if there are none."""
    doubtful = [item for item in classes if item.label.strip().casefold() in _NOT_A_NUMBER]
    if not doubtful:
        return ""
    named = list_of((f"{item.label!r} ({counted(item.rows, 'row')})" for item in doubtful), _SHOWN)
    what = "is a class" if len(doubtful) == 1 else "are classes"
    return f"{named} {what} here: if the label is missing, leave the cell empty"
