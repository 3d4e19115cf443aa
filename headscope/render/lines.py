"""How text is laid out: paragraphs that wrap, and rows in columns; no line ends in spaces."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

_LEAST = 24


@dataclass(frozen=True)
class Paragraph:
    """`body` wrapped to the right of a word at the margin, in a column of `indent` characters.

    A body that must not be wrapped, such as a line of code to be copied, stands alone and may be wider than the screen.
    """

    body: Text
    margin: Text = field(default_factory=Text)
    indent: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.body.no_wrap:
            yield self.body
            return
        if options.max_width - self.indent < _LEAST and self.margin.cell_len:
            yield Paragraph(Text.assemble(self.margin, " ", self.body))
            return
        lines = self.body.wrap(console, max(options.max_width - self.indent, 1), overflow="fold")
        for number, line in enumerate(lines):
            line.rstrip()
            yield Text.assemble(self._lead(number), line, overflow="fold")

    def _lead(self, number: int) -> Text:
        """The margin of a line: the word on the first, spaces on the others."""
        lead = Text() if number else self.margin.copy()
        lead.pad_right(self.indent - lead.cell_len)
        return lead


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
