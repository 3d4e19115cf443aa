"""Screen of `inspect`: the verdict, the head path, what is wrong and what to do next; the rest on request."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.facts import Finding, Head, PoolingKind, Profile, Report, Severity
from headscope.facts.plain import to_dict
from headscope.render.head.head_path import HeadPath
from headscope.render.head.token_strip import TokenStrip
from headscope.render.head.tree import tree_of
from headscope.render.parts.findings import FindingLines, NextSteps, next_of_inspect, note_line
from headscope.render.parts.report_facts import (
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
from headscope.render.parts.verdict import tell_verdict, verdict_screen
from headscope.render.text.console import QUIET, STRONG
from headscope.render.text.document import Document
from headscope.render.text.lines import Paragraph
from headscope.render.text.plain_words import plain_words
from headscope.render.text.safe import code_span, label, plain
from headscope.render.text.tokens import is_pooling_known, token_rows
from headscope.render.text.words import axes_of

_MARGIN = 12

ReportSection = Callable[[Report], FactLines]


def inspect_screen(report: Report, *, details: bool = False, words: str | None = None) -> RenderableType:
    """Shows the answer in 12 to 20 lines for a BERT-like head; `details` adds everything else that is known.

    `words` are the arguments of `headscope inspect`: with them, the screen ends in the next commands.
    """
    sentence = plain_words(report)
    answer = (Paragraph(label(sentence)),) if sentence else ()
    parts: list[RenderableType] = [verdict_screen(report), *answer, Text()]
    if report.head is not None:
        parts += [tree_of(report, report.head) if details else _head_path(report, report.head), Text()]
    parts += _section_lines(report, _first_sections(report, details=details))
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


def inspect_document(report: Report) -> Document:
    """Builds the document of `inspect`: the report, and its verdict as a sentence."""
    return {**to_dict(report), "headline": tell_verdict(report).sentence}


def inspect_markdown(report: Report) -> str:
    """Writes the answer for a model card or an issue: verdict, head as a table of its steps, labels, findings."""
    lines = [f"**{plain(tell_verdict(report).sentence)}**", ""]
    words = plain_words(report)
    lines += [plain(words), ""] if words else []
    lines += ["| | |", "|---|---|", f"| checkpoint | {code_span(report.checkpoint.reference)} |"]
    lines += [f"| class | {code_span(report.model.class_name)} |"]
    formula = report.head.formula if report.head is not None else ""
    lines += [f"| formula | {code_span(formula)} |"] if formula else []
    facts = (item for section in (pooling_facts, brief_label_facts) for item in section(report))
    lines += [f"| {name} | {plain(body.plain)} |" for name, body in facts]
    lines += ["", *_stages_table(report.head)] if report.head is not None else []
    findings = [item for item in report.findings if item.severity is not Severity.NOTE]
    told = [f"- **{item.id}** {plain(item.message)} {plain(item.remedy)}" for item in findings]
    told += [f"- not determined: {plain(gap.topic)}: {plain(gap.reason)}" for gap in report.not_determined]
    lines += ["", *told] if told else []
    versions = f"Transformers {report.environment.transformers}"
    lines += ["", f"_headscope {report.tool_version}, {versions}: keys and shapes; numbers were not compared._"]
    return "\n".join(lines) + "\n"


def _stages_table(head: Head) -> Iterator[str]:
    status = {item.name: item.status.value for item in head.tensors}
    yield "| step | module | shape | weights |"
    yield "|---|---|---|---|"
    for stage in head.stages:
        weights = ", ".join(f"{code_span(name)} {status.get(name, '')}".strip() for name in stage.parameters)
        module = code_span(stage.module) if stage.module else ""
        yield f"| {plain(stage.operation)} | {module} | {plain(axes_of(stage.output_shape))} | {weights} |"


def inspect_verdict(report: Report) -> RenderableType:
    """Shows the verdict, the verdict on the classifier's numbers if there is one, and the errors, as `-q` does."""
    errors = (FindingLines(item, whole=True) for item in report.findings if item.severity is Severity.ERROR)
    return Group(verdict_screen(report), *_section_lines(report, (health_facts,))[:1], *errors)


def _head_path(report: Report, head: Head) -> HeadPath:
    model_type, version = report.checkpoint.model_type or "", report.environment.transformers
    return HeadPath(head, model_type, version, is_pooling_known(report))


def _first_sections(report: Report, *, details: bool) -> Sequence[ReportSection]:
    """Gives what follows the head path, with formula and loss unless the plain words say as much."""
    pooling = pooling_facts if details else brief_pooling_facts
    if plain_words(report):
        return (pooling, verified_facts)
    return (formula_facts, loss_facts, pooling, verified_facts)


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
