"""The picture in a terminal: boxes below each other, an arrow between them, in characters that draw lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from headscope.core.words.console import POOLING_STYLE, QUIET, STATUS, STRONG, TONE, plain_text
from headscope.core.words.lines import wrapped
from headscope.core.words.safe import safe
from headscope.core.words.tokens import row_text
from headscope.shared.pictures.markup import Tint
from headscope.shared.report.head.tree import LAYOUTS, StageBlock
from headscope.slices.diagram.picture import BoxKind, Edge, Picture, PictureNode, stage_id

_FRAME = len("│  │")
_ASCII = str.maketrans("┌┐└┘─│┬▼▲╎", "++++-|+v^:")
_TINTS = {status.value: style for status, style in STATUS.items()} | {Tint.UNUSED.value: QUIET}


def boxes_text(picture: Picture) -> str:
    """Draws the picture as text without color."""
    return plain_text(Boxes(picture))


@dataclass(frozen=True)
class Boxes:
    """The picture as a Rich renderable, as wide as the terminal up to a width that is easy to read."""

    picture: Picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(min(options.max_width, 96), 20)
        for line in self._draw_lines(width):
            if options.encoding.startswith("utf"):
                yield line
                continue
            # A stream with another encoding, such as ASCII or cp1252, may lack the box characters.
            shown = line.copy()
            shown.plain = line.plain.translate(_ASCII)
            yield shown

    def _draw_lines(self, width: int) -> Iterator[Text]:
        picture = self.picture
        for text, style in (
            (picture.title, STRONG), (picture.subtitle, QUIET), (picture.verdict, TONE[picture.tone]),
        ):  # fmt: skip
            yield from wrapped(Text(text, style), width)
        yield Text()
        titles = {node.id: node.title for node in picture.nodes}
        file, blocks = picture.tree.laid_out(width - _FRAME, LAYOUTS[1:]) if picture.tree else ("", {})
        by_id = {stage_id(index): block for index, block in blocks.items()}
        before = ""
        for node in picture.nodes:
            into = [edge for edge in picture.edges if edge.target == node.id]
            straight = next((edge for edge in into if edge.source == before), None)
            yield from _draw_arrow(straight, width) if straight else ([Text()] if before else [])
            # Only the box directly above gets an arrow: a terminal has no room for wires beside the boxes.
            others = [titles[edge.source] for edge in into if edge is not straight]
            also = wrapped(Text(f"also reads: {', '.join(others)}", QUIET), width - _FRAME) if others else []
            lines = [*_node_lines(node, by_id.get(node.id), file, width - _FRAME), *also]
            yield from _draw_frame(lines, _TINTS.get(node.tint.value, QUIET), width)
            before = node.id


def _draw_arrow(edge: Edge, width: int) -> Iterator[Text]:
    """Draws the way to the next box; a broken line if it was not observed."""
    middle = " " * (width // 2)
    count = f"  {edge.count} tensors" if edge.count > 1 else ""
    if not edge.is_sure:
        yield Text(f"{middle}╎  not sure", QUIET)
    yield Text(f"{middle}▼{count}", QUIET)


def _draw_frame(lines: Sequence[Text], style: str, width: int) -> Iterator[Text]:
    """Draws a frame around the lines of a node."""
    yield Text(f"┌{'─' * (width - 2)}┐", style)
    for line in lines:
        gap = " " * (width - _FRAME - line.cell_len)
        yield Text.assemble(("│ ", style), line, gap, (" │", style))
    yield Text(f"└{'─' * (width - 2)}┘", style)


def _node_lines(node: PictureNode, block: StageBlock | None, file: str, width: int) -> Iterator[Text]:
    """Gives the lines of a node, of a stage as in the tree; `file` is the source file that all stages leave out."""
    if block is not None:
        for part in (block.line, *block.leaves):
            yield from wrapped(part, width)
        return
    source = f"  {safe(file)}" if file and node.kind is BoxKind.HIDDEN else ""
    yield from _place_pair(Text.assemble((node.title, STRONG), (source, QUIET)), Text(node.beside, QUIET), width)
    for left, right in node.pairs:
        yield from _place_pair(Text(left), Text(right, QUIET), width)
    for row in node.rows:
        yield from wrapped(Text(row_text(row)), width)
    if node.mark:
        yield from wrapped(Text(node.mark, POOLING_STYLE), width)
    for line in node.lines:
        yield from wrapped(Text(line, "yellow" if node.kind is BoxKind.GAP else QUIET), width) if line else ()
    for weight in node.weights:
        named = Text.assemble((weight.word, _TINTS.get(weight.tint.value, "")), f"  {weight.name}")
        yield from _place_pair(named, Text(weight.facts, QUIET), width)


def _place_pair(left: Text, right: Text, width: int) -> Iterator[Text]:
    """Puts two texts at the two ends of a line, or below each other if the line is too narrow."""
    room = width - left.cell_len - cell_len(right.plain)
    if right.cell_len and room >= len("  "):
        yield Text.assemble(left, " " * room, right)
        return
    yield from wrapped(left, width)
    if right.cell_len:
        yield from wrapped(right, width)
