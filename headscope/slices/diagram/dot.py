"""The picture as a Graphviz graph."""

from collections.abc import Iterator

from headscope.shared.pictures.markup import LIGHT
from headscope.slices.diagram.mermaid import text_lines
from headscope.slices.diagram.picture import BoxKind, Picture, PictureNode
from headscope.slices.diagram.svg import tooltip_of

_HIGHEST = 0xFFFF  # Graphviz garbles numbers above
_DASHED = {BoxKind.GAP, BoxKind.UNUSED}


def dot_text(picture: Picture) -> str:
    """Writes the picture in the DOT language."""
    return "\n".join(_graph_lines(picture)) + "\n"


def _graph_lines(picture: Picture) -> Iterator[str]:
    about = _quote_label((picture.title, picture.subtitle, picture.verdict))
    yield "digraph head {"
    yield f"  graph [rankdir=TB, labelloc=t, labeljust=l, fontname=monospace, fontsize=12, label={about}]"
    yield "  node [shape=box, style=filled, fontname=monospace, fontsize=11]"
    yield "  edge [fontname=monospace, fontsize=10]"
    for node in picture.nodes:
        yield f"  {node.id} [{_node_attributes(node)}]"
    for edge in picture.edges:
        looks = ["style=dashed"] * (not edge.is_sure) + [f'label="{edge.count} tensors"'] * (edge.count > 1)
        attributes = f" [{', '.join(looks)}]" if looks else ""
        yield f"  {edge.source} -> {edge.target}{attributes}"
    yield "}"


def _node_attributes(node: PictureNode) -> str:
    color = LIGHT.tints[node.tint]
    style = ', style="filled,dashed"' if node.kind in _DASHED else ""
    tooltip = "\\n".join(_escape_dot(line) for line in tooltip_of(node).split("\n"))
    texts = f'label={_quote_label(tuple(text_lines(node)))}, tooltip="{tooltip}"'
    return f'{texts}, fillcolor="{color.fill}", color="{color.line}"{style}'


def _quote_label(texts: tuple[str, ...]) -> str:
    """Quotes lines for a label, each set to the left: that is what DOT's `\\l` does to the line before it."""
    return '"' + "".join(f"{_escape_dot(text)}\\l" for text in texts) + '"'


def _escape_dot(text: str) -> str:
    r"""Escapes what DOT would read in `text`: its escapes (`\N`, `\l`), quotes, and HTML entities."""
    quoted = text.replace("&", "&amp;").replace("<", "&lt;").replace("\\", "\\\\").replace('"', '\\"')
    return "".join(char if char.isascii() or ord(char) > _HIGHEST else f"&#{ord(char)};" for char in quoted)
