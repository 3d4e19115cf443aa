"""The picture as a Graphviz graph."""

from collections.abc import Iterator

from headscope.render.diagram.markup import LIGHT
from headscope.render.diagram.mermaid import text_lines
from headscope.render.diagram.picture import BoxKind, Edge, Picture, PictureNode
from headscope.render.diagram.svg import tooltip_of

_HIGHEST = 0xFFFF  # Graphviz garbles numbers above
_DASHED = {BoxKind.GAP, BoxKind.UNUSED}


def dot_text(picture: Picture) -> str:
    """The graph in the DOT language."""
    return "\n".join(_lines(picture)) + "\n"


def _lines(picture: Picture) -> Iterator[str]:
    about = _label((picture.title, picture.subtitle, picture.verdict))
    yield "digraph head {"
    yield f"  graph [rankdir=TB, labelloc=t, labeljust=l, fontname=monospace, fontsize=12, label={about}]"
    yield "  node [shape=box, style=filled, fontname=monospace, fontsize=11]"
    yield "  edge [fontname=monospace, fontsize=10]"
    for node in picture.nodes:
        yield f"  {node.id} [{_attributes(node)}]"
    for edge in picture.edges:
        yield f"  {edge.source} -> {edge.target}{_look(edge)}"
    yield "}"


def _attributes(node: PictureNode) -> str:
    color = LIGHT.tints[node.tint]
    style = ', style="filled,dashed"' if node.kind in _DASHED else ""
    texts = f"label={_label(tuple(text_lines(node)))}, tooltip={_quoted(tooltip_of(node))}"
    return f'{texts}, fillcolor="{color.fill}", color="{color.line}"{style}'


def _look(edge: Edge) -> str:
    shown = ["style=dashed"] * (not edge.is_sure) + [f'label="{edge.count} tensors"'] * (edge.count > 1)
    return f" [{', '.join(shown)}]" if shown else ""


def _label(texts: tuple[str, ...]) -> str:
    """Lines, each set to the left."""
    return '"' + "".join(f"{_escaped(text)}\\l" for text in texts) + '"'


def _quoted(text: str) -> str:
    return '"' + "\\n".join(_escaped(line) for line in text.split("\n")) + '"'


def _escaped(text: str) -> str:
    r"""`text` without DOT's escapes (`\N`, `\l`), quotes and HTML entities, which labels understand too."""
    quoted = text.replace("&", "&amp;").replace("<", "&lt;").replace("\\", "\\\\").replace('"', '\\"')
    return "".join(char if char.isascii() or ord(char) > _HIGHEST else f"&#{ord(char)};" for char in quoted)
