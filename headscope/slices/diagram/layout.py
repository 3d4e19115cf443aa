"""The places of everything: boxes below each other, text inside them, wires between them, in pixels."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rich.cells import cell_len

from headscope.core.words.tokens import Cell, CellRow, Mark, cell_text
from headscope.shared.pictures.markup import Tint
from headscope.slices.diagram.picture import BoxKind, Edge, Picture, PictureNode

_WORDS = re.compile(r"\s+|\S+")
_PIECES = re.compile(r"[^._/,:-]+?(?:[._/,:-]+|(?<=[a-z])(?=[A-Z])|$)|[._/,:-]+")


def text_width(text: str, size: float) -> float:
    """Estimates the width of `text` in pixels at a font size; which font the viewer has is not known."""
    return size * _relative_width(text)


@lru_cache(10_000)
def _relative_width(text: str) -> float:
    # Beyond ASCII the viewer may take another font, whose letters can be wider.
    return sum(0.61 if char.isascii() else 1.4 if cell_len(char) > 1 else 0.8 for char in text)


def wrap_text(text: str, width: float, size: float) -> tuple[str, ...]:
    """Wraps `text` into lines of at most `width`: at spaces, after a dot or slash, before a capital, or anywhere."""
    lines, line = [], ""
    for piece in _fitting_pieces(text, width, size):
        if line and text_width((line + piece).rstrip(), size) > width:
            lines.append(line.rstrip())
            line = ""
        line = line + piece if line or not piece.isspace() else ""
    return (*lines, line.rstrip()) if line.strip() or not lines else tuple(lines)


def _fitting_pieces(text: str, width: float, size: float) -> Iterator[str]:
    """Splits into words and the spaces between them, and a word that is too wide into parts."""
    for word in _WORDS.findall(text):
        if text_width(word, size) <= width:
            yield word
            continue
        for piece in _PIECES.findall(word):
            yield from _cut_to_fit(piece, width, size)


def _cut_to_fit(piece: str, width: float, size: float) -> Iterator[str]:
    part = ""
    for char in piece:
        if part and text_width(part + char, size) > width:
            yield part
            part = ""
        part += char
    yield part


WIDTH = 720
NARROW = 360
"""The width for a phone: the text keeps its size, and lines break earlier."""
MARGIN = 16
PADDING = 12
LINE = 19
SIZE = 13
TITLE_SIZE = 18
ROOM = 28
CLOSE = 12
LANE = 16
CELL = 26
CELL_GAP = 6
_CELL_SIDES = 14
_ENTER = 12


@dataclass(frozen=True, slots=True)
class Words:
    """One line of text: `x`, `y` is where it begins on its baseline, or ends; `style` names how it looks."""

    text: str
    x: float
    y: float
    style: str
    size: float = SIZE
    at_end: bool = False


@dataclass(frozen=True, slots=True)
class PlacedCell:
    """One cell of a row."""

    cell: Cell
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Swatch:
    """A square in the color of a weight's status, beside its word."""

    tint: Tint
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Panel:
    """One node with its place."""

    node: PictureNode
    x: float
    y: float
    width: float
    height: float
    words: tuple[Words, ...]
    cells: tuple[PlacedCell, ...] = ()
    swatches: tuple[Swatch, ...] = ()


@dataclass(frozen=True, slots=True)
class Wire:
    """The line of an edge, with an arrow at its end. `note` says how many tensors go along it, if several."""

    points: tuple[tuple[float, float], ...]
    is_sure: bool
    source: str
    note: Words | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """The whole drawing, with every place in pixels."""

    height: float
    heading: tuple[Words, ...]
    panels: tuple[Panel, ...]
    wires: tuple[Wire, ...]


def lay_out(picture: Picture, scene_width: int) -> Scene:
    """Places everything of `picture` in a scene that is `scene_width` wide and as high as it needs to be."""
    order = {node.id: number for number, node in enumerate(picture.nodes)}
    lanes = lanes_of(picture.edges, order)
    width = scene_width - 2 * MARGIN - LANE * (max(lanes.values(), default=-1) + 1)
    heading, y = _place_heading(picture, scene_width - 2 * MARGIN)
    straight = {(edge.source, edge.target) for edge in picture.edges}
    panels: list[Panel] = []
    for node in picture.nodes:
        if panels:
            y += ROOM if (panels[-1].node.id, node.id) in straight else CLOSE
        panels.append(_place_panel(node, MARGIN, y, width))
        y += panels[-1].height
    by_id = {panel.node.id: panel for panel in panels}
    wires = tuple(_route_wires(picture.edges, by_id, lanes, order))
    return Scene(y + MARGIN, heading, tuple(panels), wires)


def lanes_of(edges: Sequence[Edge], order: dict[str, int]) -> dict[str, int]:
    """Assigns a lane beside the boxes to each node whose values skip a box; all wires of one node share it."""
    spans: dict[str, int] = defaultdict(int)
    for edge in edges:
        if order[edge.target] - order[edge.source] > 1:
            spans[edge.source] = max(spans[edge.source], order[edge.target])
    lanes: dict[str, int] = {}
    # Short spans first: they get the inner lanes, and long wires go around them.
    for source in sorted(spans, key=lambda name: (spans[name] - order[name], order[name])):
        taken = {
            lane for other, lane in lanes.items() if order[other] <= spans[source] and order[source] <= spans[other]
        }
        lanes[source] = next(lane for lane in range(len(spans)) if lane not in taken)
    return lanes


def _place_heading(picture: Picture, width: float) -> tuple[tuple[Words, ...], float]:
    words: list[Words] = []
    y = float(MARGIN)
    for text, style, size in (
        (picture.title, "title", TITLE_SIZE),
        (picture.subtitle, "quiet", SIZE),
        (picture.verdict, f"verdict {picture.tone.value}", SIZE),
    ):
        for line in wrap_text(text, width, size):
            y += size + 6
            words.append(Words(line, MARGIN, y, style, size))
    return tuple(words), y + ROOM / 2


def _place_panel(node: PictureNode, x: float, y: float, width: float) -> Panel:
    pen = _Pen(x + PADDING, y + PADDING / 2, width - 2 * PADDING)
    pen.pair(node.title, node.beside, "head" if node.kind is not BoxKind.UNUSED else "quiet")
    for left, right in node.pairs:
        pen.pair(left, right, "name" if node.kind is BoxKind.STAGE else "quiet")
    for row in node.rows:
        pen.row(row)
    if node.mark:
        pen.text(node.mark, "mark")
    for line in node.lines:
        pen.text(line, "gap" if node.kind is BoxKind.GAP else "quiet")
    for weight in node.weights:
        pen.weight(weight.tint, f"{weight.word}  {weight.name}", weight.facts)
    return Panel(node, x, y, width, pen.y + PADDING - y, tuple(pen.words), tuple(pen.cells), tuple(pen.swatches))


class _Pen:
    """A pen that writes one box, line after line; `y` is the baseline of the last line."""

    def __init__(self, x: float, y: float, width: float) -> None:
        self.x, self.y, self.width = x, y, width
        self.words: list[Words] = []
        self.cells: list[PlacedCell] = []
        self.swatches: list[Swatch] = []

    def text(self, text: str, style: str, indent: float = 0) -> None:
        for line in wrap_text(text, self.width - indent, SIZE):
            self._place_line(line, style, indent)

    def pair(self, left: str, right: str, style: str, indent: float = 0) -> None:
        """Writes two texts at the two ends of a line, or below each other if they are too long for one."""
        room = self.width - indent - text_width(left, SIZE) - text_width("   ", SIZE)
        if right and text_width(right, SIZE) <= room:
            self._place_line(left, style, indent)
            self.words.append(Words(right, self.x + self.width, self.y, "quiet", at_end=True))
            return
        self.text(left, style, indent)
        if right:
            self.text(right, "quiet", indent + (20 if indent else 0))

    def weight(self, tint: Tint, left: str, right: str) -> None:
        self.swatches.append(Swatch(tint, self.x, self.y + LINE - 10))
        self.pair(left, right, f"weight {tint.value}", 16)

    def row(self, row: CellRow) -> None:
        if row.caption:
            self.text(row.caption, "quiet")
        x, y, height = self.x, self.y + 8, 0.0
        for cell in row.cells:
            lines = wrap_text(cell_text(cell), self.width - _CELL_SIDES, SIZE)
            width = max(max(text_width(line, SIZE) for line in lines) + _CELL_SIDES, CELL + 10)
            if x > self.x and x + width > self.x + self.width:
                x, y, height = self.x, y + height + CELL_GAP, 0.0
            self._place_cell(PlacedCell(cell, x, y, width, CELL + (len(lines) - 1) * LINE), lines)
            x, height = x + width + CELL_GAP, max(height, self.cells[-1].height)
        self.y = y + height + 2

    def _place_cell(self, placed: PlacedCell, lines: tuple[str, ...]) -> None:
        self.cells.append(placed)
        for number, line in enumerate(lines):
            start = placed.x + (placed.width - text_width(line, SIZE)) / 2
            style = f"cell {style_of(placed.cell.mark)}"
            self.words.append(Words(line, start, placed.y + 18 + number * LINE, style))

    def _place_line(self, text: str, style: str, indent: float) -> None:
        self.y += LINE
        self.words.append(Words(text, self.x + indent, self.y, style))


def style_of(mark: Mark) -> str:
    """Turns a mark into the name of its style."""
    return mark.value.replace(" ", "-")


def _route_wires(
    edges: Sequence[Edge], panels: dict[str, Panel], lanes: dict[str, int], order: dict[str, int]
) -> Iterator[Wire]:
    """Routes straight wires to the next box, and all others beside the boxes, where outer ones arrive lower."""
    bent = [edge for edge in edges if order[edge.target] - order[edge.source] > 1]
    for edge in edges:
        if edge not in bent:
            source, target = panels[edge.source], panels[edge.target]
            x = source.x + source.width / 2
            note = Words(f"{edge.count} tensors", x + 10, target.y - 9, "quiet", 11) if edge.count > 1 else None
            yield Wire(((x, source.y + source.height), (x, target.y)), edge.is_sure, edge.source, note)
    for edge in sorted(bent, key=lambda edge: (order[edge.source], order[edge.target])):
        rivals = sorted(lanes[other.source] for other in bent if other.target == edge.target)
        source, target = panels[edge.source], panels[edge.target]
        step = min(9, (target.height - 3 * _ENTER) / len(rivals))
        enter = target.y + _ENTER + step * rivals.index(lanes[edge.source])
        leave, right = source.y + source.height - _ENTER, source.x + source.width
        x = right + LANE * (lanes[edge.source] + 0.75)
        yield Wire(((right, leave), (x, leave), (x, enter), (right, enter)), edge.is_sure, edge.source)
