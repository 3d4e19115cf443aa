"""Summary of `scan` on the screen and as Markdown: counts over the table, the verdicts first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.checks.screen import WORDS
from headscope.core.facts.counting import counted
from headscope.core.facts.verdict import Verdict
from headscope.core.words.console import QUIET, STRONG
from headscope.core.words.document import Document, opening
from headscope.core.words.lines import GAP, Paragraph
from headscope.core.words.safe import code_span, label, plain
from headscope.core.words.words import bytes_of
from headscope.slices.fleet.facts import Count, Interval, RuleCount, ScanSummary


class Counting(StrEnum):
    """Properties that rows are counted by; the titles of the sections."""

    VERDICTS = "verdicts"
    PROFILES = "judged for"
    CAUSES = "not determined"
    FINDINGS = "findings"
    CLASSES = "class"
    POOLING = "pooling"
    SLOWEST = "slowest"
    SECONDS = "time per checkpoint"


@dataclass(frozen=True, slots=True)
class CountLine:
    """A number, what it counts, and what that means (empty if the name says it)."""

    number: str
    name: str
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """One way to count the rows, by a `noun`; `more` says what was left out, `unit` what the numbers are."""

    title: Counting
    noun: str
    lines: tuple[CountLine, ...]
    more: CountLine | None = None
    unit: str = "rows"


def verdict_sentence(found: ScanSummary) -> str:
    """Counts the checkpoints by verdict: `3 checkpoints: 2 passed, 1 failed`."""
    return "".join(_scope_and_verdicts(found))


def _scope_and_verdicts(found: ScanSummary) -> tuple[str, str]:
    """Splits the sentence behind its colon, since the screen sets the first part in bold; no colon without a row."""
    scope = counted(found.rows, "checkpoint")
    words = ", ".join(f"{line.number} {line.name}" for line in _verdict_lines(found))
    return (f"{scope}:", f" {words}") if words else (scope, "")


def effort_sentences(found: ScanSummary) -> tuple[str, ...]:
    """Says what this run did, and what was read for all rows of the table."""
    each = found.written / found.seconds if found.seconds else 0.0
    rate = f" ({each:,.1f}/s)" if each >= 1 else f" ({each:.2g}/s)" if each else ""
    run = f"This run wrote {counted(found.written, 'row')} in {found.seconds:,.1f} s{rate}."
    held = f"The table already held {counted(found.skipped, 'checkpoint')}."
    read = f"All rows: {bytes_of(found.bytes_read)} read, {counted(found.requests, 'request')} to the Hub."
    unseen = ", ".join(f"{one.name} ({one.count:,})" for one in found.not_checked)
    unchecked = f"Skipped rules, with the number of rows: {unseen}. `headscope check` runs all on one checkpoint."
    return (run, *((held,) if found.skipped else ()), read, *((unchecked,) if unseen else ()))


def sections(found: ScanSummary, most: int = 10) -> tuple[Section, ...]:
    """Gives the counts under their titles, at most `most` lines each; leaves out empty sections."""
    slowest = tuple(CountLine(f"{one.seconds:,.2f} s", one.reference) for one in found.slowest)
    every = (
        Section(Counting.VERDICTS, "verdict", _verdict_lines(found)),
        _count_section(Counting.PROFILES, "profile", found.profiles, most),
        _count_section(Counting.CAUSES, "cause", found.causes, most),
        _count_section(Counting.FINDINGS, "rule", found.findings, most),
        _count_section(Counting.CLASSES, "class", found.classes, most),
        _count_section(Counting.POOLING, "kind", found.poolings, most),
        Section(Counting.SLOWEST, "checkpoint", slowest, unit="time"),
    )
    return tuple(one for one in every if one.lines)


def verdicts_in_order(found: ScanSummary) -> tuple[Count, ...]:
    """Sorts the verdicts in the order in which every command names them."""
    return tuple(sorted(found.verdicts, key=lambda one: list(Verdict).index(Verdict(one.name))))


def _verdict_lines(found: ScanSummary) -> tuple[CountLine, ...]:
    return tuple(CountLine(f"{one.count:,}", WORDS[Verdict(one.name)].lower()) for one in verdicts_in_order(found))


def _count_section(title: Counting, noun: str, counts: Sequence[Count | RuleCount], most: int) -> Section:
    most += len(counts) == most + 1  # "1 other" would take as much room
    rest = counts[most:]
    more = CountLine(f"{sum(one.count for one in rest):,}", f"in {counted(len(rest), 'other')}") if rest else None
    return Section(title, noun, tuple(map(_line_of, counts[:most])), more)


def _line_of(one: Count | RuleCount) -> CountLine:
    if isinstance(one, Count):
        return CountLine(f"{one.count:,}", one.name)
    return CountLine(f"{one.count:,}", " ".join(filter(None, (one.id, one.name))), one.title)


def interval_words(one: Interval) -> tuple[str, str]:
    """Writes an interval in two parts: `under` `0.1 s`, `0.1` `to 0.3 s`, `300` `s or more`."""
    if one.high is None:
        return f"{one.low:g}", "s or more"
    return (f"{one.low:g}", f"to {one.high:g} s") if one.low else ("under", f"{one.high:g} s")


def scan_screen(found: ScanSummary) -> RenderableType:
    """Shows the summary of a scan."""
    parts: list[RenderableType] = [scan_verdict(found), Text()]
    shown = [one for one in sections(found) if one.title is not Counting.VERDICTS]  # the first line has them
    titles = max((len(section.title) for section in shown), default=0)
    numbers = max((len(line.number) for section in shown for line in _with_rest(section)), default=0)
    for section in shown:
        parts += [*_section_lines(section, titles, numbers), Text()]
    parts += [Paragraph(label(sentence, QUIET)) for sentence in effort_sentences(found)]
    return Group(*parts)


def scan_verdict(found: ScanSummary) -> RenderableType:
    """Shows in one line how many checkpoints have which verdict."""
    scope, verdicts = _scope_and_verdicts(found)
    return Paragraph(Text.assemble((scope, STRONG), verdicts))


def _with_rest(section: Section) -> tuple[CountLine, ...]:
    return (*section.lines, section.more) if section.more else section.lines


def _section_lines(section: Section, titles: int, numbers: int) -> Iterator[RenderableType]:
    indent = titles + GAP + numbers + GAP
    for place, line in enumerate(_with_rest(section)):
        title = Text(("" if place else section.title).ljust(titles + GAP), STRONG)
        name = label(
            f"{line.name}: {line.meaning}" if line.meaning else line.name, QUIET if line is section.more else ""
        )
        yield Paragraph(name, Text.assemble(title, line.number.rjust(numbers)), indent)


def scan_markdown(found: ScanSummary) -> str:
    """Writes the summary as Markdown, for a job summary on GitHub."""
    lines = ["## headscope scan", "", f"**{plain(verdict_sentence(found))}**", ""]
    for section in sections(found):
        meant = any(line.meaning for line in section.lines)
        head = (section.unit, section.noun, *(("meaning",) if meant else ()))
        lines += [f"### {section.title.capitalize()}", "", f"| {' | '.join(head)} |"]
        lines += [f"|---:|{'---|' * (len(head) - 1)}"]
        for line in section.lines:
            cells = (line.number, code_span(line.name), *((plain(line.meaning),) if meant else ()))
            lines.append(f"| {' | '.join(cells)} |")
        if section.more:
            lines.append(f"| {section.more.number} | {section.more.name} |{' |' if meant else ''}")
        lines.append("")
    return "\n".join((*lines, " ".join(map(plain, effort_sentences(found))))) + "\n"


def scan_document(found: ScanSummary) -> Document:
    """Builds the document of `scan`: counts over the table."""
    return {**opening("scan"), **found.to_dict()}
