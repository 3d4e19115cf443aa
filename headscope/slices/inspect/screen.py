"""Screen of `inspect`: the verdict, the head path, what is wrong and what to do next; the rest on request."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.core.facts import Finding, PoolingKind, Profile, Report, Severity
from headscope.core.words.console import QUIET, STRONG
from headscope.core.words.lines import Paragraph
from headscope.core.words.plain_words import plain_words
from headscope.core.words.safe import label, safe
from headscope.core.words.tokens import is_pooling_known, token_rows
from headscope.core.words.words import result_of
from headscope.shared.report.findings import FindingLines, NextSteps, next_of_inspect, note_line
from headscope.shared.report.head.head_path import HeadPath
from headscope.shared.report.head.token_strip import TokenStrip
from headscope.shared.report.report_facts import (
    FactLines,
    adapter_lines,
    beside_facts,
    brief_label_facts,
    brief_pooling_facts,
    checkpoint_lines,
    evidence_facts,
    formula_facts,
    health_facts,
    label_facts,
    loss_facts,
    model_facts,
    note_facts,
    notice_facts,
    parameter_facts,
    pipeline_facts,
    pooling_facts,
    quantized_facts,
    repair_facts,
    score_head_facts,
    source_facts,
    unused_facts,
    verified_facts,
)
from headscope.shared.report.verdict import tell_verdict, verdict_screen
from headscope.slices.inspect.diff_screen import diff_screen

_MARGIN = 12

ReportSection = Callable[[Report], FactLines]


def inspect_screen(report: Report, *, details: bool = False, words: str | None = None) -> RenderableType:
    """Shows the answer in 12 to 20 lines for a BERT-like head; `details` adds everything else that is known.

    `words` are the arguments of `headscope inspect`: with them, the screen ends in the next commands.
    """
    sentence = plain_words(report)
    answer = (Paragraph(label(sentence)),) if sentence else ()
    parts: list[RenderableType] = [verdict_screen(report), *answer, Text()]
    if report.head is not None and details:
        from headscope.shared.report.head.tree import tree_of  # takes time, and `--details` alone shows it

        parts += [tree_of(report, report.head), Text()]
    elif report.head is not None:
        model_type, version = report.checkpoint.model_type or "", report.environment.transformers
        path = HeadPath(report.head, model_type, version, is_pooling_known(report), result_of(report.model))
        parts += [path, Text()]
    pooling = pooling_facts if details else brief_pooling_facts
    # The plain words say as much as the formula and the loss.
    formula: tuple[ReportSection, ...] = () if sentence else (formula_facts, loss_facts)
    parts += _section_lines(report, (*formula, pooling, verified_facts))
    if report.head is not None and (details or report.head.pooling.kind is not PoolingKind.NONE):
        parts.append(TokenStrip(token_rows(report, report.head), _MARGIN))
    parts += _section_lines(report, (label_facts if details else brief_label_facts, *_NEXT_SECTIONS))
    if details:
        parts += [
            *_finding_lines(report.findings, whole=True),
            Text(),
            Text("details", QUIET),
            *_section_lines(report, _detail_sections(report)),
        ]
    else:
        parts += _brief_findings(report)
    parts += _section_lines(report, (notice_facts,))
    if words is not None:
        parts.append(NextSteps(next_of_inspect(report, words, details=details)))
    return Group(*parts)


def inspect_verdict(report: Report) -> RenderableType:
    """Shows the verdict, the verdict on the classifier's numbers if there is one, and the errors, as `-q` does."""
    errors = (FindingLines(item, whole=True) for item in report.findings if item.severity is Severity.ERROR)
    return Group(verdict_screen(report), *_section_lines(report, (health_facts,))[:1], *errors)


_NEXT_SECTIONS: Sequence[ReportSection] = (
    quantized_facts, health_facts, pipeline_facts, score_head_facts, adapter_lines, repair_facts,
)  # fmt: skip


def _detail_sections(report: Report) -> Sequence[ReportSection]:
    first = (formula_facts, loss_facts) if plain_words(report) else ()
    return (
        *first, evidence_facts, model_facts, parameter_facts, unused_facts, beside_facts, checkpoint_lines,
        source_facts, note_facts,
    )  # fmt: skip


def _section_lines(report: Report, sections: Sequence[ReportSection]) -> list[RenderableType]:
    facts = (item for section in sections for item in section(report))
    return [Paragraph(body, Text(name, STRONG), _MARGIN) for name, body in facts]


def _finding_lines(findings: Iterable[Finding], *, whole: bool) -> Iterator[RenderableType]:
    return (FindingLines(item, whole) for item in findings)


def _brief_findings(report: Report) -> Iterator[RenderableType]:
    """Shows errors and warnings with what to do, and notes by name: the verdict and the labels have their content."""
    notes = [item for item in report.findings if item.severity is Severity.NOTE]
    graver = [item for item in report.findings if item not in notes]
    yield from _finding_lines(graver, whole=False)
    if notes:
        is_start = report.profile is Profile.TRAINING and not graver
        yield note_line(notes, remark="normal before training" if is_start else "")


def shown_screen(result: Report) -> RenderableType:
    """Renders a report of `inspect` or `diff-weights` as Python shows it."""
    return diff_screen(result) if result.command == "diff-weights" else inspect_screen(result, details=True)


def shown_line(result: Report) -> str:
    """Writes a report in one line."""
    return f"{result.command} of {safe(result.checkpoint.reference)}: {safe(tell_verdict(result).sentence)}"
