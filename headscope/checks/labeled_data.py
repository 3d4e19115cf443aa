"""Labeled data beside a model: read once, fitted to the classes of each model that is checked with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from headscope.checks.facts import Subject
from headscope.checks.rules.labeled.label_classes import fit_classes
from headscope.core.facts import Gap
from headscope.errors import UsageError
from headscope.shared.labeled.facts import DataFacts, Predictions
from headscope.shared.labeled.label_cells import open_labeled
from headscope.shared.labeled.tally import tally_labels

_TEXTS = ("one text", "a pair of texts")


@dataclass(frozen=True, slots=True)
class DataRequest:
    """Labeled data to look at. `predict` is a number of rows to predict on `device`; None for no predictions."""

    file: str
    label_columns: tuple[str, ...]
    text_columns: tuple[str, ...] = ()
    split: str | None = None
    predict: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Raises UsageError for an invalid request."""
        if not self.label_columns:
            raise UsageError("data was given without the column of its labels", "add --label-column COLUMN")
        if len(self.text_columns) > len(_TEXTS):
            raise UsageError(f"{len(self.text_columns)} text columns were given", f"give {' or '.join(_TEXTS)}")
        columns = (*self.label_columns, *self.text_columns)
        twice = sorted({name for name in columns if columns.count(name) > 1})
        if twice:
            raise UsageError(f"the column {twice[0]!r} was given twice", "give each column once")
        if self.predict is not None and self.predict < 1:
            raise UsageError(f"--predict must be at least 1, not {self.predict}", "64 rows identify most permutations")
        if self.predict is not None and not self.text_columns:
            raise UsageError("predictions need the column of the texts", "add --text-column COLUMN")


@dataclass(frozen=True, slots=True)
class Labeled:
    """Facts on labeled data, and the request that they answer."""

    request: DataRequest
    facts: DataFacts


def read_labeled(request: DataRequest) -> Labeled:
    """Reads the labels of all rows. Raises a HeadscopeError for data that cannot be read."""
    source = open_labeled(request.file, request.split, request.label_columns).source
    return Labeled(request, tally_labels(source, request.label_columns, request.text_columns))


Predict = Callable[[Labeled], Predictions | Gap]


def with_data(subject: Subject, labeled: Labeled | None, predict: Predict | None = None) -> Subject:
    """Adds the data, fitted to the subject's classes, and predictions if they were requested."""
    if labeled is None:
        return subject
    fitted = replace(labeled, facts=fit_classes(labeled.facts, subject.report.model))
    if labeled.request.predict is None or predict is None:
        return replace(subject, data=fitted.facts)
    found = predict(fitted)
    if isinstance(found, Gap):
        return replace(subject, data=fitted.facts, inapplicable=(*subject.inapplicable, found))
    return replace(subject, data=replace(fitted.facts, predictions=found))
