"""Pictures of heads: whole files, what they say, what hostile names do to them, and what real parsers make of them."""

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from difflib import unified_diff
from functools import cache
from pathlib import Path

import pytest
from reports import REPORTS, a_head, bert, gpt2, one_part, with_head, with_model

from headscope.core.words.console import plain_text
from headscope.core.words.tokens import Mark, row_text
from headscope.facts import CheckpointKind, Gap, ParameterStatus, Pooling, PoolingKind, Positions, Report, Task, Where
from headscope.shared.pictures.markup import Tint
from headscope.slices.diagram.formats import PAINTERS, diagram_text
from headscope.slices.diagram.picture import BoxKind, picture_of
from headscope.slices.inspect.screen import inspect_screen
from tests.render.diagram.pictures import PICTURES, at, branched, evil, many_labels, without_head

GOLDEN = Path(__file__).parent / "golden"
PARSER = Path(__file__).with_name("parse_mermaid.mjs")
STYLE = re.compile(r"^<style>\n.*?^</style>\n", re.DOTALL | re.MULTILINE)
"""Golden files of pictures leave it out: it is the same in all."""


@pytest.mark.parametrize(
    ("name", "format"),
    [
        (name, format)
        for name in ("bert", "gpt2", "distilbert-mismatch", "hostile", "branched")
        for format in PAINTERS
        if format != "html" and (name, format) != ("hostile", "svg")
    ],
)
def test_a_picture_is_as_its_golden_file(name: str, format: str, same_as_golden: Callable[[Path, str], bool]) -> None:
    text = STYLE.sub("", diagram_text(PICTURES[name](), format))
    assert same_as_golden(GOLDEN / f"diagram-{name}.{format}", text)


def test_hostile_names_change_an_svg_only_where_they_stand(same_as_golden: Callable[[Path, str], bool]) -> None:
    names = ("bert", "hostile")
    texts = (STYLE.sub("", diagram_text(PICTURES[name](), "svg")).splitlines(keepends=True) for name in names)
    assert same_as_golden(GOLDEN / "diagram-hostile.svg.diff", "".join(unified_diff(*texts, *names, n=0)))


@pytest.mark.parametrize("name", PICTURES)
def test_every_svg_has_the_same_style(name: str, same_as_golden: Callable[[Path, str], bool]) -> None:
    [style] = STYLE.findall(diagram_text(PICTURES[name](), "svg"))
    assert same_as_golden(GOLDEN / "style.svg", style)


def main_of(name: str) -> ET.Element:
    """What a page shows, as a tree: every tag of it is closed."""
    [main] = re.findall(r"<main>.*</main>", diagram_text(PICTURES[name](), "html"), re.DOTALL)
    return ET.fromstring(main)


def words_of(element: ET.Element) -> list[str]:
    """The texts of an element and of those in it, without the spaces around each."""
    return [text.strip() for text in element.itertext() if text.strip()]


@pytest.mark.parametrize("name", PICTURES)
def test_the_page_shows_what_the_picture_says_each_thing_once(name: str) -> None:
    picture, main = picture_of(PICTURES[name]()), main_of(name)
    for node in picture.nodes:
        [box] = main.findall(f".//*[@id='{node.id}']")
        face = [text for part in box.findall(".//*[@class='face']/span") for text in words_of(part)]
        shown = [node.title, node.beside, node.mark, *node.lines, *(text for pair in node.pairs for text in pair)]
        for text in filter(None, shown):
            assert " ".join(face).count(text) >= 1, text
        for weight in node.weights:
            assert f"{weight.word}  {weight.name}" in face
        beyond = [(term.text, told.text) for term, told in zip(box.findall("dl/dt"), box.findall("dl/dd"), strict=True)]
        assert not {told for _, told in beyond} & set(face)
        assert set(node.more) - set(beyond) <= {(key, value) for key, value in node.more if value in face}
        assert box.tag == ("details" if beyond else "div")


@pytest.mark.parametrize("name", ["bert", "roberta", "many-labels"])
def test_the_page_tells_labels_and_loss_once(name: str) -> None:
    text = " ".join(words_of(main_of(name)))
    report = PICTURES[name]()
    assert text.count(f"0 {report.model.labels[0]}") == 1
    assert text.count("loss: ") == text.count("CrossEntropyLoss") == 1


def test_a_box_opens_without_a_script_and_by_key() -> None:
    main = main_of("bert")
    boxes = main.findall(".//details")
    assert [box.attrib["id"] for box in boxes] == [node.id for node in picture_of(bert()).nodes if node.more]
    assert all(box[0].tag == "summary" and "open" not in box.attrib for box in boxes)
    assert "press Enter" in " ".join(words_of(main))


@pytest.mark.parametrize("name", PICTURES)
def test_every_tag_of_a_page_is_closed_as_html_closes_it_and_a_summary_holds_no_block(name: str) -> None:
    page = diagram_text(PICTURES[name](), "html")
    assert "/>" not in page.partition("<body>")[2]
    for summary in main_of(name).iter("summary"):
        assert {item.tag for item in summary.iter()} <= {"summary", "span", "i"}


def places_of(name: str, kind: str) -> list[tuple[int, ...]]:
    """The grid rows and columns of the arrows or the wires of a page."""
    found = [item for item in main_of(name).iter("div") if item.get("class", "").split()[:1] == [kind]]
    return [tuple(map(int, re.findall(r"\d+", item.attrib["style"].partition("margin")[0]))) for item in found]


def test_arrows_stand_below_their_boxes_and_wires_lead_from_box_to_box() -> None:
    picture = picture_of(branched())
    order = {node.id: number for number, node in enumerate(picture.nodes)}
    ways = sorted((order[edge.source], order[edge.target]) for edge in picture.edges)
    assert places_of("branched", "arrow") == [(3 * source + 3,) for source, target in ways if target == source + 1]
    wires = places_of("branched", "wire")
    assert [(place[0], place[1]) for place in wires] == [
        (3 * source + 1, 3 * target + 2) for source, target in ways if target > source + 1
    ]
    assert len(wires) == 2
    page = diagram_text(branched(), "html")
    assert page.count("px auto ") == len(picture.nodes)


def test_a_page_with_no_skipping_wire_has_no_lane() -> None:
    assert "repeat(" not in diagram_text(bert(), "html")
    assert "repeat(1, 18px)" in diagram_text(branched(), "html")


def ids_in(text: str, format: str) -> list[str]:
    """The boxes that a picture draws, by their ids."""
    pattern = {
        "mermaid": r'^  (\w+)\["',
        "dot": r"^  (\w+) \[label=",
        "svg": r'<g id="(\w+)"',
        "html": r'<(?:details|div) id="(\w+)"',
    }[format]
    return [name for name in re.findall(pattern, text, re.MULTILINE) if name != "about"]


@pytest.mark.parametrize("format", [name for name in PAINTERS if name != "text"])  # test_boxes.py reads those
@pytest.mark.parametrize("name", PICTURES)
def test_every_node_is_drawn_once_and_every_stage_is_one(name: str, format: str) -> None:
    report = PICTURES[name]()
    drawn = ids_in(diagram_text(report, format), format)
    stages = [f"stage{stage.index}" for stage in report.head.stages] if report.head else []
    assert drawn == [node.id for node in picture_of(report).nodes]
    assert [node for node in drawn if node.startswith("stage")] == stages


@pytest.mark.parametrize("name", PICTURES)
def test_a_weight_has_the_status_of_the_report_in_word_and_color(name: str) -> None:
    report = PICTURES[name]()
    drawn = {weight.name: weight for node in picture_of(report).nodes for weight in node.weights}
    for item in report.head.parameters if report.head else ():
        assert drawn[item.name].word.startswith(item.status.value)
        assert drawn[item.name].tint == (Tint(item.status.value) if item.live else Tint.UNUSED)
        assert drawn[item.name].word.endswith(", not used") is not item.live


@pytest.mark.parametrize("name", REPORTS)
def test_the_picture_says_of_a_stage_what_the_tree_says(name: str) -> None:
    report = REPORTS[name]()
    screen = plain_text(inspect_screen(report, details=True))
    lines = [line[4:].strip() for line in screen.splitlines() if line.startswith(("├── ", "└── "))]
    stages = [node for node in picture_of(report).nodes if node.kind is BoxKind.STAGE]
    for node, line in zip(stages, lines, strict=False):
        [(module, shapes)] = node.pairs
        assert line.startswith(node.title)
        assert module in line
        assert shapes in line
        assert node.beside in line


def edges_of(report: Report) -> set[tuple[str, str]]:
    return {(edge.source, edge.target) for edge in picture_of(report).edges}


def test_branches_follow_the_inputs_of_the_stages() -> None:
    assert edges_of(branched()) == {
        ("base", "hidden"), ("hidden", "stage0"), ("stage0", "stage1"), ("stage0", "stage2"), ("stage1", "stage2"),
        ("stage0", "stage3"), ("stage2", "stage3"), ("stage3", "stage4"), ("stage4", "scores"),
    }  # fmt: skip
    counts = {(edge.source, edge.target): edge.count for edge in picture_of(branched()).edges}
    assert counts["stage0", "stage3"] == 2


def test_an_edge_that_was_not_observed_is_not_drawn_as_sure() -> None:
    report = with_head(bert(), stages=tuple(replace(stage, inputs=()) for stage in a_head(bert()).stages))
    unsure = {(edge.source, edge.target) for edge in picture_of(report).edges if not edge.is_sure}
    assert unsure == {("hidden", "stage0"), *((f"stage{n}", f"stage{n + 1}") for n in range(4))}
    assert "stage0 -.-> stage1" in diagram_text(report, "mermaid")
    assert diagram_text(report, "svg").count('class="wire dashed"') == 5


def test_two_ends_both_make_the_logits() -> None:
    select, *rest = a_head(bert()).stages
    report = with_head(bert(), stages=(select, *(replace(stage, inputs=(0,)) for stage in rest)))
    assert {source for source, target in edges_of(report) if target == "scores"} == {f"stage{n}" for n in range(1, 5)}


def test_without_a_head_no_stage_and_no_token_is_drawn() -> None:
    picture = picture_of(without_head())
    assert [node.kind for node in picture.nodes] == [BoxKind.GAP, BoxKind.BASE, BoxKind.SCORES]
    assert picture.nodes[0].title == "not determined: head path"
    assert not any(edge.is_sure for edge in picture.edges)


def marks(report: Report) -> list[str]:
    [hidden] = [node for node in picture_of(report).nodes if node.kind is BoxKind.HIDDEN]
    return [row_text(row) for row in hidden.rows]


def pooled(
    kind: PoolingKind, positions: Positions, task: Task = Task.SEQUENCE_CLASSIFICATION, side: str = "right"
) -> Report:
    pooling = Pooling(kind, (positions.text,), "the rule", (), one_part(kind, positions))
    return with_model(with_head(bert(), pooling=pooling), task=task, padding_side=side)


T = "\N{BLACK UP-POINTING TRIANGLE}"
ALL = f"{T} 0 | {T} 1 | {T} 2 | {T} ... | {T} last"
UNKNOWN = "? 0 | ? 1 | ? 2 | ? ... | ? last | ? pad | ? pad"
LAST_NON_PAD, EOS = PoolingKind.LAST_NON_PAD_TOKEN, PoolingKind.EOS_TOKEN
ROWS = (
    (pooled(PoolingKind.FIRST_TOKEN, at(0, "[CLS]")), f"{T} [CLS] | 1 | 2 | ... | last | pad | pad"),
    (pooled(PoolingKind.FIRST_TOKEN, at(0)), f"{T} 0 | 1 | 2 | ... | last | pad | pad"),
    (pooled(PoolingKind.FIRST_TOKEN, Positions(Where.FIRST_NON_PAD)), f"{T} 0 | 1 | 2 | ... | last | pad | pad"),
    (pooled(PoolingKind.LAST_TOKEN, at(-1)), f"0 | 1 | 2 | ... | last | pad | {T} pad"),
    (pooled(LAST_NON_PAD, Positions(Where.LAST_NON_PAD)), f"0 | 1 | 2 | ... | {T} last | pad | pad"),
    (pooled(LAST_NON_PAD, Positions(Where.AFTER_LAST_NON_PAD)), f"0 | 1 | 2 | ... | last | {T} pad | pad"),
    (pooled(EOS, Positions(Where.EOS, token="</s>")), f"0 | 1 | 2 | ... | {T} </s> | pad | pad"),
    (pooled(PoolingKind.TOKEN_AT, at(1)), f"0 | {T} 1 | 2 | ... | last | pad | pad"),
    (pooled(PoolingKind.TOKEN_AT, at(7)), f"0 | 1 | ... | 6 | {T} 7 | ... | last | pad | pad"),
    (pooled(PoolingKind.TOKEN_AT, at(-2)), UNKNOWN),
    (pooled(PoolingKind.MEAN, Positions(Where.ALL)), f"{ALL} | {T} pad | {T} pad"),
    (pooled(PoolingKind.MASKED_MEAN, Positions(Where.NON_PAD)), f"{ALL} | pad | pad"),
    (pooled(PoolingKind.MAX, Positions(Where.ALL)), f"{ALL} | {T} pad | {T} pad"),
    (pooled(PoolingKind.MAX, Positions(Where.NON_PAD)), f"{ALL} | pad | pad"),
    (pooled(PoolingKind.WEIGHTED, Positions(Where.ALL)), f"{ALL} | ? pad | ? pad"),
    (pooled(PoolingKind.OTHER, Positions(Where.ALL)), UNKNOWN),
    (pooled(PoolingKind.OTHER, Positions(Where.BY_ROW)), UNKNOWN),
    (pooled(PoolingKind.NONE, Positions(Where.EACH)), f"{ALL} | {T} pad | {T} pad"),
    (
        pooled(PoolingKind.MEAN, Positions(Where.RANGE, 1), task=Task.IMAGE_CLASSIFICATION, side=""),
        f"0 | {T} 1 | {T} 2 | {T} ... | {T} last",
    ),
    # tokenizers that pad on the left: XLNet's last position is a real token, index 0 may be padding
    (pooled(PoolingKind.LAST_TOKEN, at(-1), side="left"), f"pad | pad | first | ... | {T} last"),
    (pooled(PoolingKind.FIRST_TOKEN, at(0), side="left"), f"{T} pad | pad | first | ... | last"),
    (pooled(LAST_NON_PAD, Positions(Where.LAST_NON_PAD), side="left"), f"pad | pad | first | ... | {T} last"),
    (
        pooled(PoolingKind.FIRST_TOKEN, Positions(Where.FIRST_NON_PAD), side="left"),
        f"pad | pad | {T} first | ... | last",
    ),
    (
        pooled(PoolingKind.MASKED_MEAN, Positions(Where.NON_PAD), side="left"),
        f"pad | pad | {T} first | {T} ... | {T} last",
    ),
    (pooled(PoolingKind.TOKEN_AT, at(2), side="left"), f"0 | 1 | {T} 2 | 3 | ... | last"),
)


@pytest.mark.parametrize(("report", "row"), ROWS, ids=lambda value: value if isinstance(value, str) else "")
def test_the_cells_that_the_pooling_reads_are_marked_and_no_others(report: Report, row: str) -> None:
    assert marks(report) == [row]


def test_each_part_of_a_concatenation_has_a_separate_row() -> None:
    parts = (
        *one_part(PoolingKind.FIRST_TOKEN, at(0)),
        *one_part(PoolingKind.MEAN, Positions(Where.ALL)),
        *one_part(PoolingKind.OTHER, Positions(Where.BY_ROW)),
    )
    pooling = Pooling(PoolingKind.CONCAT, ("0", "all", "someone's own"), "the rule", (), parts)
    assert marks(with_head(bert(), pooling=pooling)) == [
        f"part 1: 0: {T} 0 | 1 | 2 | ... | last | pad | pad",
        f"part 2: all: {ALL} | {T} pad | {T} pad",
        f"part 3: someone's own: {UNKNOWN}",
    ]


@pytest.mark.parametrize("what", ["pooling", "head path"])
def test_a_pooling_that_is_not_determined_is_marked_and_told_nowhere(what: str) -> None:
    report = replace(bert(), not_determined=(Gap(what, "why"),))
    [hidden] = [node for node in picture_of(report).nodes if node.kind is BoxKind.HIDDEN]
    assert {cell.mark for row in hidden.rows for cell in row.cells} == {Mark.UNTOLD}
    for format in PAINTERS:
        text = diagram_text(report, format)
        assert f"not determined: {what}" in text
        assert not [told for told in ("first token", "padding or not", "[[CLS]]") if told in text]


def test_labels_beyond_eight_are_counted() -> None:
    [scores] = [node for node in picture_of(many_labels()).nodes if node.kind is BoxKind.SCORES]
    assert [cell.text for cell in scores.rows[0].cells][-2:] == ["7 class 7", "and 992 more"]


def test_modules_that_never_ran_are_gray_and_named() -> None:
    [unused] = [node for node in picture_of(gpt2()).nodes if node.kind is BoxKind.UNUSED]
    assert unused.tint is Tint.UNUSED
    assert unused.pairs == (("transformer.wpe_extra (Embedding)", "never executed"),)


@pytest.mark.parametrize("format", PAINTERS)
@pytest.mark.parametrize("name", ["evil", "hostile"])
def test_hostile_names_stay_text(name: str, format: str) -> None:
    text = diagram_text(PICTURES[name](), format)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert format == "text" or "<img" not in text  # plain text is not a page
    assert "\u202e" not in text


def test_no_name_is_a_formula_or_an_icon_in_mermaid() -> None:
    text = diagram_text(evil(), "mermaid")
    assert "#36;#8203;#36;#8203;#36;" in text
    assert "fa#58;#8203;fa#45;car" in text or "fa#58;#8203;fa-car" in text
    assert "$" not in text


@pytest.mark.parametrize("format", ["svg", "html"])
@pytest.mark.parametrize("name", PICTURES)
def test_nothing_is_loaded_and_no_script_runs(name: str, format: str) -> None:
    text = diagram_text(PICTURES[name](), format)
    tags = re.findall(r"<[^>]*>", text)
    assert not any(tag.startswith(("<script", "<img", "<link", "<iframe", "<image", "<use")) for tag in tags)
    assert not re.findall(r'\b(?:href|src|xlink:href)="([^"]*)"', "".join(tags))
    assert "url(" not in text
    assert "@import" not in text
    assert not re.search(r"<[^>]*\son\w+=", text)
    assert "prefers-color-scheme: dark" in text
    assert text.isascii()


def test_a_box_that_is_opened_tells_evidence_parameters_and_source() -> None:
    main = main_of("bert")
    [section] = main.findall(".//details[@id='stage1']/dl")
    assert "transformers/models/bert/modeling_bert.py:461" in words_of(section)
    assert "bert.pooler.dense.weight 768x768, float32, from bert.pooler.dense.weight" in words_of(section)
    [hidden] = main.findall(".//details[@id='hidden']/dl")
    assert "select at transformers/models/bert/modeling_bert.py:460" in words_of(hidden)


def bert_of_unknown_weights() -> Report:
    parameters = a_head(bert()).parameters
    unknown = tuple(replace(item, status=ParameterStatus.UNKNOWN, checkpoint_keys=()) for item in parameters)
    return with_head(bert(), parameters=unknown)


def test_a_weight_of_unknown_status_is_not_said_to_lack_a_key() -> None:
    text = diagram_text(bert_of_unknown_weights(), "html")
    assert "classifier.weight 3x768, float32, from where" in text
    assert "no checkpoint key" not in text


@pytest.mark.parametrize("kind", [CheckpointKind.MEMORY, CheckpointKind.CLASS, CheckpointKind.LOCAL])
def test_weights_without_a_checkpoint_have_no_status_and_no_color(kind: CheckpointKind) -> None:
    read = bert_of_unknown_weights()
    stored = tuple(replace(item, status=ParameterStatus.UNKNOWN) for item in read.weights.parameters)
    weights = replace(read.weights, parameters=stored)
    report = replace(read, checkpoint=replace(read.checkpoint, kind=kind), weights=weights, not_determined=())
    nodes = picture_of(report).nodes
    live = {weight.tint for node in nodes for weight in node.weights if weight.tint is not Tint.UNUSED}
    words = diagram_text(report, "svg")
    assert (live == {Tint.PLAIN}) is (kind is not CheckpointKind.LOCAL)
    assert ("tensors unknown" in words) is (kind is CheckpointKind.LOCAL)
    assert ("no checkpoint to compare it with" in words) is (kind is not CheckpointKind.LOCAL)


# ---- the parsers of others


def read_by(parser: list[str], text: str) -> bytes:
    """What a parser prints of a text that it takes."""
    ran = subprocess.run(parser, input=text.encode(), capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert b"syntax" not in ran.stderr
    return ran.stdout


@pytest.mark.parametrize("name", PICTURES)
def test_graphviz_reads_the_graph(name: str) -> None:
    if shutil.which("dot") is None:
        pytest.skip("Graphviz is not installed")
    report = PICTURES[name]()
    graph = json.loads(read_by(["dot", "-Tjson0"], diagram_text(report, "dot")))
    names = {item["_gvid"]: item["name"] for item in graph["objects"]}
    drawn = {(names[edge["tail"]], names[edge["head"]]) for edge in graph.get("edges", ())}
    assert set(names.values()) == {node.id for node in picture_of(report).nodes}
    assert drawn == edges_of(report)


@cache
def mermaid_problem() -> str:
    """Why Mermaid's parser cannot be asked; empty if it can."""
    if shutil.which("node") is None:
        return "Node.js is not installed"
    find = "const r=require('module').createRequire(process.argv[1]); r.resolve('mermaid'); r.resolve('jsdom')"
    ran = subprocess.run(["node", "-e", find, str(PARSER)], capture_output=True, check=False)
    return "" if ran.returncode == 0 else "npm's mermaid and jsdom are not installed, here or on NODE_PATH"


@pytest.mark.parametrize("name", PICTURES)
def test_mermaid_reads_the_flowchart(name: str) -> None:
    if mermaid_problem():
        pytest.skip(mermaid_problem())
    report = PICTURES[name]()
    read = json.loads(read_by(["node", str(PARSER)], diagram_text(report, "mermaid")))
    assert set(read["nodes"]) == {"about", *(node.id for node in picture_of(report).nodes)}
    edges = {(source, target) for source, target in read["edges"] if source != "about"}
    assert edges == edges_of(report)
