"""Screen of `compare`: the differences, and with details the heads stage by stage, side by side."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from string import ascii_uppercase

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from headscope.core.facts import Gap, Head, ParameterStatus, Report, Stage
from headscope.core.facts.counting import counted
from headscope.core.facts.heads.tasks import WITHOUT_CLASSES
from headscope.core.facts.stored.checkpoint import told_gaps
from headscope.core.words.console import QUIET, STATUS, STRONG, TONE, Tone, plain_text
from headscope.core.words.contents import export_lines, export_verdict
from headscope.core.words.fold import few_keys
from headscope.core.words.lines import GAP, Paragraph, wrapped
from headscope.core.words.safe import label, safe
from headscope.core.words.words import POOLING, axes_of
from headscope.shared.report.head.stages import own_parameters, weight_size
from headscope.shared.report.report_facts import FactLines, remarks_of
from headscope.slices.compare.facts import Aspect, Comparison, SameValues, role_of

_MARGIN = 14
_DIFFERS = "yellow"


def compare_screen(comparison: Comparison, *, details: bool = False) -> RenderableType:
    """Shows what differs, then what to know of the files; `details` adds sizes, every stage and every weight."""
    parts: list[RenderableType] = [compare_verdict(comparison), Text(), _Heads(comparison, details)]
    for export in comparison.exports:
        parts += [Text(), *export_lines(export)]
    if comparison.values:
        parts += [Text(), *_value_lines(comparison.values, details=details)]
    parts += [Paragraph(body, Text(word, STRONG), _MARGIN) for word, body in _remark_lines(comparison.reports)]
    if not details:
        parts.append(Paragraph(label("--details: sizes, every stage and weight; --json: everything", QUIET)))
    return Group(*parts)


def _remark_lines(reports: Sequence[Report]) -> FactLines:
    """Lists each notice and each gap once, with the models that it concerns if these are not all."""
    every = [set(report.checkpoint.notices) for report in reports]
    common = [text for text in reports[0].checkpoint.notices if all(text in notices for notices in every)]
    others = (
        Gap(report.checkpoint.reference, text)
        for report in reports
        for text in report.checkpoint.notices
        if text not in common
    )
    gaps = (
        Gap(f"{report.checkpoint.reference} ({gap.topic})", gap.reason)
        for report in reports
        for gap in report.not_determined
    )
    return remarks_of((*common, *told_gaps(others)), gaps)


def compare_verdict(comparison: Comparison) -> RenderableType:
    """Shows one sentence, which is all that `-q` shows."""
    unknown = [report for report in comparison.reports if report.not_determined]
    if unknown:
        names = ", ".join(report.checkpoint.reference for report in unknown)
        return Paragraph(label(f"Not determined: what {names} holds could not all be read", TONE[Tone.WARNING]))
    if comparison.exports:
        sources = [compare_verdict(replace(comparison, exports=()))] if len(comparison.reports) > 1 else []
        return Group(*sources, *map(export_verdict, comparison.exports))
    if not comparison.differences:
        tone = Tone.NOTE if comparison.differs else Tone.GOOD
        return Paragraph(label(f"The heads have the same structure{_values_clause(comparison)}", TONE[tone]))
    # Every single parameter that differs is under one name.
    named = ", ".join(dict.fromkeys(item.aspect or "weights of the head" for item in comparison.differences))
    return Paragraph(label(f"The heads differ in {named}{_values_clause(comparison)}", TONE[Tone.NOTE]))


def _values_clause(comparison: Comparison) -> str:
    """Says in one clause if the stored values are identical, or that none were compared."""
    values = comparison.values
    if comparison.values_reason:
        return f"; values were not compared: {comparison.values_reason}"
    if not values:
        return "; values were not compared (--values)" if all(item.is_compared for item in comparison.reports) else ""
    same = sum(item.identical is True for item in values)
    other = sum(item.identical is False for item in values)
    unread = len(values) - same - other
    if same == len(values):
        return f"; the values of all {counted(same, 'tensor')} are identical, bit by bit"
    clauses = [f"the values of {other} of {counted(len(values), 'tensor')} differ"] if other else []
    clauses += [f"{same} are identical"] if same else []
    clauses += [f"{counted(unread, 'tensor')} not read"] if unread else []
    return "; " + ", ".join(clauses)


@dataclass(frozen=True)
class _Heads:
    """Rows of the table: a column for each of two to four models if there is room, otherwise one below the other."""

    comparison: Comparison
    details: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        models = [report.checkpoint.reference for report in self.comparison.reports]
        rows = list((_difference_rows if self.details else _brief_rows)(self.comparison))
        share = (options.max_width - _MARGIN) // max(len(models), 1) - GAP
        names = [label(name, STRONG) for name in models]
        width = min(share, max(cell.cell_len for row in (names, *(cells for _, cells in rows)) for cell in row))
        if options.max_width >= 120 and 1 < len(models) <= 4:
            yield from _row_lines("", names, width)
            for name, cells in rows:
                same = [cells[0], *(Text("the same", QUIET) for _ in cells[1:])]
                yield from _row_lines(name, same if _are_equal(cells) else cells, width)
        else:
            yield from _stack_rows(models, rows)


def _row_lines(name: str, cells: Sequence[Text], width: int) -> Iterator[RenderableType]:
    """Writes one row of the table: its wrapped cells side by side."""
    columns = [wrapped(cell, width) for cell in cells]
    for number, row in enumerate(zip_longest(*columns, fillvalue=Text())):
        line = Text(overflow="fold")
        for at, cell in enumerate(row):
            line.append_text(cell)
            line.append(" " * (width + GAP - cell.cell_len) if at < len(row) - 1 else "")
        line.rstrip()
        yield Paragraph(line, label("" if number else name, STRONG), _MARGIN)


def _stack_rows(models: Sequence[str], rows: Sequence[tuple[str, list[Text]]]) -> Iterator[RenderableType]:
    """Writes the rows with a line for each value, behind the signs of the models that have it."""
    listed = [(name, _by_value(cells)) for name, cells in rows]
    indent = _MARGIN + GAP + max([1, *(len(signs) for _, groups in listed for signs, _ in groups if _is_short(signs))])
    for at, name in enumerate(models):
        yield Paragraph(label(name, STRONG), Text(_model_sign(at), STRONG), 4)
    for name, groups in listed:
        for number, (signs, cell) in enumerate(groups):
            margin = Text.assemble(((name if not number else "").ljust(_MARGIN), STRONG), (signs, QUIET))
            if not _is_short(signs):
                yield Paragraph(margin)
            yield Paragraph(cell, margin if _is_short(signs) else Text(), indent)


def _is_short(signs: str) -> bool:
    """True if the signs of a value have room before it."""
    return len(signs) <= 9


def _by_value(cells: Sequence[Text]) -> list[tuple[str, Text]]:
    """Gives each value with the signs of its models, or with `=` if all models have it."""
    if _are_equal(cells):
        return [("=", cells[0])]
    groups: dict[str, list[int]] = {}
    for at, cell in enumerate(cells):
        groups.setdefault(cell.plain, []).append(at)
    return [(" ".join(map(_model_sign, models)), cells[models[0]]) for models in groups.values()]


def _model_sign(at: int) -> str:
    """Gives the sign of a model in a list: a letter, or a number beyond the alphabet."""
    return ascii_uppercase[at] if at < len(ascii_uppercase) else str(at + 1)


def _difference_rows(comparison: Comparison) -> Iterator[tuple[str, list[Text]]]:
    """Gives the differences, then the stages by role; single parameters are with their stages."""
    yield from _fixed_rows(comparison)
    for item in comparison.differences:
        if item.aspect is not None and item.aspect not in {*_FIXED, Aspect.OPERATIONS}:
            yield item.what, [label(value, _DIFFERS) for value in item.values]
    for row in comparison.stages:
        role = next(role_of(stage.operation) for stage in row if stage is not None)
        same = len({stage and f"{stage.operation} {stage.detail} {stage.output_shape}" for stage in row}) == 1
        cells = [_stage_cell(stage, report.head, same) for stage, report in zip(row, comparison.reports, strict=True)]
        yield role, cells


def _fixed_rows(comparison: Comparison) -> Iterator[tuple[str, list[Text]]]:
    """Gives the first rows, which are shown even if all models have the same values."""
    differing = _values_by_aspect(comparison)
    for aspect, read in _FIXED.items():
        values = differing.get(aspect) or tuple(map(read, comparison.reports))
        yield aspect, [label(value, _DIFFERS if aspect in differing else "") for value in values]


def _values_by_aspect(comparison: Comparison) -> dict[Aspect, tuple[str, ...]]:
    """Gives the aspects in which whole heads differ, with the values."""
    return {item.aspect: item.values for item in comparison.differences if item.aspect is not None}


def _brief_rows(comparison: Comparison) -> Iterator[tuple[str, list[Text]]]:
    """Gives the differences without those of sizes and of single parameters, then the weights in numbers."""
    yield from _fixed_rows(comparison)
    for aspect, values in _values_by_aspect(comparison).items():
        if aspect not in _FIXED and aspect not in _SIZES:
            brief = tuple(_BRIEF[aspect](report) for report in comparison.reports) if aspect in _BRIEF else values
            shown = brief if len(set(brief)) > 1 else values
            yield aspect, [label(value, _DIFFERS) for value in shown]
    yield "loaded", [_weight_amounts(report.head) for report in comparison.reports]


_SIZES = frozenset({Aspect.MODEL_SIZE, Aspect.HEAD_SIZE})
_BRIEF: dict[Aspect, Callable[[Report], str]] = {
    Aspect.POOLING: lambda report: POOLING[report.head.pooling.kind] if report.head else "not determined",
    Aspect.OPERATIONS: lambda report: " > ".join(item.operation for item in report.head.stages) if report.head else "",
}
"""A shorter value of an aspect, shown if it differs between the models."""


def _weight_amounts(head: Head | None) -> Text:
    """Counts the values of the head by status: `590,592 loaded, 1,538 new`."""
    totals: dict[ParameterStatus, int] = {}
    for item in head.parameters if head else ():
        totals[item.status] = totals.get(item.status, 0) + item.count
    found = [Text.assemble(f"{count:,} ", (status.value, STATUS[status])) for status, count in totals.items()]
    return Text(", ").join(found) if found else Text("none" if head else "not determined")


_FIXED: dict[Aspect, Callable[[Report], str]] = {
    Aspect.CLASS: lambda report: report.model.class_name,
    Aspect.CLASSES: lambda report: WITHOUT_CLASSES.get(report.model.task, f"{report.model.num_labels:,}"),
    Aspect.FORMULA: lambda report: (report.head.formula if report.head else "") or "not determined",
}
"""Aspects that the table shows even if the values are the same."""


def _are_equal(cells: Sequence[Text]) -> bool:
    return len({cell.plain for cell in cells}) == 1


def _stage_cell(stage: Stage | None, head: Head | None, same: bool) -> Text:
    """Writes the lines of one stage: what it does, then its parameters."""
    if stage is None:
        return Text("-", _DIFFERS)
    text = label(f"{stage.operation} {stage.detail}".strip(), "" if same else _DIFFERS)
    text.append(f" -> {axes_of(stage.output_shape)}")
    for item in own_parameters(head, stage) if head else ():
        text.append(f"\n{safe(item.name)} {weight_size(item)} ").append(item.status.value, STATUS[item.status])
    return text


def _value_lines(values: Sequence[SameValues], *, details: bool) -> Iterator[RenderableType]:
    """Says which stored values are identical; without `details`, names with the same answer share a line."""
    words = {True: ("identical", "yellow"), False: ("different", "green"), None: ("not read", "magenta")}
    groups: dict[object, list[SameValues]] = {}
    for item in values:
        groups.setdefault(item.parameter if details else (item.identical, item.reason), []).append(item)
    for items in groups.values():
        word, style = words[items[0].identical]
        # A group has one line, so the tensor that differs most speaks for all.
        furthest = max(items, key=lambda item: item.largest_difference or 0)
        names = few_keys([item.parameter for item in items], 6)
        body = label(f"{names}{f': {furthest.reason}' if furthest.reason else _largest_difference(furthest)}")
        yield Paragraph(body, Text(word, style), _MARGIN)


def _largest_difference(item: SameValues) -> str:
    """Says by how much the numbers differ at most, beside the largest of them."""
    if item.largest_difference is None or item.largest_value is None:
        return ""
    largest = f"the largest number of the first is {item.largest_value:.3g}"
    return f": by at most {item.largest_difference:.3g}, where {largest}"


def shown_screen(result: Comparison) -> RenderableType:
    """Renders a result as Python shows it."""
    return compare_screen(result, details=True)


def shown_line(result: Comparison) -> str:
    """Writes a result in one line."""
    names = ", ".join(safe(report.checkpoint.reference) for report in result.reports)
    return f"compare of {names}: {plain_text(compare_verdict(result)).strip()}"
