"""Where the boxes, wires and words of a picture stand: nothing covers anything, and text can be read."""

import xml.etree.ElementTree as ET
from itertools import combinations, pairwise

import pytest

from headscope.core.words.tokens import cell_text
from headscope.shared.pictures import markup
from headscope.shared.pictures.markup import Tint
from headscope.slices.diagram.formats import diagram_text
from headscope.slices.diagram.layout import NARROW, WIDTH, Panel, Words, lay_out, text_width, wrap_text
from headscope.slices.diagram.picture import picture_of
from headscope.slices.diagram.svg import svg_text
from tests.render.diagram.pictures import PICTURES

SVG = "{http://www.w3.org/2000/svg}"
both_widths = pytest.mark.parametrize("width", [WIDTH, NARROW])


def panels_of(name: str, width: int) -> tuple[Panel, ...]:
    return lay_out(picture_of(PICTURES[name]()), width).panels


def width_of(words: Words) -> float:
    return text_width(words.text, words.size)


def left_of(words: Words) -> float:
    return words.x - width_of(words) if words.at_end else words.x


@both_widths
@pytest.mark.parametrize("name", PICTURES)
def test_no_box_stands_on_another_or_leaves_the_picture(name: str, width: int) -> None:
    picture = picture_of(PICTURES[name]())
    root = ET.fromstring(svg_text(picture, width))
    height = float(root.attrib["height"])
    boxes = [group.find(f"{SVG}rect").attrib for group in root.iter(f"{SVG}g")]
    places = [tuple(float(box[key]) for key in ("x", "y", "width", "height")) for box in boxes]
    for (_, y, _, tall), (_, below, _, _) in pairwise(places):
        assert y + tall < below
    assert all(x >= 0 and x + wide <= width and y + tall <= height for x, y, wide, tall in places)
    assert all(words.x + width_of(words) <= width for words in lay_out(picture, width).heading)


@both_widths
@pytest.mark.parametrize("name", PICTURES)
def test_text_stays_inside_its_box_and_lines_stand_apart(name: str, width: int) -> None:
    for panel in panels_of(name, width):
        for words in panel.words:
            left = left_of(words)
            assert left >= panel.x
            assert left + width_of(words) <= panel.x + panel.width
            assert panel.y < words.y < panel.y + panel.height
        for cell in panel.cells:
            assert cell.x + cell.width <= panel.x + panel.width + 0.01
            assert cell.y + cell.height < panel.y + panel.height


@both_widths
@pytest.mark.parametrize("name", PICTURES)
def test_no_two_lines_of_a_box_cover_each_other(name: str, width: int) -> None:
    for panel in panels_of(name, width):
        for one, other in combinations(panel.words, 2):
            first, second = sorted((one, other), key=lambda words: (left_of(words), width_of(words)))
            is_apart = abs(one.y - other.y) >= 15 or left_of(first) + width_of(first) <= left_of(second) + 0.01
            assert is_apart, f"{one.text!r} and {other.text!r}"


@both_widths
@pytest.mark.parametrize("name", PICTURES)
def test_no_name_is_cut(name: str, width: int) -> None:
    for panel in panels_of(name, width):
        shown = "".join("".join(words.text.split()) for words in panel.words)
        for weight in panel.node.weights:
            assert "".join(weight.name.split()) in shown
        for row in panel.node.rows:
            for cell in row.cells:
                assert "".join(cell_text(cell).split()) in shown


@both_widths
@pytest.mark.parametrize("name", PICTURES)
def test_wires_end_at_the_boxes_they_join(name: str, width: int) -> None:
    picture = picture_of(PICTURES[name]())
    scene = lay_out(picture, width)
    assert len(scene.wires) == len(picture.edges)
    for wire in scene.wires:
        assert all(0 < x < width and 0 < y < scene.height for x, y in wire.points)


def test_an_svg_says_what_it_is_to_those_who_do_not_see_it() -> None:
    root = ET.fromstring(diagram_text(PICTURES["bert"](), "svg"))
    assert root.attrib["role"] == "img"
    named = {element.attrib["id"]: element.text for element in root if "id" in element.attrib}
    assert root.attrib["aria-labelledby"].split() == ["title", "desc"]
    assert named["title"] == "Classification head of BertForSequenceClassification"
    assert "new: classifier.weight 3x768" in named["desc"]
    assert "[CLS] token, padding or not" in named["desc"]


def test_a_word_that_fits_on_a_line_is_not_broken() -> None:
    assert wrap_text("found from input_ids", text_width("found from input_", 13), 13) == ("found from", "input_ids")


def luminance(color: str) -> float:
    """The relative luminance of `#rrggbb`, as WCAG defines it."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("tint", Tint)
@pytest.mark.parametrize("palette", [markup.LIGHT, markup.DARK], ids=["light", "dark"])
def test_text_stands_out_from_every_ground(tint: Tint, palette: markup.Palette) -> None:
    color, accent = palette.tints[tint], palette.accent
    for text in (color.text, palette.tints[Tint.PLAIN].text, palette.quiet, accent.text):
        assert contrast(text, color.fill) >= 4.5
    assert contrast(color.text, palette.ground) >= 4.5
    assert contrast(accent.text, accent.fill) >= 4.5


WRAPPED = (
    ("several words that are wrapped", 100),
    ("a.very.long.dotted.name.of.a.parameter", 100),
    ("W" * 100, 100),
    ("日本語" * 20, 100),
    ("", 100),
)


@pytest.mark.parametrize(("text", "width"), WRAPPED)
def test_wrapped_lines_fit_and_lose_nothing(text: str, width: float) -> None:
    lines = wrap_text(text, width, 13)
    assert all(text_width(line, 13) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())
