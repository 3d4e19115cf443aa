"""The screen of `compare`: the differences first, then the heads stage by stage, side by side."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from string import ascii_uppercase

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from headscope.facts import Head, HeadParameter, ParameterStatus, Report, Stage
from headscope.facts.counting import counted
from headscope.facts.heads.tasks import WITHOUT_CLASSES
from headscope.facts.results.comparison import PARAMETER, Comparison, SameValues, role_of
from headscope.render.head.stages import own_parameters
from headscope.render.parts.export import export_lines, export_verdict
from headscope.render.text.console import QUIET, STATUS, STRONG, TONE, Tone
from headscope.render.text.lines import GAP, Paragraph, wrapped
from headscope.render.text.safe import label, safe
from headscope.render.text.words import axes_of, size_of

_MARGIN = 14
_NARROW = 4
_DIFFERS = "yellow"


def compare_screen(comparison: Comparison) -> RenderableType:
    """The whole comparison as a Rich renderable."""
    parts: list[RenderableType] = [compare_verdict(comparison), Text(), _Heads(comparison)]
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
        tone = Tone.NOTE if comparison.differs else Tone.GOOD
        return Paragraph(label(f"The heads are alike{_sentence(comparison.values)}", TONE[tone]))
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


@dataclass(frozen=True)
class _Heads:
    """What differs and the stages: a column for each model from WIDE_ENOUGH on, otherwise one below the other."""

    comparison: Comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        count = len(self.comparison.reports)
        width = (options.max_width - _MARGIN) // max(count, 1) - GAP
        if options.max_width >= _WIDE_ENOUGH and 1 < count <= _MOST_COLUMNS:
            yield Group(*_table(self.comparison, width))
        else:
            yield Group(*_stacked(self.comparison))


_WIDE_ENOUGH = 120
_MOST_COLUMNS = 4


def _table(comparison: Comparison, width: int) -> Iterator[RenderableType]:
    """A column for each model, at most `width` wide."""
    models = [label(report.checkpoint.reference, STRONG) for report in comparison.reports]
    yield from _lines("", models, width)
    for name, cells in _rows(comparison):
        yield from _lines(name, cells, width)


def _lines(name: str, cells: Sequence[Text], width: int) -> Iterator[RenderableType]:
    """One row of the table: the lines that its cells take, side by side."""
    columns = [wrapped(cell, width) for cell in cells]
    for number, row in enumerate(zip_longest(*columns, fillvalue=Text())):
        line = Text(overflow="fold")
        for at, cell in enumerate(row):
            line.append_text(cell)
            line.append(" " * (width + GAP - cell.cell_len) if at < len(row) - 1 else "")
        line.rstrip()
        yield Paragraph(line, label("" if number else name, STRONG), _MARGIN)


def _stacked(comparison: Comparison) -> Iterator[RenderableType]:
    """The same rows with a line for each value, behind the signs of the models that have it."""
    rows = [(name, _by_value(cells)) for name, cells in _rows(comparison)]
    widths = [len(signs) for _, groups in rows for signs, _ in groups if len(signs) <= _MOST_SIGNS]
    indent = max([_NARROW, *(len(_LEAD) + width + 1 for width in widths)])
    for at, report in enumerate(comparison.reports):
        yield Paragraph(label(report.checkpoint.reference, STRONG), Text(_sign(at), STRONG), _NARROW)
    for name, groups in rows:
        yield Paragraph(label(name, STRONG))
        for signs, cell in groups:
            sign = Text(f"{_LEAD}{signs}", QUIET)
            if sign.cell_len >= indent:
                yield Paragraph(sign)
            yield Paragraph(cell, sign if sign.cell_len < indent else Text(), indent)


_LEAD = "  "
_MOST_SIGNS = 9


def _by_value(cells: Sequence[Text]) -> list[tuple[str, Text]]:
    """Each value with the signs of its models, or with `=` if it is that of all."""
    if all(cell.plain == _SAME for cell in cells[1:]):
        return [("=", cells[0])]
    groups: dict[str, list[int]] = {}
    for at, cell in enumerate(cells):
        groups.setdefault(cell.plain, []).append(at)
    return [(" ".join(map(_sign, models)), cells[models[0]]) for models in groups.values()]


def _sign(at: int) -> str:
    """What stands for a model in a list: a letter, or a number beyond the alphabet."""
    return ascii_uppercase[at] if at < len(ascii_uppercase) else str(at + 1)


def _rows(comparison: Comparison) -> Iterator[tuple[str, list[Text]]]:
    """The differences but those of single parameters, which stand with their stages; then the stages by role."""
    differing = {item.what for item in comparison.differences}
    for name, read in _ALWAYS.items():
        if name not in differing:
            yield name, _folded([label(read(report)) for report in comparison.reports])
    for item in comparison.differences:
        if not item.what.startswith(PARAMETER) and item.what != "operations":
            yield item.what, _folded([label(value, _DIFFERS) for value in item.values])
    for row in comparison.stages:
        role = next(role_of(stage.operation) for stage in row if stage is not None)
        same = len({_words(stage) for stage in row}) == 1
        cells = [_stage(stage, report.head, same) for stage, report in zip(row, comparison.reports, strict=True)]
        yield role, _folded(cells)


_ALWAYS: dict[str, Callable[[Report], str]] = {
    "class": lambda report: report.model.class_name,
    "classes": lambda report: WITHOUT_CLASSES.get(report.model.task, f"{report.model.num_labels:,}"),
}
"""What the table shows even if it is the same."""


def _folded(cells: list[Text]) -> list[Text]:
    """The cells, or the first and a sign where all say the same."""
    if len({cell.plain for cell in cells}) > 1:
        return cells
    return [cells[0], *(Text(_SAME, QUIET) for _ in cells[1:])]


_SAME = "the same"


def _words(stage: Stage | None) -> str:
    return "" if stage is None else f"{stage.operation} {stage.detail} {stage.output_shape}"


def _stage(stage: Stage | None, head: Head | None, same: bool) -> Text:
    """The lines of one stage: what it does, then its parameters."""
    if stage is None:
        return Text("-", _DIFFERS)
    text = label(f"{stage.operation} {stage.detail}".strip(), "" if same else _DIFFERS)
    text.append(f" -> {axes_of(stage.output_shape)}")
    for item in own_parameters(head, stage) if head else ():
        text.append("\n").append_text(_parameter(item))
    return text


def _parameter(item: HeadParameter) -> Text:
    size = size_of(item.shape)
    if item.status is ParameterStatus.MISMATCHED and item.checkpoint_shape is not None:
        size = f"{size_of(item.checkpoint_shape)} -> {size}"
    return Text.assemble(f"{safe(item.name)} {size} ", (item.status.value, STATUS[item.status]))


def _values(values: Sequence[SameValues]) -> Iterator[RenderableType]:
    words = {True: ("identical", "yellow"), False: ("different", "green"), None: ("not read", "magenta")}
    for item in values:
        word, style = words[item.identical]
        body = label(f"{item.parameter}{f': {item.reason}' if item.reason else _how_far(item)}")
        yield Paragraph(body, Text(word, style), _MARGIN)


def _how_far(item: SameValues) -> str:
    """By how much the numbers differ at most, beside the largest of them."""
    if item.largest_difference is None or item.largest_value is None:
        return ""
    return f": by at most {item.largest_difference:.3g}, where the largest number is {item.largest_value:.3g}"
