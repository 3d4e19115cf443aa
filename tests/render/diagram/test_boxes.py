"""The picture in a terminal: whole boxes at every width, and every name in them."""

import re
from dataclasses import replace

import pytest
from reports import REPORTS, bert

from headscope.core.words.console import plain_text
from headscope.core.words.lines import wrapped
from headscope.facts import Gap
from headscope.shared.report.head.tree import LAYOUTS
from headscope.slices.diagram.boxes import Boxes
from headscope.slices.diagram.formats import diagram_screen, diagram_text
from headscope.slices.diagram.picture import Edge, picture_of
from headscope.slices.inspect.screen import inspect_screen
from tests.render.diagram.pictures import PICTURES
from tests.render.screens.report_screens import printed


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
    assert b"+----" in printed(Boxes(picture_of(bert())), "ascii")


@pytest.mark.parametrize("width", [40, 60, 80, 96])
@pytest.mark.parametrize("name", PICTURES)
def test_a_box_says_of_a_stage_the_lines_of_the_tree(name: str, width: int) -> None:
    picture = picture_of(PICTURES[name]())
    if picture.tree is None:
        return
    inner = width - len("│  │")
    boxes = "\n".join(line.strip("│ ") for line in plain_text(Boxes(picture), width).splitlines())
    _, blocks = picture.tree.laid_out(inner, LAYOUTS[1:])
    for block in blocks.values():
        lines = [line.plain.strip() for part in (block.line, *block.leaves) for line in wrapped(part, inner)]
        assert "\n".join(lines) in boxes


def test_stages_line_up_from_box_to_box_and_name_their_file_once() -> None:
    text = plain_text(Boxes(picture_of(bert())), 80)
    assert len({line.index("->") for line in text.splitlines() if "->" in line}) == 1
    assert text.count("modeling_bert.py") == 1


def test_neither_tree_nor_boxes_mark_a_pooling_that_is_not_determined() -> None:
    report = replace(bert(), not_determined=(Gap("pooling", "why"),))
    for screen in (diagram_screen(report), inspect_screen(report), inspect_screen(report, details=True)):
        path = plain_text(screen).partition("logits")[0]
        assert "pooling: first" not in path
        assert not re.search(r"select.*pooling", path)
    assert re.search(r"select.*pooling", plain_text(inspect_screen(bert())))
