"""Requested changes of a checkpoint, and how the result is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headscope.checks.labeled_data import DataRequest
from headscope.copies.facts import AdapterMerge, FitKind, HeadFold
from headscope.errors import UsageError
from headscope.slices.edit.plan import LabelChanges


@dataclass(frozen=True, slots=True)
class FitWish:
    """A requested fit, and its labeled data; `data.predict` is the largest number of rows."""

    kind: FitKind
    data: DataRequest


@dataclass(frozen=True, slots=True)
class EditWish:
    """Requested changes of a checkpoint, and how the result is written."""

    changes: LabelChanges = field(default_factory=LabelChanges)
    temperature: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of config.json to set."""
    order_from: DataRequest | None = None
    """Labeled data whose order of the classes the result has."""
    fit: FitWish | None = None
    merge_adapter: bool = False
    """Whether the checkpoint is an adapter, which is merged into its base model first."""
    as_class: str = ""
    """The class of Transformers that the head is folded into first; empty for none."""
    scores: int | None = None
    """How many scores a fold of two tokens has; None for one."""
    dtype: str = ""
    """The number format of the last layer; empty for the one that it has."""
    seed: int = 0
    """Of random rows, and of a fit."""
    texts: Sequence[str] = ()
    """Texts that the proof runs through both models."""
    link: bool = False
    in_place: bool = False
    dry_run: bool = False

    @property
    def touches_rows(self) -> bool:
        """True if the last layer or the names of the classes change."""
        return self.changes != LabelChanges() or self.temperature != 1.0 or self.fit is not None or bool(self.dtype)

    @property
    def names_class(self) -> bool:
        """True if config.json will name another class."""
        return "architectures" in self.settings

    @property
    def only_renames(self) -> bool:
        """True if classes get other names, without another change."""
        names = LabelChanges(labels=self.changes.labels, rename=self.changes.rename)
        plain = replace(self, link=False, in_place=False, dry_run=False, seed=0)
        return names != LabelChanges() and plain == EditWish(changes=names)

    @property
    def changes_more(self) -> bool:
        """True if there is a change beside a merge or a fold."""
        return self.touches_rows or bool(self.settings) or self.order_from is not None

    @property
    def only_merges(self) -> bool:
        """True if an adapter is merged without another change."""
        return self.merge_adapter and not self.changes_more

    def with_order(self, order: Sequence[str]) -> EditWish:
        """Copies the wish with an order of the classes. Raises UsageError if it has one already."""
        if self.changes.order is not None:
            raise UsageError("the order of the classes is given twice", "leave out --order or --order-from")
        return replace(self, changes=replace(self.changes, order=order), order_from=None)

    def with_fit(self, temperature: float | None, thresholds: Mapping[str, float]) -> EditWish:
        """Copies the wish with fitted values. Raises UsageError if they were given too."""
        if self.temperature != 1.0 or (thresholds and self.changes.threshold):
            raise UsageError("what is fitted is given too", "leave out --temperature, --threshold or --fit")
        changes = replace(self.changes, threshold=thresholds) if thresholds else self.changes
        return replace(self, changes=changes, temperature=temperature or self.temperature, fit=None)


@dataclass(frozen=True, slots=True)
class EditOrigin:
    """Origin of a checkpoint that is edited: its name in the request, and the adapter or head that it was made of."""

    named: str
    merge: AdapterMerge | None = None
    sources: tuple[Path, ...] = ()
    """The folders that it was made of."""
    left_out: tuple[str, ...] = ()
    """What stays behind in them."""
    fold: HeadFold | None = None
