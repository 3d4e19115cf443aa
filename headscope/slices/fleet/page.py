"""Summary of `scan` as one HTML page that loads nothing: plots, and the numbers of each in a table beside it."""

from collections.abc import Iterator, Sequence

from headscope.core.facts.verdict import Verdict
from headscope.core.words.safe import safe
from headscope.shared.pictures.markup import Tint, element, escaped, lines, page
from headscope.shared.pictures.plots import ACCENT, STYLE, Bar, Column, bars_svg, columns_svg
from headscope.slices.fleet.facts import Count, RuleCount, ScanSummary
from headscope.slices.fleet.screen import (
    Counting,
    CountLine,
    Section,
    effort_sentences,
    interval_words,
    sections,
    verdict_sentence,
    verdicts_in_order,
)

_TINTS = {Verdict.PASSED: Tint.LOADED, Verdict.FAILED: Tint.MISMATCHED, Verdict.NOT_DETERMINED: Tint.UNKNOWN}
_STYLE = f"""\
{STYLE}body {{ margin: 0 auto; padding: 16px; max-width: 1180px; background: var(--ground); color: var(--ink);
  font: 14px/1.45 system-ui, sans-serif }}
h1 {{ font-size: 20px; margin: 0 0 4px }} h2 {{ font-size: 16px; margin: 0 0 8px }}
section {{ border-top: 1px solid var(--edge); padding: 16px 0 }}
.beside {{ display: grid; grid-template-columns: minmax(0, 640px) minmax(0, 1fr); gap: 16px 24px; align-items: start }}
@media (max-width: 900px) {{ .beside {{ grid-template-columns: minmax(0, 1fr) }} }}
table {{ border-collapse: collapse }}
td, th {{ padding: 2px 12px 2px 0; vertical-align: top; text-align: left; font-weight: normal }}
td, th {{ overflow-wrap: anywhere }}
td.number {{ text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }}
th[scope=row] {{ font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace }}
th[scope=col] {{ color: var(--soft); white-space: nowrap }}
p.soft, td.soft {{ color: var(--soft) }}
"""


def scan_html(found: ScanSummary) -> str:
    """Writes the page."""
    sentence = safe(verdict_sentence(found))
    body = (
        "<main>",
        "<h1>headscope scan</h1>",
        f"<p><strong>{escaped(sentence)}</strong></p>",
        *_section_elements(found),
        *(f'<p class="soft">{escaped(sentence)}</p>' for sentence in effort_sentences(found)),
        "</main>",
    )
    return page(f"headscope scan: {sentence}", _STYLE, body)


def _section_elements(found: ScanSummary) -> Iterator[str]:
    plots = {
        Counting.VERDICTS: tuple(Bar(one.name.replace("_", " "), one.count, _TINTS[Verdict(one.name)].value)
                          for one in verdicts_in_order(found)),
        Counting.CAUSES: _count_bars(found.causes, Tint.UNKNOWN.value),
        Counting.FINDINGS: _count_bars(found.findings),
        Counting.CLASSES: _count_bars(found.classes),
        Counting.POOLING: _count_bars(found.poolings),
    }  # fmt: skip
    for section in sections(found, 15):
        bars = plots.get(section.title)
        name = section.title.value.replace(" ", "-")
        yield _section_element(
            section, bars_svg(name, f"Rows by {section.title}", bars[: len(section.lines)]) if bars else ""
        )
    if found.durations:
        each = tuple(Column(interval_words(one), one.count) for one in found.durations)
        listed = tuple(CountLine(f"{one.count:,}", one.name) for one in each)
        yield _section_element(
            Section(Counting.SECONDS, "seconds", listed), columns_svg("seconds", "Rows by seconds", each)
        )


def _count_bars(counts: Sequence[Count | RuleCount], tint: str = ACCENT) -> tuple[Bar, ...]:
    return tuple(
        Bar(one.name if isinstance(one, Count) else f"{one.id} {one.name}".rstrip(), one.count, tint) for one in counts
    )


def _section_element(section: Section, plot: str) -> str:
    heading = element("h2", section.title.capitalize())
    rows = ["".join(element("th", escaped(word), scope="col") for word in (section.unit, section.noun))]
    for line in section.lines:
        number = element("td", escaped(line.number), class_="number")
        meaning = element("td", escaped(line.meaning)) if line.meaning else ""
        rows.append(number + element("th", escaped(safe(line.name)), scope="row") + meaning)
    if section.more is not None:
        number = element("td", escaped(section.more.number), class_="number soft")
        rows.append(number + element("td", escaped(section.more.name), class_="soft"))
    table = element("table", lines(element("tr", row) for row in rows))
    beside = element("div", lines((plot, f"<div>{table}</div>")), class_="beside") if plot else table
    return element("section", lines((heading, beside)))
