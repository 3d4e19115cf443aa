"""The summary of a scan: its values are those of the rows, and no row can do harm on a screen or a page."""

import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from headscope.checks.rules import every_rule
from headscope.core.facts.verdict import Verdict
from headscope.core.words.console import plain_text
from headscope.core.words.lines import WIDE
from headscope.slices.fleet.facts import Cause, ScanRow, ScanSummary, Tally
from headscope.slices.fleet.page import scan_html
from headscope.slices.fleet.screen import scan_markdown, scan_screen, scan_verdict

RULES = every_rule()

GOLDEN = Path(__file__).parent / "golden"
NAMES = {rule.id: (rule.name, rule.title) for rule in RULES.values()}
EVIL = "\x1b[2J<script>alert(1)</script>@someone | `code` **bold** [link](javascript:1) &amp; \u202e"


def rows_of_many() -> list[ScanRow]:
    """600 rows of 14 classes, the same in every run."""
    draw = random.Random(7)
    rules = sorted(rule for rule in RULES if rule > "HS1")[:14]
    classes = [f"Family{letter}ForSequenceClassification" for letter in "ABCDEFGHIJKLM"]
    classes += ["Wav2Vec2ConformerForSequenceClassification"] * 4
    found = []
    for number in range(600):
        verdict = draw.choice([Verdict.PASSED] * 6 + [Verdict.FAILED] * 3 + [Verdict.NOT_DETERMINED])
        found.append(
            ScanRow(
                f"owner/model-{number}",
                verdict,
                profile="training" if number % 4 else "inference",
                class_name=draw.choice(classes),
                pooling_kind=draw.choice(["first_token", "masked_mean", "last_non_pad_token"]),
                findings=tuple(draw.sample(rules, draw.choice([0, 1, 2]))),
                not_determined=draw.choice(list(Cause)).value if verdict is Verdict.NOT_DETERMINED else None,
                bytes_read=70_000,
                requests=4,
                seconds=round(draw.lognormvariate(-1, 1.6), 4),
            )
        )
    return found


def hostile_rows() -> list[ScanRow]:
    return [
        ScanRow(f"{EVIL}{'-long' * 30}", verdict, class_name=EVIL, pooling_kind=EVIL, findings=(EVIL, "HS102"),
                not_determined="crash", seconds=1_000.0 * number)
        for number, verdict in enumerate(Verdict)
    ]  # fmt: skip


def summary_of(rows: list[ScanRow], skipped: int = 0) -> ScanSummary:
    tally = Tally()
    for row in rows:
        tally.add(row.to_dict())
    return tally.summary(written=len(rows) - skipped, skipped=skipped, seconds=200.0, rules=NAMES)


SUMMARIES: dict[str, Callable[[], ScanSummary]] = {
    "many": lambda: summary_of(rows_of_many(), skipped=100),
    "one": lambda: summary_of(
        [ScanRow("bert-base-uncased", Verdict.PASSED, class_name="BertForSequenceClassification", seconds=0.5)]
    ),
    "hostile": lambda: summary_of(hostile_rows()),
    "none": lambda: summary_of([]),
}


# Numbers


def test_the_counts_are_those_of_the_rows() -> None:
    rows, found = rows_of_many(), SUMMARIES["many"]()
    assert {one.name: one.count for one in found.verdicts} == Counter(row.verdict.value for row in rows)
    assert {one.name: one.count for one in found.classes} == Counter(row.class_name for row in rows)
    assert {one.name: one.count for one in found.poolings} == Counter(row.pooling_kind for row in rows)
    assert {one.name: one.count for one in found.profiles} == Counter(row.profile for row in rows)
    assert {one.id: one.count for one in found.findings} == Counter(rule for row in rows for rule in row.findings)
    assert {one.name: one.count for one in found.causes} == Counter(
        row.not_determined for row in rows if row.not_determined
    )
    slowest = sorted(rows, key=lambda row: -row.seconds)[:5]
    assert [(one.reference, one.seconds) for one in found.slowest] == [(row.reference, row.seconds) for row in slowest]
    for one in found.durations:
        assert one.count == sum(one.low <= row.seconds < (one.high or float("inf")) for row in rows)
    assert sum(one.count for one in found.durations) == len(rows) == found.rows
    assert (found.bytes_read, found.requests) == (600 * 70_000, 2_400)
    for counts in (found.verdicts, found.classes, found.findings):
        assert [one.count for one in counts] == sorted((one.count for one in counts), reverse=True)


def test_a_rule_is_named_as_the_checks_name_it() -> None:
    text = plain_text(scan_screen(SUMMARIES["hostile"]()), WIDE)
    assert f"HS102 {RULES['HS102'].name}: {RULES['HS102'].title}" in text


# The screen


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_screen_is_as_its_golden_file(name: str, same_as_golden: Callable[[Path, str], bool]) -> None:
    assert same_as_golden(GOLDEN / f"scan-{name}-80.txt", plain_text(scan_screen(SUMMARIES[name]()), 80))


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200, WIDE])
@pytest.mark.parametrize("name", SUMMARIES)
def test_no_line_is_too_long_ends_in_spaces_or_is_cut(name: str, width: int) -> None:
    text = plain_text(scan_screen(SUMMARIES[name]()), width)
    for line in text.splitlines():
        assert len(line) <= width
        assert line == line.rstrip()
    assert "…" not in text
    assert "\x1b" not in text


def test_the_quiet_screen_is_the_line_of_the_verdicts() -> None:
    found = SUMMARIES["many"]()
    assert plain_text(scan_verdict(found), WIDE) == plain_text(scan_screen(found), WIDE).partition("\n")[0] + "\n"


# Markdown


def cells_of(markdown: str) -> list[list[str]]:
    """The rows of all tables, as a parser of GitHub's Markdown finds them."""
    html = MarkdownIt("gfm-like", {"linkify": False}).render(markdown)
    rows = ElementTree.fromstring(f"<all>{html}</all>").iter("tr")
    return [["".join(cell.itertext()) for cell in row] for row in rows]


def test_the_tables_of_markdown_hold_every_count() -> None:
    found = SUMMARIES["many"]()
    cells = cells_of(scan_markdown(found))
    for one in found.classes[:10]:
        assert [str(one.count), one.name] in cells
    for one in found.findings[:10]:
        assert [str(one.count), f"{one.id} {one.name}", one.title] in cells
    rest = sum(one.count for one in found.classes[10:])
    assert [str(rest), f"in {len(found.classes) - 10} others"] in cells


def test_markdown_formats_nothing_that_a_row_says() -> None:
    html = MarkdownIt("gfm-like", {"linkify": False}).render(scan_markdown(SUMMARIES["hostile"]()))
    tree = ElementTree.fromstring(f"<all>{html}</all>")
    assert {item.tag for item in tree.iter()} <= {
        "all", "h2", "h3", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "code"
    }  # fmt: skip
    assert {len(row) for table in tree.iter("table") for row in table.iter("tr")} <= {2, 3}
    for item in tree.iter():
        for text in (item.text, item.tail) if item.tag != "code" else (item.tail,):
            assert "@someone" not in (text or "")


@pytest.mark.parametrize("name", ["many", "hostile"])
def test_markdown_is_as_its_golden_file(name: str, same_as_golden: Callable[[Path, str], bool]) -> None:
    assert same_as_golden(GOLDEN / f"scan-{name}.markdown", scan_markdown(SUMMARIES[name]()))


# The page


class Page(HTMLParser):
    """The elements of a page, those that stay open, and its text."""

    VOID = frozenset({"meta", "rect", "line"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", SUMMARIES)
def test_the_page_is_whole_loads_nothing_and_runs_nothing(name: str) -> None:
    text = scan_html(SUMMARIES[name]())
    page = Page(text)
    assert page.open == []
    assert text.isascii()
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "a", "b"}
    assert not [attribute for _, attributes in page.tags for attribute in attributes if attribute.startswith("on")]
    assert "default-src 'none'" in text
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert "\x1b" not in page.text


def test_every_plot_has_a_title_a_description_and_a_table_beside_it() -> None:
    found = SUMMARIES["many"]()
    text = scan_html(found)
    plots = [section for section in re.findall(r"<section>.*?</section>", text, re.DOTALL) if "<svg" in section]
    assert len(plots) == 6
    for section in plots:
        tree = ElementTree.fromstring(section)
        [svg] = [item for item in tree.iter() if item.tag.endswith("svg")]
        named = {item.get("id"): "".join(item.itertext()) for item in svg.iter() if item.tag in {"title", "desc"}}
        assert svg.get("role") == "img"
        title, description = str(svg.get("aria-labelledby")).split()
        assert {title, description} == set(named)
        counts = [int(cell.text.replace(",", "")) for cell in tree.iter("td") if cell.get("class") == "number"]
        drawn = [int(item.text.replace(",", "")) for item in svg.iter("text") if "count" in (item.get("class") or "")]
        assert drawn == counts
        told = re.findall(r": ([\d,]+)(?:;|$)", named[description])
        assert [int(number.replace(",", "")) for number in told] == drawn


def test_a_bar_is_as_long_as_its_count_says() -> None:
    found = SUMMARIES["many"]()
    [section] = re.findall(r"<section>\s*<h2>Verdicts.*?</section>", scan_html(found), re.DOTALL)
    bars = {item.get("class"): float(item.get("width")) for item in ElementTree.fromstring(section).iter("rect")}
    counts = {one.name: one.count for one in found.verdicts}
    classes = {"passed": "loaded", "failed": "mismatched", "not_determined": "unknown"}
    for name, one in classes.items():
        assert bars[one] / bars["loaded"] == pytest.approx(counts[name] / counts["passed"], abs=0.01)


@pytest.mark.parametrize("name", ["many", "hostile"])
def test_the_page_is_as_its_golden_file(name: str, same_as_golden: Callable[[Path, str], bool]) -> None:
    assert same_as_golden(GOLDEN / f"scan-{name}.html", scan_html(SUMMARIES[name]()))


_OUTSIDE = """() => [...document.querySelectorAll('svg text')].filter(text => {
  const own = text.getBoundingClientRect(), all = text.closest('svg').getBoundingClientRect();
  return own.left < all.left - 1 || own.right > all.right + 1 || own.top < all.top - 1 || own.bottom > all.bottom + 1;
}).map(text => text.textContent)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", SUMMARIES)
def test_a_browser_shows_every_word_of_the_plots(tmp_path: Path, name: str, scheme: Any) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next((found for one in ("chromium", "google-chrome") if (found := shutil.which(one))), None)
    file = tmp_path / "summary.html"
    file.write_text(scan_html(SUMMARIES[name]()), encoding="utf-8")
    with playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except playwright.Error as err:
            pytest.skip(f"no Chromium to be had: {err.message.splitlines()[0]}")
        trouble: list[str] = []
        for width in (400, 1_200):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.on("console", lambda message: trouble.append(message.text))
            page.on("request", lambda request: trouble.append(request.url) if request.url != file.as_uri() else None)
            page.goto(file.as_uri())
            assert page.evaluate(_OUTSIDE) == []
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            assert trouble == []
        browser.close()
