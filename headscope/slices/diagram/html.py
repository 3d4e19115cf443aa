"""The picture as one HTML page that loads nothing and runs nothing: boxes that use the width they have, and open.

A box is a `<details>`: a click, or Enter on it, shows what else is known. The boxes are in a grid whose rows grow with
them; wires that skip a box are borders of grid cells beside it, so they follow.
"""

from collections.abc import Iterator

from headscope.core.words.tokens import CellRow, cell_text
from headscope.shared.pictures.markup import Tint, element, escaped, page
from headscope.slices.diagram.layout import lanes_of, style_of
from headscope.slices.diagram.picture import BoxKind, Edge, Picture, PictureNode, Weight
from headscope.slices.diagram.svg import FONT, color_variables

_STRIP = 28
"""The height at the top of each box in which wires arrive and leave, in pixels."""
_ARRIVE, _LEAVE, _APART = 7, 21, 5
_LANE = 18
_ROOM, _CLOSE = 26, 10
_STYLE = f"""\
body {{ margin: 0; padding: 16px; background: var(--ground); color: var(--plain-text); font: 13px/1.5 {FONT} }}
main {{ max-width: 1700px; margin: 0 auto }}
h1 {{ font-size: 18px; margin: 0 }} h1, p {{ overflow-wrap: anywhere }} p {{ margin: 0 0 2px }}
header {{ margin-bottom: 12px }}
.quiet, .side, dt {{ color: var(--quiet) }}
.mark {{ color: var(--accent-text) }} .gap {{ color: var(--unknown-text) }}
.good {{ color: var(--loaded-text) }} .warning {{ color: var(--new-text) }}
.error {{ color: var(--mismatched-text) }} .note {{ color: var(--tied-text) }}
.path {{ display: grid }}
.box {{ grid-column: 1; min-width: 0; border: 1px solid; border-radius: 7px }}
.dashed {{ border-style: dashed }}
.face {{ display: grid; gap: 2px 24px; padding: 7px 34px 8px 12px; position: relative; overflow-wrap: anywhere;
  white-space: pre-wrap }}
.what, .side {{ display: flex; flex-wrap: wrap; gap: 0 16px }}
.title {{ font-weight: 600 }} .line {{ display: block; margin-bottom: 2px }}
.rest {{ min-width: 0 }} .rest:empty, .side:empty {{ display: none }}
summary {{ list-style: none; cursor: pointer; border-radius: 6px }}
summary::-webkit-details-marker {{ display: none }}
summary::after {{ content: "+"; position: absolute; top: 7px; right: 12px; color: var(--quiet) }}
details[open] > summary::after {{ content: "\\2212" }}
summary:hover, details[open] {{ box-shadow: 0 0 0 1px var(--accent-line) }}
summary:focus-visible {{ outline: 2px solid var(--accent-line); outline-offset: 1px }}
.weight {{ display: flex; flex-wrap: wrap; gap: 0 8px; align-items: baseline }}
.weight .quiet {{ margin-left: auto }} .weight span {{ max-width: calc(100% - 18px) }}
.swatch {{ width: 10px; height: 10px; border-radius: 2px }}
.cells {{ display: flex; flex-wrap: wrap; gap: 6px; margin: 3px 0 5px }}
.cell {{ border: 1px solid var(--plain-line); border-radius: 4px; padding: 1px 7px; min-width: 1em; text-align: center;
  background: var(--plain-fill) }}
.cell.read {{ border: 2px solid var(--accent-line); background: var(--accent-fill); color: var(--accent-text);
  font-weight: 600; padding: 0 6px }}
.cell.not-read {{ color: var(--quiet) }}
.cell.not-told {{ border: 1px dashed var(--unknown-line); color: var(--unknown-text) }}
dl {{ display: grid; grid-template-columns: fit-content(30%) minmax(0, 1fr); gap: 2px 16px; margin: 0;
  padding: 8px 12px; border-top: 1px solid var(--plain-line) }}
dd {{ margin: 0; overflow-wrap: anywhere; white-space: pre-wrap }}
.arrow {{ grid-column: 1; justify-self: center; position: relative; border-left: 2px solid var(--quiet);
  margin-bottom: 5px }}
.arrow small {{ position: absolute; left: 14px; top: 2px; white-space: nowrap; color: var(--quiet) }}
.arrow::after, .wire::after {{ content: ""; position: absolute; border: 5px solid transparent }}
.arrow::after {{ left: -6px; bottom: -9px; border-top: 8px solid var(--quiet) }}
.wire {{ position: relative; border: 2px solid var(--quiet); border-left: 0 }}
.wire::after {{ left: -2px; bottom: -6px; border-right: 8px solid var(--quiet); border-left: 0 }}
.wire.dashed, .arrow.dashed {{ border-style: dashed; border-left-width: 2px }} .wire.dashed {{ border-left: 0 }}
@media (min-width: 620px) {{
  .face {{ grid-template-columns: minmax(0, 1fr) auto; padding-right: 40px }}
  .side {{ text-align: right }} .what, .side {{ flex-direction: column }} .rest {{ grid-column: 1 / 3 }}
}}
@media (min-width: 960px) {{
  .face {{ grid-template-columns: minmax(0, 11fr) minmax(0, 20fr) minmax(0, 14fr) }}
  .box:not(.stage) .face {{ grid-template-columns: minmax(0, 11fr) minmax(0, 23fr) minmax(0, 11fr) }}
  .rest {{ grid-column: 2; grid-row: 1 }} .side {{ grid-column: 3; grid-row: 1 }}
}}
@media print {{ details::details-content {{ content-visibility: visible; block-size: auto }} }}
"""
_HINT = "Click a box, or reach it with the Tab key and press Enter, to see what is known of it."


def html_text(picture: Picture) -> str:
    """Writes the page."""
    order = {node.id: number for number, node in enumerate(picture.nodes)}
    lanes = lanes_of(picture.edges, order)
    # Three grid rows per box: its strip, the rest of it, and the room below it, higher if an arrow is there.
    straight = {order[edge.source] for edge in picture.edges if order[edge.target] - order[edge.source] == 1}
    rows = [f"{_STRIP}px auto {_ROOM if at in straight else _CLOSE}px" for at in range(len(picture.nodes))]
    columns = f"minmax(0, 1fr) repeat({max(lanes.values()) + 1}, {_LANE}px)" if lanes else "minmax(0, 1fr)"
    body = (
        "<main>",
        "<header>",
        element("h1", escaped(picture.title)),
        element("p", escaped(picture.subtitle), class_="quiet"),
        element("p", escaped(picture.verdict), class_=picture.tone.value),
        *(element("p", escaped(notice), class_="quiet") for notice in picture.notices),
        element("p", _HINT, class_="quiet hint"),
        "</header>",
        f'<div class="path" style="grid-template: {" ".join(rows)} / {columns}">',
        *(_box_element(node, order[node.id]) for node in picture.nodes),
        *_wire_elements(picture.edges, lanes, order),
        "</div>",
        "</main>",
    )
    return page(f"Classification head of {picture.title}", _color_rules() + _STYLE, body)


def _color_rules() -> str:
    light, dark = color_variables()
    tints = "".join(
        f".box.{tint.value} {{ background: var(--{tint.value}-fill); border-color: var(--{tint.value}-line) }} "
        f".swatch.{tint.value} {{ background: var(--{tint.value}-line) }} "
        f".weight.{tint.value} {{ color: var(--{tint.value}-text) }}\n"
        for tint in Tint
    )
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{tints}"
    )


def _box_element(node: PictureNode, number: int) -> str:
    """Writes a box as `<details>`; as a plain `<div>` if its face shows everything that is known."""
    dashed = " dashed" if node.kind in {BoxKind.GAP, BoxKind.UNUSED} else ""
    shared = {
        "id": node.id,
        "class_": f"box {node.kind.value} {node.tint.value}{dashed}",
        "style": f"grid-row: {3 * number + 1} / span 2",
    }
    shown = {text for pair in node.pairs for text in pair}  # on the face of the box
    more = ((name, value) for name, value in node.more if value not in shown)
    facts = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>" for name, value in more)
    if not facts:
        return element("div", element("div", _face_markup(node), class_="face"), **shared)
    return element("details", element("summary", _face_markup(node), class_="face") + element("dl", facts), **shared)


def _face_markup(node: PictureNode) -> str:
    """Writes the face of a box: what it is, what belongs to it, and at its side its source and its shapes."""
    left, right = tuple(zip(*node.pairs, strict=True)) if node.kind is BoxKind.STAGE else ((), ())
    what = (_span_element(node.title, "title"), *(_span_element(text) for text in left))
    side = (_span_element(node.beside), *(_span_element(text) for text in right))
    others = node.pairs if node.kind is not BoxKind.STAGE else ()
    rest = (
        *(_row_markup(row) for row in node.rows),
        _span_element(node.mark, "line mark"),
        *(f'<span class="line">{escaped(one)}  {_span_element(other, "quiet")}</span>' for one, other in others),
        *(_span_element(line, "line gap" if node.kind is BoxKind.GAP else "line quiet") for line in node.lines),
        *(_weight_markup(weight) for weight in node.weights),
    )
    parts = (("what", what), ("side", side), ("rest", rest))
    return "".join(f'<span class="{name}">{"".join(content)}</span>' for name, content in parts)


def _span_element(text: str, kind: str = "") -> str:
    """Writes text as a span, no text as nothing. Blocks such as `<p>` are not valid inside a `<summary>`."""
    return "" if not text else element("span", escaped(text), **({"class_": kind} if kind else {}))


def _row_markup(row: CellRow) -> str:
    cells = "".join(_span_element(cell_text(cell), f"cell {style_of(cell.mark)}") for cell in row.cells)
    return f'{_span_element(row.caption, "line quiet")}<span class="cells">{cells}</span>'


def _weight_markup(weight: Weight) -> str:
    parts = (
        f'<i class="swatch {weight.tint.value}"></i>',
        _span_element(f"{weight.word}  {weight.name}"),
        _span_element(weight.facts, "quiet"),
    )
    return element("span", "".join(parts), class_=f"weight {weight.tint.value}")


def _wire_elements(edges: tuple[Edge, ...], lanes: dict[str, int], order: dict[str, int]) -> Iterator[str]:
    """Draws arrows between neighboring boxes, and wires beside the boxes for edges that skip one."""
    for edge in edges:
        source, target = order[edge.source], order[edge.target]
        dashed = "" if edge.is_sure else " dashed"
        if target - source == 1:
            note = f"<small>{edge.count} tensors</small>" if edge.count > 1 else ""
            yield f'<div class="arrow{dashed}" style="grid-row: {3 * source + 3}">{note}</div>'
            continue
        # Wires from several sources arrive at different heights of a box, so that none hides another.
        rivals = sorted({lanes[one.source] for one in edges if one.target == edge.target and one.source in lanes})
        arrive = _ARRIVE + _APART * rivals.index(lanes[edge.source])
        place = f"grid-row: {3 * source + 1} / {3 * target + 2}; grid-column: 2 / {lanes[edge.source] + 3}"
        inside = f"margin: {_LEAVE}px {_LANE // 3}px {_STRIP - arrive}px 0"
        yield f'<div class="wire{dashed}" style="{place}; {inside}"></div>'
