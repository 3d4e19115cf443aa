"""The hidden states as a row of cells: which positions the class scores read."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from headscope.facts import Head, PoolingKind, Report
from headscope.render.safe import safe
from headscope.render.words import TEXT_TASKS


class Mark(StrEnum):
    """What is known of one position: read by the scores, not read, or not told."""

    READ = "read"
    BESIDE = "not read"
    UNTOLD = "not told"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Cell:
    """One position, or one label."""

    text: str
    mark: Mark = Mark.PLAIN


@dataclass(frozen=True, slots=True)
class CellRow:
    """Cells side by side, with a word before them where there are several rows."""

    cells: tuple[Cell, ...]
    caption: str = ""


Names = tuple[str, ...]
_FIRST, _LAST, _PAD, _GAP = "first", "last", "pad", "..."
_GRID = 3
_SIGNS = {Mark.READ: "\N{BLACK UP-POINTING TRIANGLE} ", Mark.UNTOLD: "? "}
_MEANINGS = {Mark.READ: "read by the scores", Mark.UNTOLD: "not told whether"}
_PADDED_KINDS = {PoolingKind.LAST_NON_PAD_TOKEN, PoolingKind.MASKED_MEAN, PoolingKind.EOS_TOKEN}
_PADDED_WORDS = {"all non-pad", "last non-pad", "after last non-pad"}

_OF_KIND: dict[PoolingKind, str] = {
    PoolingKind.FIRST_TOKEN: "0",
    PoolingKind.LAST_TOKEN: "-1",
    PoolingKind.EOS_TOKEN: "eos",
    PoolingKind.MASKED_MEAN: "all non-pad",
    PoolingKind.SPATIAL_MEAN: "all",
    PoolingKind.FLATTEN: "all",
    PoolingKind.NONE: "all",
    PoolingKind.MAX: "positions",
    PoolingKind.WEIGHTED: "positions",
}
"""Kinds that tell the positions by themselves; the others tell them in their `tokens`."""

_BY_TOKENS = {PoolingKind.MEAN, PoolingKind.TOKEN_AT, PoolingKind.LAST_NON_PAD_TOKEN}


def token_rows(report: Report, head: Head) -> tuple[CellRow, ...]:
    """The positions of the hidden states with what the pooling says of each; one row for each part of several.

    Padding is drawn on the right. What the facts do not place is marked as not told.
    """
    pooling = head.pooling
    is_sure = is_pooling_known(report)
    padded = _is_padded(report, head)
    if pooling.kind is PoolingKind.SPATIAL_MEAN:
        mark = Mark.READ if is_sure else Mark.UNTOLD
        return tuple(CellRow((Cell("", mark),) * (2 * _GRID)) for _ in range(_GRID))
    if pooling.kind is not PoolingKind.CONCAT:
        word = _word_of(pooling.kind, pooling.tokens) if is_sure else ""
        return (CellRow(_cells(word, padded, _name_of(pooling.kind, pooling.tokens))),)
    rows = (
        CellRow(_cells(_part_word(tokens) if is_sure else "", padded), f"part {number}: {safe(tokens)}")
        for number, tokens in enumerate(pooling.tokens, 1)
    )
    return tuple(rows)


def is_pooling_known(report: Report) -> bool:
    """Whether nothing that was not determined leaves it open which positions are read."""
    return all(gap.what not in {"pooling", "head path"} for gap in report.not_determined)


def legend_of(rows: tuple[CellRow, ...]) -> str:
    """What the signs in the cells mean, and on which side padding is drawn."""
    marks = {cell.mark for row in rows for cell in row.cells}
    told = [f"{_SIGNS[mark]}{meaning}" for mark, meaning in _MEANINGS.items() if mark in marks]
    padded = any(cell.text == _PAD for row in rows for cell in row.cells)
    return "; ".join((", ".join(told), *(["padding is drawn on the right"] if padded else [])))


def cell_text(cell: Cell) -> str:
    """A cell with the sign of its mark, for those who see no colours."""
    return f"{_SIGNS.get(cell.mark, '')}{cell.text}".rstrip()


def row_text(row: CellRow) -> str:
    """A row as text."""
    cells = " | ".join(map(cell_text, row.cells))
    return f"{row.caption}: {cells}" if row.caption else cells


def _is_padded(report: Report, head: Head) -> bool:
    """Whether rows of different lengths are padded: texts, and whatever a mask or a padding id decides."""
    by_mask = head.pooling.kind in _PADDED_KINDS or not _PADDED_WORDS.isdisjoint(head.pooling.tokens)
    return by_mask or (report.model.task in TEXT_TASKS and "sequence" in head.hidden_shape)


def _word_of(kind: PoolingKind, tokens: Names) -> str:
    if kind in _BY_TOKENS:
        return _position_word(tokens[0] if tokens else "")
    return _OF_KIND.get(kind, "")


def _position_word(tokens: str) -> str:
    return tokens.partition(" of hidden states ")[0]


def _part_word(tokens: str) -> str:
    """As `_position_word`; whether padding is among all the positions, a part does not tell."""
    word = _position_word(tokens)
    return "positions" if word == "all" else word


def _name_of(kind: PoolingKind, tokens: Names) -> str:
    """What the tokenizer calls the one token that is read, where it has a name for it."""
    named = kind in {PoolingKind.FIRST_TOKEN, PoolingKind.EOS_TOKEN} and tokens
    return safe(tokens[0]) if named and not tokens[0].isdigit() else ""


def _cells(word: str, padded: bool, name: str = "") -> tuple[Cell, ...]:
    """Cells of which those are marked as read that `word` names; all are not told where it names none."""
    at = int(word.removesuffix(":")) if word.removesuffix(":").isdecimal() else 0
    cells = [*_beginning(at), _GAP, _LAST, *([_PAD, _PAD] if padded else [])]
    picks = _PICKS.get(word) or (_from(at) if word.endswith(":") else _only(at) if word.isdecimal() else None)
    marks = [Mark.UNTOLD] * len(cells)
    if picks is not None:
        read = {index % len(cells) for index in picks(cells)}
        marks = [Mark.READ if index in read else Mark.BESIDE for index in range(len(cells))]
    if word == "positions":
        marks = [Mark.UNTOLD if text == _PAD else Mark.READ for text in cells]
    if name and word in {"0", "eos"}:
        cells[0 if word == "0" else cells.index(_LAST)] = name
    return tuple(Cell(text, mark) for text, mark in zip(cells, marks, strict=True))


def _beginning(at: int) -> list[str]:
    """The first positions up to the one after `at`, long stretches left out."""
    if at <= _GRID:
        return [str(index) for index in range(max(at + 2, _GRID))]
    return ["0", "1", _GAP, str(at - 1), str(at)]


Picks = Callable[[list[str]], list[int]]


def _only(at: int) -> Picks:
    return lambda cells: [cells.index(str(at))]


def _from(at: int) -> Picks:
    return lambda cells: list(range(cells.index(str(at)), len(cells)))


def _last_of(cells: list[str]) -> int:
    return cells.index(_LAST)


_PICKS: dict[str, Picks] = {
    "all": lambda cells: list(range(len(cells))),
    "all non-pad": lambda cells: list(range(_last_of(cells) + 1)),
    "last non-pad": lambda cells: [_last_of(cells)],
    "after last non-pad": lambda cells: [_last_of(cells) + 1],
    "eos": lambda cells: [_last_of(cells)],
    "-1": lambda cells: [len(cells) - 1],
}
