"""The picture in a terminal: whole boxes at every width, and every name in them."""

import io
from dataclasses import replace

import pytest
from reports import REPORTS, bert

from headscope.render.diagram import diagram_screen, diagram_text
from headscope.render.diagram.boxes import Boxes
from headscope.render.diagram.picture import Edge, picture_of
from headscope.render.text.console import open_console, plain_text


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("name", REPORTS)
def test_the_frames_are_closed_at_every_width(name: str, width: int) -> None:
    lines = plain_text(diagram_screen(REPORTS[name]()), width).splitlines()
    framed = [line for line in lines if line[:1] in "┌│└" and line]
    assert framed
    assert {line[0] + line[-1] for line in framed} == {"┌┐", "││", "└┘"}
    assert len({len(line) for line in framed}) == 1
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize("name", REPORTS)
def test_every_node_is_a_box_in_the_order_of_the_picture(name: str) -> None:
    picture = picture_of(REPORTS[name]())
    lines = diagram_text(REPORTS[name](), "text").splitlines()
    titles = [lines[at + 1] for at, line in enumerate(lines) if line.startswith("┌")]
    assert all(line.startswith(f"│ {node.title}") for line, node in zip(titles, picture.nodes, strict=True))


def test_each_box_points_to_the_next() -> None:
    assert diagram_text(bert(), "text").count("▼") == len(picture_of(bert()).edges)


def test_what_skips_a_box_is_named_in_the_box_that_reads_it() -> None:
    picture = picture_of(bert())
    skip = Edge("hidden", picture.nodes[-1].id)
    text = plain_text(Boxes(replace(picture, edges=(*picture.edges, skip))))
    assert "also reads: hidden states" in text


def test_an_edge_that_was_not_observed_is_drawn_as_that() -> None:
    picture = picture_of(bert())
    edges = tuple(replace(edge, is_sure=False) for edge in picture.edges)
    assert plain_text(Boxes(replace(picture, edges=edges))).count("not sure") == len(edges)


def test_a_stream_without_these_characters_gets_ascii() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    open_console(stream).print(Boxes(picture_of(bert())))
    stream.flush()
    assert "+----" in stream.buffer.getvalue().decode("ascii")
