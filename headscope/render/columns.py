"""Rows of cells in aligned columns, with no line that ends in spaces."""

from collections.abc import Sequence

from rich.text import Text

GAP = 2


def align(rows: Sequence[Sequence[Text]], right: frozenset[int] = frozenset()) -> list[Text]:
    """One line for each row; columns are as wide as their widest cell, those in `right` end together.

    A column that is empty in every row takes no room.
    """
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    return [_line(row, widths, right) for row in rows]


def _line(row: Sequence[Text], widths: Sequence[int], right: frozenset[int]) -> Text:
    line = Text(overflow="fold")
    for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
        if width:
            before, after = (width - cell.cell_len, 0) if number in right else (0, width - cell.cell_len)
            line.append(" " * (GAP if line.cell_len else 0) + " " * before)
            line.append_text(cell)
            line.append(" " * after)
    line.rstrip()
    return line
