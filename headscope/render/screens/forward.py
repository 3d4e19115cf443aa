"""The screen of `forward`: the shape at each stage, and with real weights its values and the scores by label."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from headscope.facts import Shape
from headscope.facts.counting import counted
from headscope.facts.results.forward import ForwardReport, LabelScore, Scored, SeenStage, Statistics
from headscope.render.parts.report_facts import remarks_of
from headscope.render.text.console import MODULE, OPERATION, QUIET, STRONG, TONE, Tone
from headscope.render.text.document import Document
from headscope.render.text.lines import Paragraph, align
from headscope.render.text.safe import label, safe

_MARGIN = 12
_MOST_LABELS = 5
_NAMES = ("min", "mean", "max", "std")
_NUMBERS = frozenset(range(3, 3 + len(_NAMES)))
_FUNCTIONS = {"softmax": "softmax over the logits", "sigmoid": "sigmoid of each logit", "none": "the raw logits"}
_BAD = TONE[Tone.ERROR]


def forward_document(report: ForwardReport) -> Document:
    """The document of `forward`."""
    return report.to_dict()


def forward_screen(report: ForwardReport) -> RenderableType:
    """Scores by label with what makes them doubtful, then inputs and stages: shapes, and on a real device values."""
    remarks = list(_remarks(report))
    return Group(
        Paragraph(_opening(report)),
        *(remarks if report.scored else ()),
        *_scores(report),
        Text(),
        *_inputs(report),
        Paragraph(label(f"{_shape(report.hidden_shape)}"), Text("hidden", STRONG), _MARGIN),
        Text(),
        _Stages(report.stages),
        Text(),
        Paragraph(label(_shape(report.logits_shape)), Text("logits", STRONG), _MARGIN),
        *((Text(), *remarks) if remarks and not report.scored else ()),
    )


def forward_verdict(report: ForwardReport) -> RenderableType:
    """The best label of each input with what makes it doubtful, or the shape of the scores: what `-q` shows."""
    best = (f"{scored.input}: {scored.scores[0].label} {_chance(scored.scores[0])}" for scored in report.scored)
    shape = f"logits {_shape(report.logits_shape)}"
    doubts = (
        *(report.notes if report.scored else ()),
        *(f"{gap.topic}: {gap.reason}" for gap in report.not_determined),
    )
    return Group(*(Paragraph(label(line)) for line in (*(best if report.scored else (shape,)), *doubts)))


@dataclass(frozen=True)
class _Stages:
    """The stages in aligned columns: the values of each beside its shape, or below it where the line is too narrow."""

    stages: Sequence[SeenStage]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self._table()
        if all(line.cell_len <= options.max_width for line in table):
            yield from map(Paragraph, table)
            return
        named = [_named_statistics(stage.statistics) for stage in self.stages]
        for line, below in zip(align([_row(stage) for stage in self.stages]), align(named), strict=True):
            yield Paragraph(line)
            if below:
                yield Paragraph(below, indent=4)

    def _table(self) -> list[Text]:
        rows = [(*_row(stage), *_values(stage.statistics)) for stage in self.stages]
        if any(stage.statistics for stage in self.stages):
            rows.insert(0, (Text(), Text(), Text(), *(Text(name, QUIET) for name in _NAMES), Text()))
        return align(rows, right=_NUMBERS)


def _opening(report: ForwardReport) -> Text:
    how = "shapes only, no weights read" if report.device == "meta" else f"real weights on {report.device}"
    how += ", invented inputs" if report.invented_inputs else ""
    how += f"; scores: {_FUNCTIONS[report.model.activation]}" if _has_function(report) else ""
    return label(f"{report.model.class_name}: {how}", STRONG)


def _has_function(report: ForwardReport) -> bool:
    """Whether there are scores, and headscope knows what makes them of the logits."""
    return bool(report.scored) and report.model.activation in _FUNCTIONS


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
    """The numbers in the order of `_NAMES`, and how many values are not finite."""
    if values is None:
        return (*(Text() for _ in _NAMES), Text())
    numbers = (getattr(values, name) for name in _NAMES)
    bad = [f"{count:,} {name}" for name, count in (("NaN", values.nan), ("Inf", values.inf)) if count]
    return (*(Text("" if value is None else f"{value:.3g}") for value in numbers), Text(" and ".join(bad), _BAD))


def _named_statistics(values: Statistics | None) -> tuple[Text, ...]:
    """The numbers, each behind its name."""
    *numbers, bad = _values(values)
    return (
        *(
            Text.assemble((f"{name} ", QUIET), text) if text else text
            for name, text in zip(_NAMES, numbers, strict=True)
        ),
        bad,
    )


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _scores(report: ForwardReport) -> Iterator[RenderableType]:
    for scored in report.scored:
        yield Text()
        yield Paragraph(label(scored.input, STRONG))
        yield from (Paragraph(line) for line in align(list(_ranks(scored))))
        if len(scored.scores) > _MOST_LABELS:
            yield Text(f"  and {counted(len(scored.scores) - _MOST_LABELS, 'more label')}", QUIET)


def _ranks(scored: Scored) -> Iterator[tuple[Text, ...]]:
    for score in scored.scores[:_MOST_LABELS]:
        yield Text(f"  {safe(score.label)}", MODULE), Text(_chance(score)), Text(f"logit {_number(score.logit)}", QUIET)


def _chance(score: LabelScore) -> str:
    return "no probability" if score.probability is None else f"{score.probability:.4f}"


def _remarks(report: ForwardReport) -> Iterator[RenderableType]:
    for word, body in remarks_of(report.checkpoint.notices, report.not_determined):
        yield Paragraph(body, Text(word, STRONG), _MARGIN)
    for note in report.notes:
        yield Paragraph(label(note), Text("note", STRONG), _MARGIN)
