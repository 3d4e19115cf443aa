"""The HTML of results: folding details in the notebook's theme, no script, no ids, and no tag of somebody else's."""

import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from reports import REPORTS, bert, hostile
from rich.style import Style

from headscope.facts import Finding, Gap, Profile, Report, Severity
from headscope.facts.heads.atlas import HeadEntry
from headscope.facts.heads.tasks import Task
from headscope.facts.results.check import CheckResult, Verdict
from headscope.facts.results.comparison import Comparison, Difference
from headscope.render.diagram import markup
from headscope.render.diagram.picture import picture_of
from headscope.render.pages.notebook import result_html
from headscope.render.screens.result import result_text
from headscope.render.text import console
from tests.render.diagram.pictures import EVIL, PICTURES

TAGS = {
    "div", "style", "svg", "rect", "text", "g", "title", "polyline", "polygon", "details", "summary", "dl", "dt", "dd",
    "table", "thead", "tbody", "tr", "th", "td", "pre", "p", "span",
}  # fmt: skip
ATTRIBUTES = {
    "class", "hidden", "open", "scope", "xmlns", "width", "height", "viewbox", "role", "aria-label", "x", "y", "rx",
    "points", "font-size",
}  # fmt: skip


def finding(severity: Severity, **changes: object) -> Finding:
    made = Finding("HS101", severity, "The title", "What was found.", "What to do.", code="first()\n  second()")
    return replace(made, **changes)


def checked(report: Report, *findings: Finding) -> CheckResult:
    gap = Gap("the values", "the file is cut")
    return CheckResult(
        "1", "check", report.checkpoint.reference, Profile.INFERENCE, Verdict.FAILED, findings, (), (gap,), (),
        ("HS101", "HS102"), report=report,
    )  # fmt: skip


def evil_results() -> Iterator[Any]:
    """Every kind of result in which every name is an attack."""
    for text in EVIL:
        evil = finding(Severity.ERROR, id=text, title=text, message=text, remedy=text, code=text, parameters=(text,))
        report = replace(PICTURES["evil"](), findings=(evil,), profile=Profile.TRAINING, not_determined=(
            Gap(text, text),
        ))  # fmt: skip
        yield report
        yield replace(report, command="diff-weights")
        yield checked(report, evil)
        yield Comparison("1", "compare", (report, hostile()), (Difference(text, (text, text)),))
        yield (HeadEntry(text, Task.SEQUENCE_CLASSIFICATION, text, False, None, text),)


class Reader(HTMLParser):
    """The tags that a browser would see, and their attributes; complains where they are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_hostile_names_make_no_tag_and_no_attribute() -> None:
    for result in evil_results():
        html = result_html(result)
        read = Reader(html)
        assert read.tags <= TAGS
        assert read.attributes <= ATTRIBUTES
        assert html.isascii()
        assert not re.search("[\x1b\u202e]", read.text)


@pytest.mark.parametrize("name", PICTURES)
def test_a_report_is_the_picture_and_the_same_facts_folded(name: str) -> None:
    report = PICTURES[name]()
    html = result_html(report)
    read = Reader(html)
    assert html.count("<svg") == 1
    assert html.count('<g class="node') == len(picture_of(report).nodes)
    for item in report.head.tensors if report.head else ():
        assert f">{item.status.value}" in html.partition("<details")[2]
    assert all(gap.topic in read.text for gap in report.not_determined)
    assert "url(" not in html
    assert "@import" not in html
    assert " id=" not in html  # several outputs stand on one page


def test_what_is_folded_is_what_the_terminal_shows() -> None:
    html = result_html(bert())
    [screen] = re.findall(r"As text</summary>.*?<pre>(.*?)</pre>", html, re.DOTALL)
    assert [line.rstrip() for line in Reader(screen).text.splitlines()] == result_text(bert(), 120).splitlines()
    facts = Reader(html.partition("<dl>")[2].partition("</dl>")[0]).text
    assert "BertForSequenceClassification" in facts
    assert "logits = " in facts


def test_errors_are_open_and_the_rest_is_folded() -> None:
    html = result_html(checked(bert(), finding(Severity.ERROR), finding(Severity.NOTE, title="The other")))
    error, note = re.findall(r"<details[^>]*>(?=<summary><span)", html)
    assert "open" in error
    assert "open" not in note
    assert "first()\n  second()" in html
    assert "the values: the file is cut" in html


def test_findings_of_a_report_are_open_where_one_is_an_error() -> None:
    for severity, is_open in ((Severity.ERROR, True), (Severity.WARNING, False)):
        report = replace(bert(), findings=(finding(severity),), profile=Profile.TRAINING)
        [tag] = re.findall(r"<details[^>]*>(?=<summary>Findings)", result_html(report))
        assert ("open" in tag) is is_open
    assert "<summary>Findings" not in result_html(replace(bert(), findings=(), profile=None))


def test_a_comparison_is_a_table_with_a_column_for_each_head() -> None:
    result = Comparison("1", "compare", (bert(), hostile()), (Difference("class", ("one", "other")),))
    html = result_html(result)
    assert "<td>class</td><td>one</td><td>other</td>" in html
    assert html.count("<svg") == 2


def rules_of(html: str) -> list[tuple[str, str]]:
    """Selectors and bodies of every rule that is in no media query."""
    [style] = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    return re.findall(r"^([^@{}]+)(\{[^{}]*\})$", style.replace("\n\n", "\n"), re.MULTILINE)


def test_no_rule_reaches_beyond_the_output() -> None:
    rules = rules_of(result_html(bert()))
    assert len(rules) > 50
    for selectors, _ in rules:
        for selector in selectors.split(","):
            assert re.search(r"(^|\s)\.headscope(\s|$)", selector.strip()), selector


def test_every_color_that_a_rule_uses_is_defined_in_both_themes() -> None:
    html = result_html(bert())
    used = set(re.findall(r"var\((--[\w-]+)\)", html))
    themes = [set(re.findall(r"(--[\w-]+):", line)) for line in html.splitlines() if "--ground:" in line]
    assert len(themes) == 3
    assert all(used <= theme for theme in themes)
    assert markup.DARK.ground in html


@pytest.mark.parametrize("style", [*console.TONE.values(), *console.STATUS.values(), *console.SEVERITY.values()])
def test_every_color_of_the_terminal_has_one_in_the_notebook(style: str) -> None:
    from headscope.render.pages.notebook import _TINTS

    color = Style.parse(style).color
    assert color.name in _TINTS


@pytest.mark.parametrize("name", REPORTS)
def test_text_follows_the_command_that_made_the_report(name: str) -> None:
    report = REPORTS[name]()
    assert ("hidden states" in result_text(report, 80)) is (report.head is not None)
    other = replace(report, command="diff-weights", head=None)
    assert "hidden states" not in result_text(other, 80)
    assert "<svg" not in result_html(other)
