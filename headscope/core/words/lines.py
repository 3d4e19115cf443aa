"""Layout of text: paragraphs that wrap, and rows in columns; no line ends in spaces."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

Laid = TypeVar("Laid")
WIDE = 200
"""The width of a pipe or a file: wide enough for every row, and no line that a log or an editor would cut."""


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
        if options.max_width - self.indent < 24 and self.margin.cell_len:
            # Beside the margin there is too little room: the word is at the beginning of the text.
            yield Paragraph(Text.assemble(self.margin, " ", self.body))
            return
        # In a pipe no name is broken: grep must find it.
        keeps_names = options.max_width == console.width >= WIDE and not console.is_terminal
        for number, line in enumerate(wrapped(self.body, options.max_width - self.indent, keeps_names=keeps_names)):
            line.rstrip()
            lead = Text() if number else self.margin.copy()
            lead.pad_right(self.indent - lead.cell_len)
            whole = Text.assemble(lead, line, overflow="fold")
            if keeps_names:  # Rich would break what is longer than the width
                whole.no_wrap, whole.overflow = True, "ignore"
            yield whole


_WORDS = re.compile(r"\S+|[^\S\n]+|\n")
_UNITS = re.compile(rf"[^\s`]*`[^`\n]+`\S*|{_WORDS.pattern}")
_PIECES = re.compile(r"[^.,/:_-]+[.,/:_-]*|[.,/:_-]+")


def wrapped(text: Text, width: int, *, keeps_names: bool = False) -> list[Text]:
    """Wraps `text` into lines of at most `width` cells, broken at spaces; a command in backticks stays on one line.

    A word that is wider than a line is broken behind a dot, slash, comma or similar, and anywhere only if that is not
    enough: a name stays readable. With `keeps_names` it is never broken.
    """
    width = max(width, 1)
    offsets, start, used = [], 0, 0
    for piece in _fitting_words(text.plain, width, keeps_names=keeps_names):
        size = cell_len(piece)
        if piece == "\n" or (used and used + size > width and not piece.isspace()):
            offsets.append(start + len(piece) if piece == "\n" else start)
            used = 0
        if piece != "\n":
            used += size
        start += len(piece)
    lines = list(text.divide(offsets))
    for line in lines:
        line.rstrip()
    return lines


def _fitting_words(text: str, width: int, *, keeps_names: bool) -> Iterator[str]:
    """Splits into commands in backticks, words and the spaces between them, and what is too wide into parts."""
    units = (_WORDS.findall(unit) if cell_len(unit) > width else [unit] for unit in _UNITS.findall(text))
    for word in chain.from_iterable(units):
        if keeps_names or cell_len(word) <= width or word.isspace():
            yield word
            continue
        for piece in _PIECES.findall(word):
            yield from _cut_to_width(piece, width)


def _cut_to_width(piece: str, width: int) -> Iterator[str]:
    part = ""
    for char in piece:
        if part and cell_len(part + char) > width:
            yield part
            part = ""
        part += char
    yield part


GAP = 2


def align(rows: Sequence[Sequence[Text]], right: frozenset[int] = frozenset()) -> list[Text]:
    """Makes one line of each row; columns are as wide as their widest cell, those in `right` are flush right.

    A column that is empty in every row takes no room.
    """
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    return [_aligned_line(row, widths, right) for row in rows]


def first_fitting(layouts: Iterable[tuple[Laid, Sequence[Text]]], room: int) -> Laid:
    """Chooses the first layout whose lines all fit into `room`; the last one if none does."""
    found: list[Laid] = []
    for laid, lines in layouts:
        found.append(laid)
        if all(line.cell_len <= room for line in lines):
            break
    return found[-1]


@dataclass(frozen=True)
class FittedRows:
    """Rows in aligned columns, each behind its first cell; cells that have no room on a line go below it, whole.

    `inline` is how many cells may follow the first, from roomy to narrow; the first number that fits is taken.
    """

    rows: tuple[tuple[Text, ...], ...]
    inline: tuple[int, ...]
    margin: int
    below: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        layouts = ((count, align([row[1 : count + 1] for row in self.rows])) for count in self.inline)
        count, lines = first_fitting(((laid, laid[1]) for laid in layouts), options.max_width - self.margin)
        for row, line in zip(self.rows, lines, strict=True):
            yield Paragraph(line, row[0], self.margin)
            rest = Text(", ").join(cell for cell in row[count + 1 :] if cell.cell_len)
            if rest.cell_len:
                yield Paragraph(rest, indent=self.below)


def _aligned_line(row: Sequence[Text], widths: Sequence[int], right: frozenset[int]) -> Text:
    line = Text(overflow="fold")
    for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
        if width:
            before, after = (width - cell.cell_len, 0) if number in right else (0, width - cell.cell_len)
            line.append(" " * (GAP if line.cell_len else 0) + " " * before)
            line.append_text(cell)
            line.append(" " * after)
    line.rstrip()
    return line
