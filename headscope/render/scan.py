"""The screen of `scan`: the table in counts, the verdicts first."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headscope.facts.check import Verdict
from headscope.facts.counting import counted
from headscope.facts.scan import ScanSummary
from headscope.render.check import WORDS
from headscope.render.lines import Paragraph
from headscope.render.palette import QUIET, STRONG
from headscope.render.safe import label

_MOST_LINES = 10


def scan_screen(found: ScanSummary) -> RenderableType:
    """The summary of a scan."""
    parts: list[RenderableType] = [scan_verdict(found), Text()]
    for title, pairs in (
        ("not determined", found.causes),
        ("findings", found.findings),
        ("classes", found.classes),
        ("pooling", found.poolings),
    ):
        if pairs:
            parts += [_counts(title, pairs), Text()]
    if found.slowest:
        parts += [_slowest(found.slowest), Text()]
    parts.append(Paragraph(label(_effort(found), QUIET)))
    return Group(*parts)


def scan_verdict(found: ScanSummary) -> RenderableType:
    """One line: how many checkpoints came to which verdict."""
    words = ", ".join(f"{number:,} {WORDS[Verdict(name)].lower()}" for name, number in found.verdicts)
    return Paragraph(Text.assemble((f"{counted(found.rows, 'checkpoint')}: ", STRONG), words))


def _counts(title: str, pairs: Sequence[tuple[str, int]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="left", min_width=14)
    table.add_column(justify="right")
    table.add_column()
    for place, (name, number) in enumerate(pairs[:_MOST_LINES]):
        table.add_row(Text(title if place == 0 else "", STRONG), f"{number:,}", label(name))
    if len(pairs) > _MOST_LINES:
        rest = sum(number for _, number in pairs[_MOST_LINES:])
        table.add_row("", f"{rest:,}", label(f"of {len(pairs) - _MOST_LINES} more", QUIET))
    return table


def _slowest(pairs: Sequence[tuple[str, float]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(min_width=14)
    table.add_column(justify="right")
    table.add_column()
    for place, (name, seconds) in enumerate(pairs):
        table.add_row(Text("slowest" if place == 0 else "", STRONG), f"{seconds:.2f} s", label(name))
    return table


def _effort(found: ScanSummary) -> str:
    rate = found.written / found.seconds if found.seconds else 0.0
    skipped = f"; {counted(found.skipped, 'checkpoint')} skipped that the table holds" if found.skipped else ""
    read = f"{found.bytes_read / 1e6:,.1f} MB read, {counted(found.requests, 'request')}"
    return f"{counted(found.written, 'checkpoint')} in {found.seconds:,.1f} s ({rate:,.1f}/s), {read}{skipped}"
