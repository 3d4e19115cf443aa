"""The picture in a terminal: boxes below each other, an arrow between them, in characters that draw lines."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from headscope.render.diagram.picture import BoxKind, Edge, Node, Picture, Tint
from headscope.render.text.console import POOLING, QUIET, STATUS, STRONG, TONE, plain_text
from headscope.render.text.lines import wrapped
from headscope.render.text.tokens import CellRow, row_text

_WIDEST = 96
_NARROWEST = 20
_ASCII = str.maketrans("┌┐└┘─│┬▼▲╎", "++++-|+v^:")
_TINTS = {status.value: style for status, style in STATUS.items()} | {Tint.UNUSED.value: QUIET}


def boxes_text(picture: Picture) -> str:
    """The drawing as text."""
    return plain_text(Boxes(picture))


@dataclass(frozen=True)
class Boxes:
    """The picture as a Rich renderable, as wide as the terminal up to a width that is easy to read."""

    picture: Picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(min(options.max_width, _WIDEST), _NARROWEST)
        for line in self._lines(width):
            if options.encoding.startswith("utf"):
                yield line
                continue
            shown = line.copy()
            shown.plain = line.plain.translate(_ASCII)
            yield shown

    def _lines(self, width: int) -> Iterator[Text]:
        picture = self.picture
        for text, style in (
            (picture.title, STRONG), (picture.subtitle, QUIET), (picture.verdict, TONE[picture.tone]),
        ):  # fmt: skip
            yield from wrapped(Text(text, style), width)
        yield Text()
        titles = {node.id: node.title for node in picture.nodes}
        before = ""
        for node in picture.nodes:
            into = [edge for edge in picture.edges if edge.target == node.id]
            straight = next((edge for edge in into if edge.source == before), None)
            yield from _arrow(straight, width) if straight else ([Text()] if before else [])
            others = [titles[edge.source] for edge in into if edge is not straight]
            yield from _box(node, others, width)
            before = node.id


def _arrow(edge: Edge, width: int) -> Iterator[Text]:
    """The way to the next box; a broken line where it was not observed."""
    middle = " " * (width // 2)
    count = f"  {edge.count} tensors" if edge.count > 1 else ""
    if not edge.is_sure:
        yield Text(f"{middle}╎  not sure", QUIET)
    yield Text(f"{middle}▼{count}", QUIET)


def _box(node: Node, others: list[str], width: int) -> Iterator[Text]:
    """A frame around the lines of a node; `others` are what it reads beside the box above it."""
    style = _TINTS.get(node.tint.value, QUIET)
    yield Text(f"┌{'─' * (width - 2)}┐", style)
    for line in _contents(node, others, width - 4):
        gap = " " * (width - 4 - line.cell_len)
        yield Text.assemble(("│ ", style), line, gap, (" │", style))
    yield Text(f"└{'─' * (width - 2)}┘", style)


def _contents(node: Node, others: list[str], width: int) -> Iterator[Text]:
    yield from _pair(Text(node.title, STRONG), Text(node.beside, QUIET), width)
    for left, right in node.pairs:
        yield from _pair(Text(left), Text(right, QUIET), width)
    for row in node.rows:
        yield from wrapped(_cells(row), width)
    if node.mark:
        yield from wrapped(Text(node.mark, POOLING), width)
    for line in node.lines:
        yield from wrapped(Text(line, "yellow" if node.kind is BoxKind.GAP else QUIET), width) if line else ()
    for weight in node.weights:
        size = weight.size if weight.size == weight.count else f"{weight.size}  {weight.count}"
        named = Text.assemble((weight.word, _TINTS.get(weight.tint.value, "")), f"  {weight.name}")
        yield from _pair(named, Text(f"{size}  {weight.origin}".rstrip(), QUIET), width)
    if others:
        yield from wrapped(Text(f"also reads: {', '.join(others)}", QUIET), width)


def _pair(left: Text, right: Text, width: int) -> Iterator[Text]:
    """Two texts at the two ends of a line, or below each other where that is too narrow."""
    room = width - left.cell_len - cell_len(right.plain)
    if right.cell_len and room >= len("  "):
        yield Text.assemble(left, " " * room, right)
        return
    yield from wrapped(left, width)
    if right.cell_len:
        yield from wrapped(right, width)


def _cells(row: CellRow) -> Text:
    return Text(row_text(row))
