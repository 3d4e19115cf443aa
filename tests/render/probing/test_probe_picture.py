"""The picture of `probe`: well-formed, loads nothing, holds the numbers of the result, and survives hostile names."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from test_probe_screen import HEAD, RESULT

from headscope.shell.app import main
from headscope.slices.probe.facts.data import ProbeClass
from headscope.slices.probe.facts.result import Candidate, Metric, ProbeResult, Vector
from headscope.slices.probe.screen.picture import probe_picture
from headscope.slices.probe.screen.screen import rows_of

_SVG = "{http://www.w3.org/2000/svg}"
LAYERS = 13


def curves(count: int = LAYERS) -> ProbeResult:
    """A result with a first token and a mean of each layer, the mean always better."""
    found = [
        Candidate(f"{kind.value}-{layer}", layer, kind, Metric.ACCURACY, score, score - 0.03, score + 0.03, 768)
        for layer in range(count)
        for kind, score in ((Vector.FIRST_TOKEN, 0.5 + layer / 50), (Vector.MASKED_MEAN, 0.6 + layer / 50))
    ]
    return replace(RESULT, candidates=(*found, HEAD), best=found[-1].name)


def test_the_svg_is_one_file_with_a_point_for_each_layer() -> None:
    text = probe_picture(curves(), "svg")
    root = ElementTree.fromstring(text)
    points = [*root.iter(f"{_SVG}circle"), *root.iter(f"{_SVG}rect")]
    tips = [tip.text or "" for point in points for tip in point.findall(f"{_SVG}title")]
    assert sum(tip.startswith("mean over") for tip in tips) == LAYERS
    assert any(tip.endswith("layer 12: 0.740 (0.710 to 0.770)") for tip in tips)
    lines = list(root.iter(f"{_SVG}polyline"))
    assert [len((line.get("points") or "").split()) for line in lines] == [LAYERS, LAYERS]
    heights = [float(place.split(",")[1]) for place in (lines[0].get("points") or "").split()]
    assert heights == sorted(heights, reverse=True)  # a higher score stands higher
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"href|url\(|<script|@import", text)


class Page(HTMLParser):
    """The cells of the tables of a page, and its tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()


def test_the_page_has_the_rows_of_the_screen_and_loads_nothing() -> None:
    result = curves()
    text = probe_picture(result, "html")
    page = Page(text)
    assert [row[0] for row in page.rows if row] == [f"{item.mean:.3f}" for item in rows_of(result)]
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert not page.tags & {"script", "link", "img", "iframe", "object"}
    assert "prefers-color-scheme: dark" in text


@pytest.mark.parametrize("format", ["svg", "html"])
def test_hostile_names_stay_text(format: str) -> None:
    hostile = "</style><script>alert(1)</script>\x9b\u202e\x00"
    result = replace(curves(), reference=hostile, data=hostile, classes=(ProbeClass(hostile, 3),), notes=(hostile,))
    text = probe_picture(result, format)
    assert "<script" not in text
    assert not re.search(r"[\x00-\x08\x7f-\x9f\u202e]", text)
    if format == "svg":
        ElementTree.fromstring(text)


def test_one_layer_has_no_curve() -> None:
    text = probe_picture(curves(1), "svg")
    assert "polyline" not in text
    assert "layer 0" in text


@pytest.mark.parametrize("options", [("--json", "-o", "x.svg"), ("--json", "-o", "x.html"), ("--json", "-o", "x.py")])
def test_two_formats_at_once_are_refused(options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "model", "--data", "a.csv", "--text-column", "a", "--label-column", "b", *options]) == 2
    printed = capsys.readouterr()
    assert "different formats" in printed.err + printed.out
    assert not Path(options[-1]).exists()
