"""A report as a JSON document and as Markdown."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from headscope.core.facts import Head, Report, Severity
from headscope.core.facts.plain import to_dict, to_json_value
from headscope.core.words.document import Document
from headscope.core.words.plain_words import plain_words
from headscope.core.words.safe import code_span, plain
from headscope.core.words.tokens import is_pooling_known
from headscope.core.words.words import axes_of, brief_rule
from headscope.shared.report.report_facts import (
    brief_label_facts,
    pooling_facts,
)
from headscope.shared.report.verdict import tell_verdict

OF_THE_DIFF = (
    "schema_version",
    "tool_version",
    "command",
    "environment",
    "checkpoint",
    "model",
    "weights",
    "unplaced",
    "notes",
    "not_determined",
    "repaired",
)
"""Fields of a report that `diff-weights` has: all but the head and the findings."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What `inspect` says in a few lines: `--format brief` gives it alone."""

    reference: str
    """The checkpoint as the user named it."""
    class_name: str = field(metadata={"json": "class"})
    """The class that is loaded."""
    verdict: str
    """Whether the checkpoint gives every weight that the logits depend on: `verdict` of the report."""
    headline: str
    """The verdict as a sentence."""
    kind: str
    """What kind of model the classifier is, such as a logistic regression, on which vector; empty where it has no
    common name, or isn't determined."""
    formula: str
    """How the hidden states `h` become logits; empty where it isn't determined."""
    pooling: str
    """Which positions of the hidden states are read; empty where there is no head, or it isn't determined."""
    num_labels: int
    """The number of classes."""
    labels: tuple[str, ...]
    """The names of the classes in the order of the scores: the first eight."""
    new_count: int
    """How many parameters every load draws at random, or have another shape."""
    new: tuple[str, ...]
    """Their names: the first eight."""
    findings: tuple[str, ...]
    """The rules that found something, with their severities: `error HS107 The adapter does not carry the head`."""
    not_determined: tuple[str, ...]
    """What could not be determined, with the reason."""


_MOST_NAMES = 8


def summary_of(report: Report) -> Summary:
    """Sums a report up."""
    head = report.head
    new = (*report.weights.new, *(item.parameter for item in report.weights.mismatched))
    return Summary(
        reference=report.checkpoint.reference,
        class_name=report.model.class_name,
        verdict=report.verdict,
        headline=tell_verdict(report).sentence,
        kind=plain_words(report),
        formula=head.formula if head is not None else "",
        pooling=brief_rule(head.pooling) if head is not None and is_pooling_known(report) else "",
        num_labels=report.model.num_labels,
        labels=report.model.labels[:_MOST_NAMES],
        new_count=len(new),
        new=new[:_MOST_NAMES],
        findings=tuple(f"{item.severity} {item.id} {item.title}" for item in report.findings),
        not_determined=tuple(f"{gap.topic}: {gap.reason}" for gap in report.not_determined),
    )


def inspect_document(report: Report) -> Document:
    """Builds the document of `inspect`: the report in a few lines, and whole."""
    summary = summary_of(report)
    return {"summary": to_dict(summary), **to_dict(report), "headline": summary.headline}


def diff_document(report: Report, *, every: bool = False) -> Document:
    """Builds the document of `diff-weights`; with `every`, `weights.parameters` lists the loaded ones too."""
    whole = report.to_dict()
    document = {name: whole[name] for name in OF_THE_DIFF}
    if every:
        document["weights"]["parameters"] = to_json_value(report.weights.parameters)
    return document


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
    lines += ["", f"_headscope {report.tool_version}, {versions}: keys and shapes; values were not compared._"]
    return "\n".join(lines) + "\n"


def _stages_table(head: Head) -> Iterator[str]:
    status = {item.name: item.status.value for item in head.tensors}
    yield "| step | module | shape | weights |"
    yield "|---|---|---|---|"
    for stage in head.stages:
        weights = ", ".join(f"{code_span(name)} {status.get(name, '')}".strip() for name in stage.parameters)
        module = code_span(stage.module) if stage.module else ""
        yield f"| {plain(stage.operation)} | {module} | {plain(axes_of(stage.output_shape))} | {weights} |"
