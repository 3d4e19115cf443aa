"""The screen of `forward`: the shape at each stage, and with real weights its values and the scores by label."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from headscope.facts import Shape
from headscope.facts.forward import ForwardReport, LabelScore, Scored, SeenStage, Statistics
from headscope.render.document import Document
from headscope.render.lines import Paragraph, align
from headscope.render.palette import MODULE, OPERATION, QUIET, STRONG, TONE, Tone
from headscope.render.safe import label, safe

_MARGIN = 12
_BELOW = 4
_MOST_LABELS = 5


def forward_document(report: ForwardReport) -> Document:
    """The document of `forward`."""
    return report.to_dict()


def forward_screen(report: ForwardReport) -> RenderableType:
    """Inputs, stages with shapes (and values, on a real device), and scores by label."""
    return Group(
        Paragraph(_opening(report)),
        Text(),
        *_inputs(report),
        Paragraph(label(f"{_shape(report.hidden_shape)}"), Text("hidden", STRONG), _MARGIN),
        Text(),
        _Stages(report.stages),
        Text(),
        Paragraph(label(_shape(report.logits_shape)), Text("logits", STRONG), _MARGIN),
        *_scores(report),
        *_remarks(report),
    )


@dataclass(frozen=True)
class _Stages:
    """The stages in aligned columns: the values of each beside its shape, or below it where the line is too narrow."""

    stages: Sequence[SeenStage]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        values = [_values(stage.statistics) for stage in self.stages]
        wide = align([(*_row(stage), *own) for stage, own in zip(self.stages, values, strict=True)])
        if all(line.cell_len <= options.max_width for line in wide):
            yield from map(Paragraph, wide)
            return
        for line, below in zip(align([_row(stage) for stage in self.stages]), align(values), strict=True):
            yield Paragraph(line)
            if below:
                yield Paragraph(below, indent=_BELOW)


def _opening(report: ForwardReport) -> Text:
    how = "shapes only, no weights read" if report.device == "meta" else f"real weights on {report.device}"
    how += ", invented inputs" if report.invented_inputs else ""
    return label(f"{report.model.class_name}: {how}", STRONG)


def _inputs(report: ForwardReport) -> Iterator[RenderableType]:
    for name, shape in report.inputs:
        yield Paragraph(label(f"{name} {_shape(shape)}"), Text("input", STRONG), _MARGIN)


def _shape(shape: Shape) -> str:
    return f"[{', '.join(str(size) for size in shape)}]"


def _row(seen: SeenStage) -> tuple[Text, ...]:
    stage = seen.stage
    return (
        Text(f"{stage.operation} {safe(stage.detail)}".strip(), OPERATION),
        Text(safe(stage.module) or "in forward", MODULE),
        Text(_shape(seen.shape)),
    )


def _values(values: Statistics | None) -> tuple[Text, ...]:
    if values is None:
        return (Text(), Text())
    numbers = {"min": values.min, "mean": values.mean, "max": values.max, "std": values.std}
    sentence = "  ".join(f"{name} {_number(value)}" for name, value in numbers.items())
    bad = [f"{count} {name}" for name, count in (("NaN", values.nan), ("Inf", values.inf)) if count]
    return Text(sentence, QUIET), Text(" and ".join(bad), TONE[Tone.ERROR])


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _scores(report: ForwardReport) -> Iterator[RenderableType]:
    for scored in report.scored:
        yield Text()
        yield Paragraph(label(scored.input, STRONG))
        yield from (Paragraph(line) for line in align(list(_ranks(scored))))
        if len(scored.scores) > _MOST_LABELS:
            yield Text(f"  and {len(scored.scores) - _MOST_LABELS} more labels", QUIET)


def _ranks(scored: Scored) -> Iterator[tuple[Text, ...]]:
    for score in scored.scores[:_MOST_LABELS]:
        yield Text(f"  {safe(score.label)}", MODULE), Text(_chance(score)), Text(f"logit {_number(score.logit)}", QUIET)


def _chance(score: LabelScore) -> str:
    return "none" if score.probability is None else f"{score.probability:.4f}"


def _remarks(report: ForwardReport) -> Iterator[RenderableType]:
    remarks = [
        *report.checkpoint.notices,
        *report.notes,
        *(f"{gap.what}: {gap.reason}" for gap in report.not_determined),
    ]
    if remarks:
        yield Text()
    for remark in remarks:
        yield Paragraph(label(remark), Text("note", TONE[Tone.WARNING]), _MARGIN)
