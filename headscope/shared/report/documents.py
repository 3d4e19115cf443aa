"""A report as a JSON document and as Markdown."""

from collections.abc import Iterator

from headscope.core.facts import Head, Report, Severity
from headscope.core.facts.plain import to_dict
from headscope.core.words.document import Document
from headscope.core.words.plain_words import plain_words
from headscope.core.words.safe import code_span, plain
from headscope.core.words.words import axes_of
from headscope.shared.report.report_facts import (
    brief_label_facts,
    pooling_facts,
)
from headscope.shared.report.verdict import tell_verdict


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
