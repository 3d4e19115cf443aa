"""The screen of `probe`: the answer in a sentence, the scores, and the curve over the layers."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.core.facts.counting import counted
from headscope.core.words.console import QUIET, STRONG, TONE
from headscope.core.words.document import Document, opening
from headscope.core.words.lines import GAP, Paragraph, align
from headscope.core.words.safe import label, safe
from headscope.slices.probe.facts.result import Baseline, Candidate, ProbeResult, Vector
from headscope.slices.probe.screen.facts import detailed_facts, first_facts, suspects_of
from headscope.slices.probe.screen.words import (
    METRICS,
    answer_tone,
    input_words,
    probe_answer,
    rows_of,
    vector_words,
    words_of,
)

_HEIGHT = 9
_MOST_COLUMNS = 64
_CURVES = {Vector.FIRST_TOKEN: "F", Vector.MASKED_MEAN: "M", Vector.LAST_NON_PAD_TOKEN: "L"}
_SEVERAL = "*"


def probe_document(result: ProbeResult) -> Document:
    """Builds the document of `probe`."""
    return {**opening("probe"), **result.to_dict()}


def probe_verdict(result: ProbeResult) -> RenderableType:
    """Shows only the answer."""
    return Paragraph(Text(probe_answer(result), TONE[answer_tone(result)]))


def probe_screen(result: ProbeResult, *, details: bool = False) -> RenderableType:
    """Shows the answer, the best scores and what to know of them in 24 lines; with `details`, all that was measured."""
    rows = (detailed_facts if details else first_facts)(result)
    facts = [Paragraph(label(body), Text(name, STRONG), 12) for name, body in rows]
    scores = (*probe_table(result, details=details), *(probe_curve(result) if details else ()))
    if not details:
        suspects, hidden = suspects_of(result), len(rows_of(result)) - len(_first_rows(result))
        more = [counted(hidden, "more vector")] if hidden else []
        more += [counted(len(suspects), "suspect row")] if suspects else []
        hint = f"--details: {', '.join((*more, 'each layer, reasons'))}; --json: all"
        facts.append(Paragraph(label(hint, QUIET)))
    return Group(probe_verdict(result), Text(), *scores, Text(), *facts)


def _first_rows(result: ProbeResult) -> list[Candidate | Baseline]:
    """Gives the best rows of the table, and always the head's input and the baselines.

    The candidate with the same values as the head's input has no row, unless it is the best.
    """
    twin = None if result.head is None else result.candidate(result.head).same_as
    rows = [item for item in rows_of(result) if item.name != twin or item.name == result.best]
    kept = [item for item in rows if isinstance(item, Baseline) or item.name in {result.best, result.head}]
    kept += [item for item in rows if item not in kept][: max(0, 6 - len(kept))]
    return [item for item in rows if item in kept]


def probe_table(result: ProbeResult, *, details: bool = False) -> Iterator[RenderableType]:
    """Shows each pooling at its best layer and the baselines, the best first; the best rows only without `details`."""
    rows = rows_of(result) if details else _first_rows(result)
    second = next((item.metric for item in rows[0].others), None)
    more = (METRICS[second],) if second else ()
    titles = (METRICS[rows[0].metric], "95% interval", *more, "size", "vector at its best layer, or baseline")
    cells = [[label(title, QUIET) for title in titles], *(_score_row(item, result) for item in rows)]
    numbers = align([row[:-1] for row in cells], right=frozenset({0, 2, 3} if more else {0, 2}))
    margin = max(line.cell_len for line in numbers) + GAP
    yield from (Paragraph(row[-1], line, margin) for row, line in zip(cells, numbers, strict=True))


def _score_row(item: Candidate | Baseline, result: ProbeResult) -> list[Text]:
    span = label(f"{item.low:.3f} to {item.high:.3f}", QUIET)
    more = [label(f"{score.mean:.3f}", QUIET) for score in item.others]
    words = words_of(item, result)
    if isinstance(item, Baseline):
        return [label(f"{item.mean:.3f}"), span, *more, Text(), label(words, QUIET)]
    style = STRONG if item.name == result.best else ""
    return [label(f"{item.mean:.3f}", style), span, *more, label(str(item.size), QUIET), label(words, style)]


def probe_curve(result: ProbeResult) -> Iterator[RenderableType]:
    """Plots the scores of first token, mean and last token over the layers, as letters."""
    points = [item for item in result.candidates if item.pooling in _CURVES and item.layer is not None]
    layers = sorted({item.layer for item in points if item.layer is not None})
    if len(layers) < 2:
        return
    every = -(-len(layers) // _MOST_COLUMNS)  # rounded up: a deep model shows every second layer or fewer
    step = max(1, min(4, _MOST_COLUMNS // len(layers)))
    column = {layer: place // every * step for place, layer in enumerate(layers) if place % every == 0}
    low, high = min(item.mean for item in points), max(item.mean for item in points)
    grid = [[" "] * (max(column.values()) + 1) for _ in range(_HEIGHT)]
    for item in points:
        if item.layer in column:
            line = grid[round((high - item.mean) / (high - low or 1) * (_HEIGHT - 1))]
            at = column[item.layer]
            # Two curves can meet in a cell: no letter may hide another.
            line[at] = _CURVES[item.pooling] if line[at] in (" ", _CURVES[item.pooling]) else _SEVERAL
    yield Text()
    for number, line in enumerate(grid):
        value = high - (high - low) * number / (_HEIGHT - 1)
        edge = f"{value:.3f} ┤" if number in (0, _HEIGHT // 2, _HEIGHT - 1) else "      │"
        yield Text(f"{edge} {''.join(line)}".rstrip(), overflow="fold")
    yield Text(f"      └{'─' * (max(column.values()) + 2)}", overflow="fold")
    yield Text(f"layer   {_layer_ticks(column)}", overflow="fold")
    kinds = [kind for kind in _CURVES if any(item.pooling is kind for item in points)]
    named = ", ".join(f"{_CURVES[kind]} {vector_words(kind, input_words(result))}" for kind in kinds)
    yield Paragraph(label(f"{named}, {_SEVERAL} several; 0 embeddings", QUIET), indent=8)


def _layer_ticks(column: dict[int, int]) -> str:
    """Writes the numbers of the layers below their columns, as far as there is room."""
    line = ""
    for layer, at in column.items():
        if not line or at > len(line):
            line = f"{line:<{at}}{layer}"
    return line


def shown_screen(result: ProbeResult) -> RenderableType:
    """Renders a result as Python shows it."""
    return probe_screen(result, details=True)


def shown_line(result: ProbeResult) -> str:
    """Writes a result in one line."""
    return f"probe of {safe(result.reference)}: {probe_answer(result)}"
