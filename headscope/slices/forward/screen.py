"""Screen of `forward`: the shape at each stage, and with real weights its values and the scores by label."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from headscope.core.facts.counting import counted
from headscope.core.facts.seen import SeenStage, Statistics
from headscope.core.words.console import MODULE, OPERATION, QUIET, STRONG, TONE, Tone
from headscope.core.words.lines import Paragraph, align
from headscope.core.words.safe import label, safe
from headscope.core.words.words import axes_of
from headscope.shared.report.report_facts import remarks_of
from headscope.slices.forward.facts import ForwardReport, LabelScore

_MARGIN = 12
_MOST_LABELS = 5
_NAMES = ("min", "mean", "max", "std")
_NUMBERS = frozenset(range(3, 3 + len(_NAMES)))
_FUNCTIONS = {"softmax": "softmax over the logits", "sigmoid": "sigmoid of each logit", "none": "the raw logits"}
_BAD = TONE[Tone.ERROR]


def forward_screen(report: ForwardReport) -> RenderableType:
    """Shows scores by label and what makes them doubtful, then inputs and stages with shapes, and values if it ran."""
    remarks = list(_remark_lines(report))
    return Group(
        Paragraph(_opening_line(report)),
        *(remarks if report.scored else ()),
        *_score_lines(report),
        Text(),
        *(
            Paragraph(label(f"{name} {axes_of(shape)}"), Text("input", STRONG), _MARGIN)
            for name, shape in report.inputs
        ),
        Paragraph(label(axes_of(report.hidden_shape)), Text("hidden", STRONG), _MARGIN),
        Text(),
        _Stages(report.stages),
        Text(),
        Paragraph(label(axes_of(report.logits_shape)), Text("logits", STRONG), _MARGIN),
        *((Text(), *remarks) if remarks and not report.scored else ()),
    )


def forward_verdict(report: ForwardReport) -> RenderableType:
    """Shows the best label of each input and what makes it doubtful, or the shape of the scores, as `-q` does."""
    best = (
        f"{scored.input}: {scored.scores[0].label} {_probability_words(scored.scores[0])}" for scored in report.scored
    )
    shape = f"logits {axes_of(report.logits_shape)}"
    doubts = (
        *(report.notes if report.scored else ()),
        *(f"{gap.topic}: {gap.reason}" for gap in report.not_determined),
    )
    return Group(*(Paragraph(label(line)) for line in (*(best if report.scored else (shape,)), *doubts)))


@dataclass(frozen=True)
class _Stages:
    """Stages in aligned columns: the values of each beside its shape, or below it if the line is too narrow."""

    stages: Sequence[SeenStage]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [(*_stage_row(stage), *_value_cells(stage.statistics)) for stage in self.stages]
        if any(stage.statistics for stage in self.stages):
            rows.insert(0, (Text(), Text(), Text(), *(Text(name, QUIET) for name in _NAMES), Text()))
        table = align(rows, right=_NUMBERS)
        if all(line.cell_len <= options.max_width for line in table):
            yield from map(Paragraph, table)
            return
        named = [_named_statistics(stage.statistics) for stage in self.stages]
        for line, below in zip(align([_stage_row(stage) for stage in self.stages]), align(named), strict=True):
            yield Paragraph(line)
            if below:
                yield Paragraph(below, indent=4)


def _opening_line(report: ForwardReport) -> Text:
    how = "shapes only, no weights read" if report.device == "meta" else f"real weights on {report.device}"
    how += ", dummy inputs" if report.dummy_inputs else ""
    # Of other activations headscope does not know how they make scores of the logits.
    function = _FUNCTIONS.get(report.model.activation) if report.scored else None
    how += f"; scores: {function}" if function is not None else ""
    return label(f"{report.model.class_name}: {how}", STRONG)


def _stage_row(seen: SeenStage) -> tuple[Text, ...]:
    stage = seen.stage
    return (
        Text(f"{stage.operation} {safe(stage.detail)}".strip(), OPERATION),
        Text(safe(stage.module) or "in forward", MODULE),
        Text(axes_of(seen.shape)),
    )


def _value_cells(values: Statistics | None) -> tuple[Text, ...]:
    """Writes the numbers in the order of `_NAMES`, then the count of values that are not finite."""
    if values is None:
        return (*(Text() for _ in _NAMES), Text())
    numbers = (getattr(values, name) for name in _NAMES)
    bad = [f"{count:,} {name}" for name, count in (("NaN", values.nan), ("Inf", values.inf)) if count]
    return (*(Text("" if value is None else f"{value:.3g}") for value in numbers), Text(" and ".join(bad), _BAD))


def _named_statistics(values: Statistics | None) -> tuple[Text, ...]:
    """Writes the numbers, each behind its name."""
    *numbers, bad = _value_cells(values)
    return (
        *(
            Text.assemble((f"{name} ", QUIET), text) if text else text
            for name, text in zip(_NAMES, numbers, strict=True)
        ),
        bad,
    )


def _score_lines(report: ForwardReport) -> Iterator[RenderableType]:
    for scored in report.scored:
        yield Text()
        yield Paragraph(label(scored.input, STRONG))
        rows = []
        for score in scored.scores[:_MOST_LABELS]:
            logit = "not finite" if score.logit is None else f"{score.logit:.4g}"
            name = Text(f"  {safe(score.label)}", MODULE)
            rows.append((name, Text(_probability_words(score)), Text(f"logit {logit}", QUIET)))
        yield from map(Paragraph, align(rows))
        if len(scored.scores) > _MOST_LABELS:
            yield Text(f"  and {counted(len(scored.scores) - _MOST_LABELS, 'more label')}", QUIET)


def _probability_words(score: LabelScore) -> str:
    return "no probability" if score.probability is None else f"{score.probability:.4f}"


def _remark_lines(report: ForwardReport) -> Iterator[RenderableType]:
    for word, body in remarks_of(report.checkpoint.notices, report.not_determined):
        yield Paragraph(body, Text(word, STRONG), _MARGIN)
    for note in report.notes:
        yield Paragraph(label(note), Text("note", STRONG), _MARGIN)


def shown_screen(result: ForwardReport) -> RenderableType:
    """Renders a result as Python shows it."""
    return forward_screen(result)


def shown_line(result: ForwardReport) -> str:
    """Writes a result in one line."""
    name = safe(result.checkpoint.reference)
    return f"forward of {name}: logits {axes_of(result.logits_shape)} on {safe(result.device)}"
