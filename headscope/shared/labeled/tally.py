"""Labels of a column, counted row by row in bounded memory."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Any

from headscope.errors import Malformed, UsageError
from headscope.shared.labeled.facts import DataClass, DataFacts, LabelKind
from headscope.shared.labeled.rows import RowCells, RowSource

_MOST_CLASSES = 20_000
_LONGEST_LABEL = 1_000
_LONGEST_LIST = 100_000
# JSON has integers of any length; PyTorch's labels are int64.
_LARGEST = 2**63
_INTEGER = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?(\d{1,40}\.?\d{0,40}|\.\d{1,40})([eE][+-]?\d{1,3})?")
_LIST = re.compile(r"\[.*\]", re.DOTALL)
IGNORED = -100
"""The label that PyTorch's losses leave out."""
Label = str | int | float | bool | tuple[Any, ...] | None


def tally_labels(source: RowSource, labels: Sequence[str], texts: Sequence[str]) -> DataFacts:
    """Counts the labels of all rows. Raises UsageError for columns that are not there or hold no labels."""
    rows = source.read((*labels, *texts))
    return (
        _tally_flag_columns(source, labels, texts, rows)
        if len(labels) > 1
        else _tally_column(source, labels[0], texts, rows)
    )


def spelled_out(text: str) -> Label:
    """Parses a cell of an untyped file as the number or list that it spells; other cells are returned unchanged."""
    return _parse_short_cell(text) if len(text) <= 64 else _parse_cell(text)


def _parse_cell(text: str) -> Label:
    stripped = text.strip()
    if _INTEGER.fullmatch(stripped):
        return int(stripped)
    if _NUMBER.fullmatch(stripped):
        return float(stripped)
    if len(stripped) <= _LONGEST_LIST and _LIST.fullmatch(stripped):
        parts = [part.strip().strip("'\"") for part in stripped[1:-1].replace("\n", " ").split(",")]
        return tuple(spelled_out(part) for part in parts if part)
    return text


_parse_short_cell = lru_cache(maxsize=4_096)(_parse_cell)  # a column of labels has few different cells


def read_label(cell: Any, source: RowSource, column: str) -> Label:
    """Reads the label in a cell; None for a row without one. Raises UsageError for a cell that is not a label."""
    if cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell)):
        return None
    if isinstance(cell, str):
        if len(cell) > (_LONGEST_LABEL if source.is_typed else _LONGEST_LIST) or (
            len(cell) > _LONGEST_LABEL and not cell.startswith("[")
        ):
            raise _not_labels_error(source, column, f"one of its cells has {len(cell):,} characters")
        label = cell if source.is_typed else spelled_out(cell)
        if isinstance(label, float) and math.isinf(label):
            raise _not_labels_error(source, column, "one of its cells is infinite or a number of over 64 bits")
        return label
    if isinstance(cell, list | tuple):
        if len(cell) > _LONGEST_LIST:
            raise _not_labels_error(source, column, f"one of its cells is a list of {len(cell):,}")
        items: list[Label] = []
        for item in cell:
            items.append(read_label(item, source, column))
            if isinstance(items[-1], tuple) or items[-1] is None:
                raise _not_labels_error(source, column, "one of its cells is a list that holds lists or empty values")
        return tuple(items)
    if isinstance(cell, bool | int | float):
        if not -_LARGEST <= cell < _LARGEST:
            raise _not_labels_error(source, column, "one of its cells is infinite or a number of over 64 bits")
        return cell
    what = "an object (dict)" if isinstance(cell, dict) else f"of the type {type(cell).__name__}"
    raise _not_labels_error(source, column, f"one of its cells is {what}")


def _not_labels_error(source: RowSource, column: str, why: str) -> UsageError:
    return UsageError(
        f"{column!r} of {source.name} is not a column of labels: {why}", "name another column with --label-column"
    )


@dataclass(slots=True)
class _Tally:
    """Counts so far. `kinds` (single labels) and `inner` (those in lists) map each kind to the first row with it."""

    rows: int = 0
    missing: int = 0
    ignored: int = 0
    kinds: dict[LabelKind, int] = field(default_factory=dict)
    inner: dict[LabelKind, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    has_more: bool = False
    lowest: float = math.inf
    highest: float = -math.inf
    is_whole: bool = True
    lengths: set[int] = field(default_factory=set)
    hot: list[int] | None = None

    def add(self, label: Label) -> None:
        """Counts one row."""
        self.rows += 1
        if label is None:
            self.missing += 1
        elif isinstance(label, tuple):
            self.kinds.setdefault(LabelKind.LISTS, self.rows)
            self._add_list(label)
        else:
            self.kinds.setdefault(_kind_of_label(label), self.rows)
            self._count_label(label)

    def _add_list(self, labels: tuple[Any, ...]) -> None:
        # Two lengths already show that lists differ; more would only take memory.
        if len(self.lengths) <= 1:
            self.lengths.add(len(labels))
        is_hot = len(self.lengths) == 1 and all(item in (0, 1) for item in labels if not isinstance(item, str))
        if not is_hot or any(isinstance(item, str) for item in labels):
            self.hot = []
        elif self.hot is None:
            self.hot = [int(item) for item in labels]
        elif self.hot:
            self.hot = [count + int(item) for count, item in zip(self.hot, labels, strict=True)]
        for item in labels:
            self.inner.setdefault(_kind_of_label(item), self.rows)
        for item in dict.fromkeys(labels):
            self._count_label(item)

    def _count_label(self, label: Any) -> None:
        if isinstance(label, int | float) and not isinstance(label, bool):
            if is_ignored(label):
                self.ignored += 1
                return
            self.lowest, self.highest = min(self.lowest, label), max(self.highest, label)
            self.is_whole = self.is_whole and float(label).is_integer()
        key = spelled(label)
        # A column of free numbers has a new value in each row: beyond the bound values aren't kept, so memory stays
        # small.
        if key in self.counts or len(self.counts) < _MOST_CLASSES:
            self.counts[key] += 1
        else:
            self.has_more = True


def is_ignored(label: Any) -> bool:
    """True if PyTorch's losses leave a label out."""
    return type(label) is int and label == IGNORED


def spelled(label: Any) -> str:
    """Writes a label as text: the key by which it is counted."""
    if isinstance(label, bool):
        return "true" if label else "false"
    if isinstance(label, float) and label.is_integer() and abs(label) < 1e15:  # exact as an integer
        return str(int(label))
    return str(label)


def _kind_of_label(label: Any) -> LabelKind:
    if isinstance(label, bool):
        return LabelKind.BOOLEANS
    if isinstance(label, int):
        return LabelKind.INTEGERS
    return LabelKind.NUMBERS if isinstance(label, float) else LabelKind.TEXTS


def _tally_column(source: RowSource, column: str, texts: Sequence[str], rows: Iterable[RowCells]) -> DataFacts:
    tally = _Tally()
    for row in rows:
        tally.add(read_label(row[0], source, column))
        if tally.has_more and LabelKind.TEXTS in (tally.kinds | tally.inner):
            raise _not_labels_error(source, column, f"it has over {_MOST_CLASSES:,} different values")
    kind = _common_kind(tally.kinds, source, column)
    if kind is LabelKind.LISTS:
        _common_kind(tally.inner, source, column)
    _check_labels(tally, kind, source, column)
    numbers = tally.lowest <= tally.highest
    by_number = numbers and all(_INTEGER.fullmatch(label) for label in tally.counts)
    ordered = sorted(tally.counts, key=int) if by_number else sorted(tally.counts)
    has_classes = kind is not LabelKind.NUMBERS or not tally.has_more
    return DataFacts(
        file=source.name,
        format=source.format,
        split=source.split,
        rows=tally.rows,
        label_columns=(column,),
        text_columns=tuple(texts),
        kind=kind,
        classes=tuple(DataClass(label, tally.counts[label]) for label in ordered) if has_classes else (),
        names=source.names.get(column, ()),
        missing=tally.missing,
        ignored=tally.ignored,
        lowest=float(tally.lowest) if numbers else None,
        highest=float(tally.highest) if numbers else None,
        is_whole=tally.is_whole,
        has_more_classes=tally.has_more,
        list_length=next(iter(tally.lengths)) if len(tally.lengths) == 1 else None,
        hot=tuple(tally.hot or ()),
    )


def _common_kind(kinds: dict[LabelKind, int], source: RowSource, column: str) -> LabelKind:
    """Gives the kind that all labels share. In an untyped file one text makes all of them texts."""
    found = set(kinds)
    numbers = {LabelKind.INTEGERS, LabelKind.NUMBERS}
    if not found:
        return LabelKind.TEXTS
    if found <= numbers:
        return LabelKind.NUMBERS if LabelKind.NUMBERS in found else LabelKind.INTEGERS
    if len(found) == 1:
        return next(iter(found))
    if not source.is_typed and LabelKind.LISTS not in found:
        return LabelKind.TEXTS
    told = " and ".join(
        f"{kind.value} (first in row {row:,})" for kind, row in sorted(kinds.items(), key=itemgetter(1))
    )
    raise Malformed(f"{column!r} of {source.name} mixes {told}", "write all labels in the same way")


def _check_labels(tally: _Tally, kind: LabelKind, source: RowSource, column: str) -> None:
    if not tally.rows:
        raise Malformed(f"{source.name} has no rows", "give a file with labeled rows")
    if tally.missing == tally.rows:
        raise _not_labels_error(source, column, f"all {tally.rows:,} cells are empty")
    distinct = len(tally.counts)
    # Classes repeat. A column in which half of the cells differ is free text or an ID.
    if kind is LabelKind.TEXTS and distinct > max(60, tally.rows // 2):
        raise _not_labels_error(source, column, f"it has {distinct:,} different values in {tally.rows:,} rows")


def _tally_flag_columns(
    source: RowSource, columns: Sequence[str], texts: Sequence[str], rows: Iterable[RowCells]
) -> DataFacts:
    """Counts several columns, each of them one class: a row has it where its cell is 1."""
    counts, total, missing = [0] * len(columns), 0, 0
    for row in rows:
        total += 1
        cells = [_read_flag(cell, source, column) for cell, column in zip(row, columns, strict=False)]
        missing += any(cell is None for cell in cells)
        counts = [count + bool(cell) for count, cell in zip(counts, cells, strict=True)]
    if not total:
        raise Malformed(f"{source.name} has no rows", "give a file with labeled rows")
    return DataFacts(
        file=source.name,
        format=source.format,
        split=source.split,
        rows=total,
        label_columns=tuple(columns),
        text_columns=tuple(texts),
        kind=LabelKind.COLUMNS,
        classes=tuple(DataClass(column, count) for column, count in zip(columns, counts, strict=True)),
        missing=missing,
    )


def _read_flag(cell: Any, source: RowSource, column: str) -> bool | None:
    """Reads whether a row has the class of a column. Raises UsageError for a cell that is neither 0 nor 1."""
    label = read_label(cell, source, column)
    if label is None:
        return None
    words = {"true": True, "false": False}
    found = words.get(label.strip().lower()) if isinstance(label, str) else None
    if found is not None:
        return found
    if label in (0, 1) and not isinstance(label, str):
        return bool(label)
    raise _not_labels_error(
        source, column, "with several label columns each cell must be 0 or 1, and one holds another value"
    )
