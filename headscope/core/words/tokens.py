"""Rows of cells for the hidden states: which positions the class scores read."""

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from headscope.core.facts import GapTopic, Head, PoolingKind, PoolingPart, Positions, Report, Where
from headscope.core.facts.heads.tasks import TEXT_TASKS
from headscope.core.words.safe import safe


class Mark(StrEnum):
    """Knowledge of one position: read by the classifier, not read, or not told."""

    READ = "read"
    BESIDE = "not read"
    UNTOLD = "not told"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Cell:
    """One position, or one label."""

    text: str
    mark: Mark = Mark.PLAIN
    is_virtual: bool = False


@dataclass(frozen=True, slots=True)
class CellRow:
    """Cells side by side, with a word before them where there are several rows."""

    cells: tuple[Cell, ...]
    caption: str = ""


_FIRST, _LAST, _PAD, _GAP = "first", "last", "pad", "..."
_GRID = 3
_SIGNS = {Mark.READ: "\N{BLACK UP-POINTING TRIANGLE} ", Mark.UNTOLD: "? "}


def token_rows(report: Report, head: Head) -> tuple[CellRow, ...]:
    """Draws the positions of the hidden states, marked if the pooling reads them; one row for each of several parts.

    Padding is drawn on the side on which the family's tokenizer pads. Positions that are not known are marked as that.
    """
    pooling = head.pooling
    is_sure = is_pooling_known(report)
    side = _padding_side(report, head)
    if pooling.kind is PoolingKind.SPATIAL_MEAN:
        mark = Mark.READ if is_sure else Mark.UNTOLD
        return tuple(CellRow((Cell("", mark),) * (2 * _GRID)) for _ in range(_GRID))
    ahead = head.virtual_tokens
    if pooling.kind is not PoolingKind.CONCAT:
        return (CellRow(_marked_cells(pooling.parts[0] if is_sure and pooling.parts else None, side, ahead)),)
    rows = (
        CellRow(_marked_cells(part if is_sure else None, side, ahead), f"part {number}: {safe(words)}")
        for number, (part, words) in enumerate(zip(pooling.parts, pooling.tokens, strict=True), 1)
    )
    return tuple(rows)


def is_pooling_known(report: Report) -> bool:
    """True if no gap leaves open which positions are read."""
    return all(gap.topic not in {GapTopic.POOLING, GapTopic.HEAD_PATH} for gap in report.not_determined)


def legend_of(rows: tuple[CellRow, ...]) -> str:
    """Explains the signs in the cells, and on which side padding is drawn."""
    signs = [f"{_SIGNS[mark]}{meaning}" for mark, meaning in meanings_of(rows).items()]
    signs += [VIRTUAL] if has_virtual(rows) else []
    ends = {at for row in rows if row.cells for at in (0, -1) if row.cells[at].text == _PAD}
    side = {frozenset({0}): "padding on the left", frozenset({-1}): "padding on the right"}.get(frozenset(ends), "")
    return "; ".join(filter(None, (", ".join(signs), side)))


def meanings_of(rows: tuple[CellRow, ...]) -> dict[Mark, str]:
    """Says what the marks in the cells mean; those without a sign are left out."""
    marks = {cell.mark for row in rows for cell in row.cells}
    meanings = {Mark.READ: "= read by the classifier", Mark.UNTOLD: "not known whether read"}
    return {mark: words for mark, words in meanings.items() if mark in marks}


VIRTUAL = "v: virtual tokens of the adapter"


def has_virtual(rows: tuple[CellRow, ...]) -> bool:
    """True if some of the cells are virtual tokens."""
    return any(cell.is_virtual for row in rows for cell in row.cells)


def cell_text(cell: Cell) -> str:
    """Writes a cell with the sign of its mark, for readers who don't see colors."""
    return f"{_SIGNS.get(cell.mark, '')}{cell.text}".rstrip()


def row_text(row: CellRow) -> str:
    """Writes a row as text."""
    cells = " | ".join(map(cell_text, row.cells))
    return f"{row.caption}: {cells}" if row.caption else cells


def _padding_side(report: Report, head: Head) -> str:
    """Gives the side of the padding, `left` or `right`, if inputs of different lengths are padded; otherwise ""."""
    by_mask = any(part.positions.depends_on_padding for part in head.pooling.parts)
    is_text = report.model.task in TEXT_TASKS and "sequence" in head.hidden_shape
    return (report.model.padding_side or "right") if by_mask or is_text else ""


def _marked_cells(part: PoolingPart | None, side: str, ahead: int) -> tuple[Cell, ...]:
    """Makes the cells of a row and marks those that the part reads; all are unknown if it does not say.

    The first `ahead` positions are virtual tokens.
    """
    positions = None if part is None or part.kind is PoolingKind.OTHER else part.positions
    texts = _cell_texts(positions, side, ahead)
    read = None if positions is None else _read_cells(positions, texts)
    marks = [Mark.UNTOLD if read is None else Mark.READ if at in read else Mark.BESIDE for at in range(len(texts))]
    if ahead:
        virtual = [text.isdecimal() and int(text) < ahead for text in texts]
        named = (f"v{text}" if own else text for text, own in zip(texts, virtual, strict=True))
        return tuple(Cell(*each) for each in zip(named, marks, virtual, strict=True))
    if part is not None and part.kind is PoolingKind.WEIGHTED:  # whether the weights of padding are zero is not known
        marks = [Mark.UNTOLD if text == _PAD else mark for text, mark in zip(texts, marks, strict=True)]
    if positions is not None and read is not None and (positions.token or positions.parameter) and positions.is_one:
        texts[min(read)] = safe(positions.text)
    return tuple(Cell(text, mark) for text, mark in zip(texts, marks, strict=True))


def _cell_texts(positions: Positions | None, side: str, ahead: int) -> list[str]:
    """Gives the texts of the cells of a row, with padding on its side.

    A fixed index counts padding too: on the left it is drawn without padding, but for the first and the last cell.
    """
    at = (positions.index or 0) if positions is not None and positions.where in _COUNTED else 0
    if ahead:
        shown = sorted({0, ahead - 1, ahead, max(at, 0)})
        pairs = pairwise(shown)
        cells = ["0", *(text for one, two in pairs for text in ([_GAP] if two > one + 1 else []) + [str(two)])]
        return [*cells, _GAP, _LAST, *([_PAD, _PAD] if side == "right" else [])]
    if side == "left" and at in (0, -1):
        return [_PAD, _PAD, _FIRST, _GAP, _LAST]
    padding = [_PAD, _PAD] if side == "right" else []
    # The first positions up to the one after `at`, without long stretches.
    at = max(at, 0)
    near = ["0", "1", _GAP, str(at - 1), str(at)] if at > _GRID else map(str, range(max(at + 2, _GRID)))
    return [*near, _GAP, _LAST, *padding]


_COUNTED = {Where.INDEX, Where.RANGE}


def _read_cells(positions: Positions, texts: list[str]) -> set[int] | None:  # noqa: PLR0911 - one line a rule
    """Finds the cells that are read; None if the positions have no cells."""
    every = range(len(texts))
    last, real = texts.index(_LAST), {at for at in every if texts[at] != _PAD}
    match positions.where:
        case Where.ALL | Where.EACH:
            return set(every)
        case Where.NON_PAD:
            return real
        case Where.EOS | Where.LAST_NON_PAD:
            return {last}
        case Where.FIRST_NON_PAD:
            return {min(real)}
        case Where.AFTER_LAST_NON_PAD:
            return {min(last + 1, len(texts) - 1)}
        case Where.INDEX:
            return _cell_of_index(positions.index or 0, texts)
        case Where.RANGE if positions.stop is None:
            start = _cell_of_index(positions.index or 0, texts)
            return None if start is None else {at for at in every if at >= min(start)}
    return None


def _cell_of_index(index: int, texts: list[str]) -> set[int] | None:
    if index in (0, -1):
        return {index % len(texts)}
    return {texts.index(str(index))} if str(index) in texts else None
