"""The head as a picture: one model of what is drawn, one module for each format."""

from collections.abc import Callable

from rich.console import RenderableType

from headscope.core.facts import Report
from headscope.slices.diagram.boxes import Boxes, boxes_text
from headscope.slices.diagram.dot import dot_text
from headscope.slices.diagram.html import html_text
from headscope.slices.diagram.mermaid import mermaid_text
from headscope.slices.diagram.picture import Picture, picture_of
from headscope.slices.diagram.svg import svg_text

PAINTERS: dict[str, Callable[[Picture], str]] = {
    "text": boxes_text,
    "mermaid": mermaid_text,
    "dot": dot_text,
    "svg": svg_text,
    "html": html_text,
}


def diagram_text(report: Report, format: str) -> str:
    """Draws the head of `report` in one of the formats of PAINTERS."""
    return PAINTERS[format](picture_of(report))


def diagram_screen(report: Report) -> RenderableType:
    """Draws the head of `report` for a terminal, as wide as the terminal is."""
    return Boxes(picture_of(report))
