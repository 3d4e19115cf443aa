"""Labeled rows as they are scored: the problem that their labels pose, and the texts, labels and groups to use.

The data are counted before a model is read; torch is imported only for images and sounds, so that a wrong column is
reported immediately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headscope.checks.labeled_data import DataRequest
from headscope.checks.rules.labeled.label_classes import is_regression
from headscope.core.facts import ModelFacts
from headscope.core.facts.counting import counted, few_of, shortened
from headscope.core.facts.heads.tasks import Input
from headscope.errors import UsageError
from headscope.shared.labeled.facts import DataFacts, LabelKind
from headscope.shared.labeled.label_cells import check_finite, note_on_names, open_labeled
from headscope.shared.labeled.opening import open_data
from headscope.shared.labeled.rows import RowSource
from headscope.shared.labeled.sample import Sampled, sample_in_proportion, sample_spread
from headscope.shared.labeled.tally import is_ignored, read_label, spelled, tally_labels
from headscope.slices.probe.arrays import Array
from headscope.slices.probe.facts.result import Problem
from headscope.slices.probe.plan import PROBLEM_NAMES, Plan

_OF_CLASSES = (LabelKind.INTEGERS, LabelKind.TEXTS, LabelKind.BOOLEANS)
_OF_NUMBERS = (LabelKind.INTEGERS, LabelKind.NUMBERS)
_OF_SEVERAL = (LabelKind.LISTS, LabelKind.COLUMNS)
_ALIKE = 1e-12
_SMALLEST, _LARGEST = 1e-100, 1e100
"""Standard deviations between which a number's square is neither 0 nor infinite."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of rows: `content` gives, for a text or a file's name, a value that is equal for equal texts or files."""

    input: Input = Input.TEXT
    content: Callable[[str], Any] = str  # the text, unchanged

    def same(self, row: Sampled) -> tuple[Any, ...]:
        """Gives a value that is equal for rows that must share a fold; a pair of texts counts in either order."""
        return tuple(sorted(map(self.content, row.texts)))

    def counted(self, number: int, adjective: str) -> str:
        """Counts rows in words, such as `2 different texts`."""
        return counted(number, f"{adjective} {self.input.noun}")


@dataclass(frozen=True, slots=True)
class LabeledRows:
    """Labeled texts to score on, or images or sounds by the names of their files.

    `labels` are places in `classes`, rows of 0 and 1 with a column for each class, or numbers. Texts of equal tokens,
    and files of equal bytes, have the same number in `groups`; `numbers` are the rows of the file, from 1.
    """

    facts: DataFacts
    problem: Problem
    texts: tuple[tuple[str, ...], ...]
    labels: Array
    groups: Array
    numbers: tuple[int, ...]
    classes: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def available(self) -> int:
        """Number of rows of the file that have a label."""
        return _count_labeled(self.facts, self.problem)

    def named(self, label: Any) -> str:
        """Puts a label into words."""
        if self.problem is Problem.REGRESSION:
            return f"{float(label):.6g}"
        if self.problem is Problem.MULTI_LABEL:
            return ", ".join(name for name, has in zip(self.classes, label, strict=True) if has) or "no label"
        return self.classes[int(label)]


def problem_of(facts: DataFacts, model: ModelFacts, asked: Problem | None) -> Problem:
    """Gives the problem that the labels pose: the requested one, or by the labels' kind, as in `check --data`.

    Numbers with fractions are a regression; whole numbers are classes, unless the checkpoint's config says regression.
    Raises UsageError for labels of another kind than asked.
    """
    kinds = {
        Problem.REGRESSION: _OF_NUMBERS,
        Problem.MULTI_LABEL: _OF_SEVERAL,
        Problem.SINGLE_LABEL: (*_OF_CLASSES, LabelKind.NUMBERS),
    }
    column = facts.label_columns[0]
    if asked is not None:
        if facts.kind not in kinds[asked]:
            raise UsageError(
                f"{column!r} of {facts.file} holds {facts.kind.value}, "
                f"which don't fit --problem-type {PROBLEM_NAMES[asked]}",
                _HINTS[asked],
            )
        if asked is Problem.SINGLE_LABEL and facts.kind is LabelKind.NUMBERS and not facts.is_whole:
            raise UsageError(
                f"{column!r} of {facts.file} holds numbers with fractions, which are not classes",
                "use --problem-type regression",
            )
        return asked
    if facts.kind in _OF_SEVERAL:
        return Problem.MULTI_LABEL
    if facts.kind is LabelKind.NUMBERS or (facts.kind is LabelKind.INTEGERS and is_regression(model)):
        return Problem.REGRESSION
    return Problem.SINGLE_LABEL


_HINTS = {
    Problem.REGRESSION: "give one column of numbers",
    Problem.MULTI_LABEL: "give a column of lists, or several columns of 0 and 1 (repeat --label-column)",
    Problem.SINGLE_LABEL: "give one column with a name or a whole number for each text",
}


def check_numbers(source: RowSource, column: str) -> None:
    """Raises UsageError, with the row, for a label that isn't a number if numbers are needed."""
    for number, (cell,) in enumerate(source.read((column,)), 1):
        label = read_label(cell, source, column)
        if isinstance(label, bool | str | tuple):
            raise UsageError(
                f"--problem-type regression needs numbers, and {column!r} of {source.name} has "
                f"{shortened(spelled(label))!r} in row {number:,}",
                "leave the label empty if the number is not known; its row is left out then",
            )


def read_rows(data: AskedData, problem: Problem, plan: Plan, kind: Kind) -> LabeledRows:
    """Reads the rows to use, and notes those that aren't used. Raises UsageError if too few are left."""
    facts, folds = data.facts, plan.folds
    by_class = problem is Problem.SINGLE_LABEL
    if by_class and facts.kind is LabelKind.NUMBERS:  # whole numbers with a decimal point, such as 1.0
        facts = replace(facts, kind=LabelKind.INTEGERS)
    if facts.has_more_classes and by_class:
        raise UsageError(
            f"{facts.label_columns[0]!r} of {facts.file} has over {len(facts.classes):,} different values",
            "use --problem-type regression if they are numbers, not classes",
        )
    sampled = (sample_in_proportion if by_class else sample_spread)(data.source, facts, plan.limit, plan.seed)
    filled = [row for row in sampled if any(text.strip() for text in row.texts)]
    used, labels, classes, notes = _READERS[problem](filled, facts, folds, kind)
    texts = tuple(row.texts for row in used)
    places: dict[tuple[Any, ...], int] = {}
    # Groups are numbered from 0 in the order of the rows: a new one gets the number of those before it.
    groups = [places.setdefault(kind.same(row), len(places)) for row in used]
    if len(places) < folds:
        raise UsageError(
            f"{facts.file} has {kind.counted(len(places), 'different')} with a label, and {folds} folds need {folds}",
            f"give more {kind.input.noun}s, or fewer --folds",
        )
    total = _count_labeled(facts, problem)
    share = ", with the same share of each class" if by_class else ""
    found_notes = [
        f"{len(sampled):,} of {total:,} labeled rows were sampled{share}" if len(sampled) < total else "",
        f"{counted(facts.missing, 'row')} without a label left out" if facts.missing else "",
        f"{counted(len(sampled) - len(filled), 'row')} without {kind.input.one} left out"
        if len(filled) < len(sampled) else "",
        *notes,
        f"{kind.counted(len(texts) - len(places), 'repeated')} kept in the fold of the first"
        if len(places) < len(texts) else "",
    ]  # fmt: skip
    numbers = tuple(row.row for row in used)
    return LabeledRows(
        facts, problem, texts, labels, np.array(groups), numbers, classes, tuple(note for note in found_notes if note)
    )


def _count_labeled(facts: DataFacts, problem: Problem) -> int:
    if problem is Problem.SINGLE_LABEL:
        return sum(item.rows for item in facts.classes)
    return facts.rows - facts.missing


_Read = tuple[list[Sampled], Array, tuple[str, ...], list[str]]
"""The rows that are kept, their labels, the classes, and notes."""


def _read_classes(rows: Sequence[Sampled], facts: DataFacts, folds: int, kind: Kind) -> _Read:
    """Reads one class for each row; classes with fewer different texts than folds are left out."""
    distinct = Counter(label for label, _ in {(spelled(row.label), kind.same(row)) for row in rows})
    names = [item.label for item in facts.classes]
    small = [name for name in names if distinct[name] < folds]
    classes = tuple(name for name in names if distinct[name] >= folds)
    for_numbers = "; for numbers that are not classes, use --problem-type regression"
    for_numbers = for_numbers if facts.kind in _OF_NUMBERS else ""
    if len(classes) < 2:
        hint = f"give {kind.input.noun}s of at least two classes, or fewer --folds"
        hint += for_numbers if len(facts.classes) > 2 else ""
        raise UsageError(_too_few_classes(facts, folds, classes, small, kind), hint)
    places = {name: place for place, name in enumerate(classes)}
    used = [row for row in rows if spelled(row.label) in places]
    notes, lost = _note_on(small, folds, kind), len(rows) - len(used)
    if lost > len(rows) / 2:  # the scores are then those of few of the data
        notes.append(f"{lost:,} of {counted(len(rows), 'row')} left out with these classes{for_numbers}")
    return used, np.array([places[spelled(row.label)] for row in used]), classes, notes


def _note_on(small: Sequence[str], folds: int, kind: Kind) -> list[str]:
    if not small:
        return []
    return [
        f"{counted(len(small), 'class', 'classes')} with fewer than {folds} different {kind.input.noun}s left out: "
        f"{few_of(small)}"
    ]


def _too_few_classes(facts: DataFacts, folds: int, classes: Sequence[str], small: Sequence[str], kind: Kind) -> str:
    column = facts.label_columns[0]
    if len(facts.classes) < 2:
        return f"{column!r} of {facts.file} has one class, {facts.classes[0].label!r}" if facts.classes else (
            f"{column!r} of {facts.file} has no labels"
        )  # fmt: skip
    left = f"only {classes[0]!r} has" if classes else "no class has"
    return f"{left} {folds} different {kind.input.noun}s or more, one for each fold" + (
        f" (too few: {few_of(small)})" if small else ""
    )


def _read_several_labels(rows: Sequence[Sampled], facts: DataFacts, folds: int, kind: Kind) -> _Read:
    """Reads the classes of each row; a class needs texts with it and texts without it, one of each per fold."""
    names, flagged = _flag_labels(rows, facts)
    texts = [kind.same(row) for row in rows]
    has = [len({text for text, row in zip(texts, flagged, strict=True) if row[at]}) for at in range(len(names))]
    lacks = [len({text for text, row in zip(texts, flagged, strict=True) if not row[at]}) for at in range(len(names))]
    kept = [at for at in range(len(names)) if has[at] >= folds and lacks[at] >= folds]
    small = [name for at, name in enumerate(names) if has[at] < folds]
    whole = [name for at, name in enumerate(names) if lacks[at] < folds <= has[at]]
    if not kept:
        column = facts.label_columns[0]
        raise UsageError(
            f"no label in {column!r} of {facts.file} is at {folds} different {kind.input.noun}s and is missing at "
            f"{folds}",
            f"give more {kind.input.noun}s of each label, or fewer --folds",
        )
    notes = _note_on(small, folds, kind)
    if whole:
        notes.append(
            f"{counted(len(whole), 'class', 'classes')} that nearly every {kind.input.noun} has left out: "
            f"{few_of(whole)}"
        )
    return list(rows), np.array(flagged, dtype=int)[:, kept], tuple(names[at] for at in kept), notes


def _flag_labels(rows: Sequence[Sampled], facts: DataFacts) -> tuple[list[str], list[list[int]]]:
    """Gives the names of the classes, and for each row a 0 or 1 for each class."""
    labels = [row.label if isinstance(row.label, tuple) else (row.label,) for row in rows]
    if facts.kind is LabelKind.COLUMNS:
        return [item.label for item in facts.classes], [[int(bool(item)) for item in label] for label in labels]
    if len(facts.hot) >= 3:
        return [str(place) for place in range(len(facts.hot))], [[int(bool(i)) for i in label] for label in labels]
    names = [item.label for item in facts.classes]
    found = [{spelled(item) for item in label if not is_ignored(item)} for label in labels]
    return names, [[int(name in label) for name in names] for label in found]


def _read_numbers(rows: Sequence[Sampled], facts: DataFacts, folds: int, kind: Kind) -> _Read:
    """Reads a number for each row. Raises UsageError if all are equal, or too small or too large to square."""
    found = np.array([float(row.label) for row in rows])  # type: ignore[arg-type]  # `problem_of` saw numbers only
    column = facts.label_columns[0]
    if not len(found):
        raise UsageError(
            f"no {kind.input.noun} of {facts.file} has a number in {column!r}", f"give {kind.input.noun}s with numbers"
        )
    largest = float(np.abs(found).max())
    deviation = largest * float((found / (largest or 1)).std())  # very large or small numbers have no finite squares
    if deviation <= _ALIKE * largest:
        raise UsageError(
            f"every {kind.input.noun} has the same number in {column!r} of {facts.file}: {found[0]:g}",
            "give numbers that differ; there is nothing to predict",
        )
    if not _SMALLEST < deviation < _LARGEST:
        size = "small" if deviation <= _SMALLEST else "large"
        raise UsageError(
            f"the numbers in {column!r} of {facts.file} are too {size} to compute with: up to {largest:.3g}",
            "write them in another unit",
        )
    return list(rows), found, (), []


_READERS: dict[Problem, Callable[[Sequence[Sampled], DataFacts, int, Kind], _Read]] = {
    Problem.SINGLE_LABEL: _read_classes,
    Problem.MULTI_LABEL: _read_several_labels,
    Problem.REGRESSION: _read_numbers,
}


@dataclass(frozen=True, slots=True)
class AskedData:
    """Counted labeled data, the requested problem, the kind of input, and notes on words in the labels."""

    facts: DataFacts
    source: RowSource
    asked: Problem | None
    input: Input = Input.TEXT
    notes: tuple[str, ...] = ()


def count_labels(  # noqa: PLR0917  a step of `probe`, all of whose names it uses
    data: str, columns: tuple[str, ...], labels: tuple[str, ...], split: str | None, asked: Problem | None, input: Input
) -> AskedData:
    """Counts the labels in the columns. Raises UsageError for missing columns."""
    request = DataRequest(data, labels, columns, split)
    cells = open_labeled(request.file, split, labels)
    source = cells.source
    try:
        if asked is Problem.REGRESSION and len(labels) == 1:
            check_numbers(source, labels[0])
        facts = tally_labels(source, labels, columns)
    except UsageError:
        check_finite(source, labels)  # raises a clearer error, with the row, for an infinite number
        raise
    notes = (cells.note, "" if facts.kind is LabelKind.COLUMNS else note_on_names(facts.classes))
    if input is not Input.TEXT:
        from headscope.slices.probe.data.media import with_names

        source = with_names(source, columns[0])
    return AskedData(facts, source, asked, input, tuple(note for note in notes if note))


def kind_of(data: AskedData, tokens: Callable[[str], object]) -> Kind:
    """Gives the kind of the rows.

    Texts of equal tokens, and equal files under two names, count as the same: they share a fold.
    """
    if data.input is Input.TEXT:
        return Kind(content=tokens)
    from headscope.slices.probe.data.media import content_of

    return Kind(data.input, content_of(data.source))


def files_of(data: AskedData, texts: LabeledRows, folder: Path) -> tuple[tuple[str, ...], ...]:
    """Gives the texts, or the paths of the images or sounds."""
    if data.input is Input.TEXT:
        return texts.texts
    from headscope.slices.probe.data.media import written

    source = open_data(texts.facts.file, texts.facts.split)
    names = [name for (name,) in texts.texts]
    return tuple((path,) for path in written(source, texts.facts.text_columns[0], names, folder))
