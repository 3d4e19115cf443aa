"""The picture as a Mermaid flowchart, as GitHub, GitLab and many editors draw it."""

import re
from collections.abc import Iterator

from headscope.core.words.tokens import row_text
from headscope.shared.pictures.markup import LIGHT
from headscope.slices.diagram.picture import BoxKind, Picture, PictureNode

# Characters that neither Mermaid nor Markdown reads as markup, some of them only between certain neighbors.
_HARMLESS = "|".join(
    (
        r"[A-Za-z0-9 ,=/()\[\]{}']",
        r"(?<=[A-Za-z0-9])[._-](?=[A-Za-z0-9])",
        r"(?<=[ =])-(?=[^ ])",
        r":(?![A-Za-z])",
        r"(?<= )\.\.\.(?= )",
    )
)
_PIECE = re.compile(rf"({_HARMLESS})|.", re.DOTALL)
# Two dollar signs begin a formula and `fa:fa-` an icon, even as numbers: a space of no width keeps them apart.
_BEGINNINGS = re.compile(r"(?<=#36;)(?=#36;)|(?<=#58;)(?=fa)")


def mermaid_text(picture: Picture) -> str:
    """Writes the flowchart."""
    return "\n".join(_flowchart_lines(picture)) + "\n"


def _flowchart_lines(picture: Picture) -> Iterator[str]:
    yield '%%{init: {"flowchart": {"wrappingWidth": 520}}}%%'
    yield "flowchart TD"
    yield f"  accTitle: {_escape_mermaid(picture.title)}"
    yield f"  accDescr: {_escape_mermaid(picture.verdict)}"
    yield f'  about["{_label_text((picture.title, picture.subtitle, picture.verdict))}"]:::plain'
    for node in picture.nodes:
        yield f'  {node.id}["{_label_text(text_lines(node))}"]:::{node.tint.value}'
    above = next((node.id for node in picture.nodes if node.kind is BoxKind.BASE), "")
    # An invisible link, so that the box with the title is above the path and not beside it.
    yield f"  about ~~~ {above}"
    for edge in picture.edges:
        arrow = "-->" if edge.is_sure else "-.->"
        note = f'|"{edge.count} tensors"|' if edge.count > 1 else ""
        yield f"  {edge.source} {arrow}{note} {edge.target}"
    for tint, color in LIGHT.tints.items():
        dashed = ",stroke-dasharray:5 4" if tint.value in {"unused", "unknown"} else ""
        yield f"  classDef {tint.value} fill:{color.fill},stroke:{color.line},color:#1f2530{dashed}"


def text_lines(node: PictureNode) -> Iterator[str]:
    """Gives all text of a box, line by line."""
    yield node.title
    if node.beside:
        yield node.beside
    for pair in node.pairs:
        yield from pair
    for row in node.rows:
        if any(cell.text for cell in row.cells):
            yield row_text(row)
    if node.mark:
        yield node.mark
    yield from node.lines
    for weight in node.weights:
        yield "  ".join(part for part in (f"{weight.word}:", weight.name, weight.size, weight.origin) if part)


def _label_text(texts: "Iterator[str] | tuple[str, ...]") -> str:
    return "<br/>".join(_escape_mermaid(text) for text in texts)


def _escape_mermaid(text: str) -> str:
    """Writes every character that could be markup as its number: `a < b` is `a #60; b`."""
    numbered = _PIECE.sub(lambda found: found[1] or f"#{ord(found[0])};", text)
    return _BEGINNINGS.sub("#8203;", numbered)
