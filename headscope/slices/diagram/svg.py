"""The picture as one SVG that needs nothing else: light and dark, with tooltips, readable by screen readers."""

from collections.abc import Iterator
from itertools import groupby

from headscope.core.words.tokens import row_text
from headscope.shared.pictures.markup import DARK, LIGHT, Palette, Tint, element, escaped, lines, opening_tag
from headscope.slices.diagram.layout import WIDTH, Panel, Scene, Wire, Words, lay_out, style_of
from headscope.slices.diagram.picture import BoxKind, Picture, PictureNode

FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace"
_RULES = f"""\
text {{ font-family: {FONT}; fill: var(--plain-text); white-space: pre }}
.ground {{ fill: var(--ground) }}
.title, .head {{ font-weight: 600 }}
.quiet {{ fill: var(--quiet) }}
.end {{ text-anchor: end }}
.mark, .cell.read {{ fill: var(--accent-text) }}
.cell.read {{ font-weight: 600 }}
.good {{ fill: var(--loaded-text) }} .warning {{ fill: var(--new-text) }}
.error {{ fill: var(--mismatched-text) }} .note {{ fill: var(--tied-text) }}
.gap {{ fill: var(--unknown-text) }}
.box {{ stroke-width: 1.2 }}
.dashed {{ stroke-dasharray: 5 4 }}
.place {{ fill: var(--plain-fill); stroke: var(--plain-line) }}
.place.read {{ fill: var(--accent-fill); stroke: var(--accent-line); stroke-width: 2 }}
.place.not-told {{ stroke: var(--unknown-line); stroke-dasharray: 3 3 }}
.cell.not-read {{ fill: var(--quiet) }} .cell.not-told {{ fill: var(--unknown-text) }}
.wire {{ fill: none; stroke: var(--quiet); stroke-width: 1.6 }}
.halo {{ fill: none; stroke: var(--ground); stroke-width: 6 }}
.arrow {{ fill: var(--quiet) }}
"""
_ARROW = 5


def svg_text(picture: Picture, width: int = WIDTH) -> str:
    """Writes the SVG document."""
    light, dark = color_variables()
    colors = f"svg {{ {light} }}\n@media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}\n"
    about = (
        element("title", escaped(f"Classification head of {picture.title}"), id="title"),
        element("desc", escaped(_describe_picture(picture)), id="desc"),
        element("style", f"\n{colors}{drawing_rules()}"),
    )
    role = {"role": "img", "aria-labelledby": "title desc"}
    scene = lay_out(picture, width)
    size = {"width": width, "height": scene.height}
    parts = (
        opening_tag(
            "svg", xmlns="http://www.w3.org/2000/svg", **size, viewBox=f"0 0 {width} {scene.height:.0f}", **role
        ),
        *about,
        element("rect", class_="ground", **size),
        *(_text_element(words) for words in scene.heading),
        *_wire_elements(scene),
        *map(_panel_group, scene.panels),
        "</svg>",
    )
    return lines(parts) + "\n"


def _describe_picture(picture: Picture) -> str:
    """Describes the picture in sentences, for screen readers."""
    sentences = [f"{picture.verdict}."]
    for node in picture.nodes:
        words = [f"{node.title}, {node.beside}" if node.beside else node.title]
        words += [f"{left} {right}" for left, right in node.pairs]
        words += [row_text(row) for row in node.rows if any(cell.text for cell in row.cells)]
        words += [node.mark] if node.mark else []
        words += list(node.lines)
        words += [f"{weight.word}: {weight.name} {weight.size}" for weight in node.weights]
        sentences.append("; ".join(words) + ".")
    return " ".join(sentences)


def color_variables() -> tuple[str, str]:
    """Defines the colors that `drawing_rules` uses, on light and on dark ground."""
    return _palette_variables(LIGHT), _palette_variables(DARK)


def _palette_variables(palette: Palette) -> str:
    named = {**{tint.value: color for tint, color in palette.tints.items()}, "accent": palette.accent}
    variables = (
        f"--{name}-{part}: {value}"
        for name, color in named.items()
        for part, value in (("fill", color.fill), ("line", color.line), ("text", color.text))
    )
    return "; ".join((*variables, f"--quiet: {palette.quiet}", f"--ground: {palette.ground}"))


def drawing_rules() -> str:
    """Gives the style of everything in the drawing."""
    tints = "".join(
        f".box.{tint.value} {{ fill: var(--{tint.value}-fill); stroke: var(--{tint.value}-line) }} "
        f".bar.{tint.value} {{ fill: var(--{tint.value}-line) }} "
        f".weight.{tint.value} {{ fill: var(--{tint.value}-text) }}\n"
        for tint in Tint
    )
    return f"{tints}{_RULES}"


def _panel_group(panel: Panel) -> str:
    node = panel.node
    dashed = " dashed" if node.kind in {BoxKind.GAP, BoxKind.UNUSED} else ""
    place = {"x": panel.x, "y": panel.y, "width": panel.width, "height": panel.height}
    inner = lines(
        (
            element("title", escaped(tooltip_of(node))),
            element("rect", class_=f"box {node.tint.value}{dashed}", rx=7, **place),
            *(
                element(
                    "rect",
                    class_=f"place {style_of(placed.cell.mark)}",
                    rx=4,
                    x=placed.x,
                    y=placed.y,
                    width=placed.width,
                    height=placed.height,
                )
                for placed in panel.cells
            ),
            *(
                element("rect", class_=f"bar {swatch.tint.value}", x=swatch.x, y=swatch.y, width=10, height=10, rx=2)
                for swatch in panel.swatches
            ),
            *(_text_element(words) for words in panel.words),
        )
    )
    return element("g", f"\n{inner}\n", id=node.id, class_=f"node {node.kind.value}")


def tooltip_of(node: PictureNode) -> str:
    """Gives the text that a node shows under the pointer."""
    return "\n".join((node.title, *(f"{name}: {value}" for name, value in node.more)))


def _text_element(words: Words) -> str:
    if not words.text:
        return ""
    style = f"{words.style} end" if words.at_end else words.style
    return element("text", escaped(words.text), x=words.x, y=words.y, font_size=words.size, class_=style)


def _wire_elements(scene: Scene) -> Iterator[str]:
    """Draws the wires, those of one source together; a bent one has a halo, so that crossings look like bridges."""
    for _, group in groupby(scene.wires, key=lambda wire: wire.source):
        wires = tuple(group)  # all halos first: a halo must not cut a wire of the same source
        yield from (
            element("polyline", class_="halo", points=_wire_points(wire)) for wire in wires if len(wire.points) > 2
        )
        for wire in wires:
            yield element("polyline", class_="wire" if wire.is_sure else "wire dashed", points=_wire_points(wire))
            yield _arrow_head(wire)
            yield _text_element(wire.note) if wire.note is not None else ""


def _wire_points(wire: Wire) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in wire.points)


def _arrow_head(wire: Wire) -> str:
    """Draws a triangle at the end of a wire, which arrives from above or from the right."""
    (x, y), (before, _) = wire.points[-1], wire.points[-2]
    from_right = before > x
    corners = (
        ((x, y), (x + 2 * _ARROW, y - _ARROW), (x + 2 * _ARROW, y + _ARROW))
        if from_right
        else ((x, y), (x - _ARROW, y - 2 * _ARROW), (x + _ARROW, y - 2 * _ARROW))
    )
    return element("polygon", class_="arrow", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in corners))
