"""Results in a notebook: Rich shows the screen as HTML, with no script, no ids, and no tag of others."""

import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from reports import bert, hostile
from rich.console import Console
from rich.text import Text

import headscope
from headscope import api
from headscope.checks.checked import Checked
from headscope.core.facts.heads.atlas import HeadEntry
from headscope.core.facts.heads.tasks import Task
from headscope.core.facts.verdict import Verdict
from headscope.facts import Finding, Gap, Profile, Report, Severity
from headscope.shared.report.examination import shown
from headscope.shell.result_screen import result_text
from headscope.shell.shown import Shown
from headscope.slices.atlas.run import Heads
from headscope.slices.compare.facts import Difference
from headscope.slices.compare.run import Compared
from tests.render.diagram.pictures import EVIL, PICTURES

WIDTH = 115  # what Rich gives to a notebook
ATTACKS = (*EVIL, "</pre><script>alert(1)</script>", "[bold]x[/bold] [/nope] [link=javascript:alert(1)] :smile:")


class HtmlReader(HTMLParser):
    """Collects the text, tags and attributes that a browser sees; fails if tags are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: set[str | None] = set()
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.links.update(value for name, value in attrs if name == "href")
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(autouse=True)
def notebook_console(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives Rich the console that it makes in a notebook."""
    monkeypatch.delenv("JUPYTER_COLUMNS", raising=False)
    monkeypatch.setattr("rich._console", Console(force_jupyter=True))


def html_of(result: Shown) -> str:
    return result._repr_mimebundle_([], [])["text/html"]  # type: ignore[misc]


def evil_results(text: str) -> Iterator[Shown]:
    """Results in which every name is an attack."""
    evil = Finding(text, Severity.ERROR, text, text, text, code=text, parameters=(text,))
    gaps = (Gap(text, text),)
    report = replace(PICTURES["evil"](), findings=(evil,), profile=Profile.TRAINING, not_determined=gaps)
    yield shown(report)
    yield shown(replace(report, command="diff-weights"))
    yield Checked("1", "check", text, Profile.INFERENCE, Verdict.FAILED, (evil,), (), gaps, (), (text,), report=report)
    yield Compared("1", "compare", (report, hostile()), (Difference(text, (text, text)),))
    yield Heads((HeadEntry(text, Task.SEQUENCE_CLASSIFICATION, text, False, None, text),))


def assert_shows_screen(result: Shown) -> None:
    html = html_of(result)
    read = HtmlReader(html)
    assert read.tags <= {"pre", "span", "a"}
    assert read.attributes <= {"style", "href", "target"}
    assert all(link.startswith("https://github.com/huggingface/transformers/blob/") for link in read.links)
    assert not re.search("[\x1b\u202e]", read.text)
    assert [line.rstrip() for line in read.text.rstrip().splitlines()] == result_text(result, WIDTH).splitlines()


@pytest.mark.parametrize("text", ATTACKS, ids=range(len(ATTACKS)))
def test_hostile_names_stay_text(text: str) -> None:
    for result in evil_results(text):
        assert_shows_screen(result)


@pytest.mark.parametrize("name", PICTURES)
def test_a_notebook_shows_what_print_writes(name: str) -> None:
    assert_shows_screen(shown(PICTURES[name]()))


def test_sources_are_links() -> None:
    report = replace(bert(), environment=replace(bert().environment, transformers="5.14.1"))
    assert any("/v5.14.1/src/transformers/models/bert/" in link for link in HtmlReader(html_of(shown(report))).links)


def classes_of_results() -> list[type[Shown]]:
    """Lists every public class that shows itself."""
    found = {item for name in api.__all__ if isinstance(item := getattr(api, name), type)}
    return sorted(
        (kind for kind in found if issubclass(kind, Shown) and kind is not Shown), key=lambda kind: kind.__name__
    )


@pytest.mark.parametrize("kind", classes_of_results())
def test_every_result_shows_its_screen(kind: type[Shown], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headscope.shell.result_screen.result_screen", lambda _: Text("<script>", "bold red"))
    monkeypatch.setattr("headscope.shell.result_screen.result_line", lambda _: "one line")
    html = html_of(kind.__new__(kind))
    assert kind.__new__(kind)._repr_mimebundle_([], [])["text/plain"] == "one line"  # type: ignore[misc]
    assert "&lt;script&gt;</span>" in html
    assert HtmlReader(html).text.strip() == "<script>"


def test_an_error_of_a_screen_is_raised() -> None:
    with pytest.raises(TypeError, match="not a result"):
        html_of(Shown())


def test_a_notebook_shows_an_svg_as_the_picture() -> None:
    text = headscope.diagram(bert(), "svg")
    assert text._repr_svg_() == text  # type: ignore[attr-defined]
    assert not hasattr(headscope.diagram(bert(), "mermaid"), "_repr_svg_")


@pytest.mark.parametrize("name", ["bert", "without-head"])
def test_text_follows_the_command_that_made_the_report(name: str) -> None:
    report: Report = PICTURES[name]()
    assert ("hidden states" in result_text(report, 80)) is (report.head is not None)
    assert "hidden states" not in result_text(replace(report, command="diff-weights", head=None), 80)
