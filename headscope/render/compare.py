"""The screen of `compare`: the differences first, then the heads stage by stage, side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from headscope.facts import Head, HeadParameter, ParameterStatus, Report, Stage
from headscope.facts.comparison import PARAMETER, Comparison, SameValues
from headscope.facts.counting import counted
from headscope.facts.tasks import WITHOUT_CLASSES
from headscope.render.exported import export_lines, export_verdict
from headscope.render.lines import Paragraph, align
from headscope.render.palette import QUIET, STATUS, STRONG, TONE, Tone
from headscope.render.safe import label, safe
from headscope.render.stages import own_parameters
from headscope.render.words import axes_of, size_of

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MARGIN = 14
_NARROW = 4
_DIFFERS = "yellow"


def compare_screen(comparison: Comparison) -> RenderableType:
    """The whole comparison as a Rich renderable."""
    parts: list[RenderableType] = [compare_verdict(comparison), Text(), *_models(comparison.reports), Text()]
    differences = list(_differences(comparison))
    parts += [*differences, Text()] if differences else []
    parts.append(_Stages(comparison))
    for export in comparison.exports:
        parts += [Text(), *export_lines(export)]
    if comparison.values:
        parts += [Text(), *_values(comparison.values)]
    return Group(*parts)


def compare_verdict(comparison: Comparison) -> RenderableType:
    """One sentence: all that `-q` shows."""
    unknown = [report for report in comparison.reports if report.not_determined]
    if unknown:
        names = ", ".join(report.checkpoint.reference for report in unknown)
        return Paragraph(label(f"Not determined: what {names} holds could not all be read", TONE[Tone.WARNING]))
    if comparison.exports:
        return Group(*_of_several(comparison), *map(export_verdict, comparison.exports))
    if not comparison.differences:
        return Paragraph(label(f"The heads are alike{_sentence(comparison.values)}", TONE[Tone.GOOD]))
    named = ", ".join(_kinds(comparison))
    return Paragraph(label(f"The heads differ in {named}{_sentence(comparison.values)}", TONE[Tone.NOTE]))


def _of_several(comparison: Comparison) -> Iterator[RenderableType]:
    """The sentence on the checkpoints beside exports, where there are several."""
    if len(comparison.reports) > 1:
        yield compare_verdict(replace(comparison, exports=()))


def _kinds(comparison: Comparison) -> Iterator[str]:
    """What differs, with the single parameters under one name."""
    names = (item.what for item in comparison.differences)
    kinds = ("weights of the head" if name.startswith(PARAMETER) else name for name in names)
    yield from dict.fromkeys(kinds)


def _sentence(values: Sequence[SameValues]) -> str:
    """What the stored numbers say, in one clause."""
    if not values:
        return ""
    same = sum(item.identical is True for item in values)
    other = sum(item.identical is False for item in values)
    unread = len(values) - same - other
    if same == len(values):
        return f"; the numbers of all {counted(same, 'tensor')} are identical, bit by bit"
    clauses = [f"the numbers of {other} of {counted(len(values), 'tensor')} differ"] if other else []
    clauses += [f"{same} are identical"] if same else []
    clauses += [f"{unread} were not read"] if unread else []
    return "; " + ", ".join(clauses)


def _models(reports: Sequence[Report]) -> Iterator[RenderableType]:
    for letter, report in zip(_LETTERS, reports, strict=False):
        model = report.model
        classes = "" if model.task in WITHOUT_CLASSES else f", {counted(model.num_labels, 'class', 'classes')}"
        body = label(f"{report.checkpoint.reference}: {model.class_name}{classes}")
        yield Paragraph(body, Text(letter, STRONG), _MARGIN)


def _differences(comparison: Comparison) -> Iterator[RenderableType]:
    """Each difference but those of single parameters, which stand with their stages."""
    for item in comparison.differences:
        if item.what.startswith(PARAMETER):
            continue
        yield Paragraph(label(item.what, STRONG))
        for letter, value in zip(_LETTERS, item.values, strict=False):
            yield Paragraph(label(value, _DIFFERS), Text(f"  {letter}", QUIET), _MARGIN)


@dataclass(frozen=True)
class _Stages:
    """The stages side by side where the columns fit the width, else one below the other."""

    comparison: Comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self._table()
        fits = all(line.cell_len <= options.max_width for line in table)
        yield Group(*(map(Paragraph, table) if fits else self._list()))

    def _table(self) -> list[Text]:
        """A column for each head; a stage takes as many lines as the head with most parameters there needs."""
        header = [Text(letter, STRONG) for letter, _ in zip(_LETTERS, self.comparison.reports, strict=False)]
        lines = (line for row in self._rows() for line in zip_longest(*row, fillvalue=Text()))
        return align([header, *lines])

    def _list(self) -> Iterator[RenderableType]:
        for number, row in enumerate(self._rows(), start=1):
            yield Paragraph(Text(f"stage {number}", STRONG))
            for letter, lines in zip(_LETTERS, row, strict=False):
                for at, line in enumerate(lines):
                    yield Paragraph(line, Text("" if at else f"  {letter}", QUIET), _NARROW)

    def _rows(self) -> Iterator[list[list[Text]]]:
        reports = self.comparison.reports
        for row in self.comparison.stages:
            same = len({_words(stage) for stage in row}) == 1
            yield [_stage(stage, report.head, same) for stage, report in zip(row, reports, strict=True)]


def _words(stage: Stage | None) -> str:
    return "" if stage is None else f"{stage.operation} {stage.detail} {stage.output_shape}"


def _stage(stage: Stage | None, head: Head | None, same: bool) -> list[Text]:
    """The lines of one stage: what it does, then its parameters."""
    if stage is None:
        return [Text("-", _DIFFERS)]
    text = label(f"{stage.operation} {stage.detail}".strip(), "" if same else _DIFFERS)
    text.append(f" -> {axes_of(stage.output_shape)}")
    return [text, *(Text("  ").append(_parameter(item)) for item in (own_parameters(head, stage) if head else ()))]


def _parameter(item: HeadParameter) -> Text:
    size = size_of(item.shape)
    if item.status is ParameterStatus.MISMATCHED and item.checkpoint_shape is not None:
        size = f"{size_of(item.checkpoint_shape)} -> {size}"
    return Text.assemble(f"{safe(item.name)} {size} ", (item.status.value, STATUS[item.status]))


def _values(values: Sequence[SameValues]) -> Iterator[RenderableType]:
    words = {True: ("identical", "yellow"), False: ("different", "green"), None: ("not read", "magenta")}
    for item in values:
        word, style = words[item.identical]
        body = label(f"{item.parameter}{f': {item.reason}' if item.reason else ''}")
        yield Paragraph(body, Text(word, style), _MARGIN)
