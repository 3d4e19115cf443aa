"""The labeled data of a request to `probe`, counted before a model is read.

It imports torch only for images and sounds, so that a wrong column is reported immediately.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headscope.errors import UsageError
from headscope.examination.evidence.labeled import DataRequest
from headscope.facts.results.labeled import DataFacts, LabelKind
from headscope.facts.results.probe import Input, Problem
from headscope.labeled import RowSource, open_data, open_labeled, tally_labels
from headscope.labeled.label_cells import check_finite, note_on_names
from headscope.probing.data.rows import Kind, LabeledRows, check_numbers


@dataclass(frozen=True, slots=True)
class AskedData:
    """The counted labeled data, the requested problem, what is classified, and notes on words in the labels."""

    facts: DataFacts
    source: RowSource
    asked: Problem | None
    input: Input = Input.TEXT
    notes: tuple[str, ...] = ()


def count_labels(  # noqa: PLR0917  a step of `probe`, all of whose names it uses
    data: str,
    columns: tuple[str, ...],
    labels: tuple[str, ...],
    split: str | None,
    asked: Problem | None,
    input: Input,
) -> AskedData:
    """What is in the columns of the labels. Raises UsageError for columns that are not there."""
    request = DataRequest(data, labels, columns, split)
    cells = open_labeled(request.file, split, labels)
    source = cells.source
    try:
        if asked is Problem.REGRESSION and len(labels) == 1:
            check_numbers(source, labels[0])
        facts = tally_labels(source, labels, columns)
    except UsageError:
        check_finite(source, labels)
        raise
    notes = (cells.note, "" if facts.kind is LabelKind.COLUMNS else note_on_names(facts.classes))
    if input is not Input.TEXT:
        from headscope.probing.data.media import with_names

        source = with_names(source, columns[0])
    return AskedData(facts, source, asked, input, tuple(note for note in notes if note))


def kind_of(data: AskedData, tokens: Callable[[str], object]) -> Kind:
    """What the rows hold. Texts of equal tokens, and equal images under two names, are one: they share a fold."""
    if data.input is Input.TEXT:
        return Kind(content=tokens)
    from headscope.probing.data.media import content_of

    return Kind(data.input, content_of(data.source))


def files_of(data: AskedData, texts: LabeledRows, folder: Path) -> tuple[tuple[str, ...], ...]:
    """The texts, or the paths of the images or sounds."""
    if data.input is Input.TEXT:
        return texts.texts
    from headscope.probing.data.media import written

    source = open_data(texts.facts.file, texts.facts.split)
    names = [name for (name,) in texts.texts]
    return tuple((path,) for path in written(source, texts.facts.text_columns[0], names, folder))
