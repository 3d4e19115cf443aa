"""One line of a scan: a checkpoint's identity, its head, and the verdict, flat for tables."""

import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cache
from heapq import nlargest
from typing import Any, get_type_hints

from headscope.core.facts.plain import json_name, restore, to_dict
from headscope.core.facts.verdict import Verdict

SCAN_SCHEMA = "1.0"


class Cause(StrEnum):
    """Why a verdict is "not determined": the codes of errors, and what can happen to a worker."""

    NOT_FOUND = "not_found"
    GATED = "gated"
    OFFLINE = "offline"
    NETWORK = "network"
    MALFORMED = "malformed"
    UNSUPPORTED = "unsupported"
    USAGE = "usage"
    GAPS = "gaps"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    CRASH = "crash"


@dataclass(frozen=True, slots=True)
class ScanRow:
    """What a scan found out about one checkpoint; its fields are the columns of the table.

    Counts are None where the checkpoint could not be examined.
    """

    reference: str
    """The checkpoint, as its source named it."""
    verdict: Verdict
    """`passed`, `failed`, or `not_determined`; with the same rules as `check`."""
    commit: str | None = None
    """The commit on the Hub; null for a checkpoint on disk."""
    revision: str | None = None
    """The requested branch, tag or commit; null for a checkpoint on disk."""
    kind: str | None = None
    """Where the checkpoint is: `hub`, `local`, `snapshot` or `adapter`."""
    format: str | None = None
    """The format of the weight files."""
    model_type: str | None = None
    """The model type in the configuration."""
    class_name: str | None = field(default=None, metadata={"json": "class"})
    """The class that was built."""
    task: str | None = None
    """The task that the class is for."""
    pooling_kind: str | None = None
    """How the head makes one vector of many; null without a trace."""
    formula: str | None = None
    """The path from the hidden states to the logits as a formula; null without one."""
    num_labels: int | None = None
    """Number of classes."""
    labels: tuple[str, ...] = ()
    """Names of the classes in order."""
    dtype: str | None = None
    """The dtype of the model."""
    new: int | None = None
    """Number of parameters that the checkpoint doesn't give; null if missing files leave it open."""
    new_in_head: int | None = None
    """Number of new or mismatched parameters that the scores depend on; null if not determined."""
    mismatched: int | None = None
    """Number of parameters with another shape than in the checkpoint."""
    unused: int | None = None
    """Number of checkpoint keys that the model doesn't use."""
    unplaced: tuple[str, ...] = ()
    """Of these, the modules that find no place, though the saved model may have computed with them."""
    saved_class: str | None = None
    """The class that the configuration names, if it is not the one that was built."""
    head_parameters: int | None = None
    """How many numbers the head has."""
    parameters: int | None = None
    """How many numbers the model has."""
    profile: str | None = None
    """What the findings are weighed for."""
    findings: tuple[str, ...] = ()
    """IDs of the rules that found something, errors first, each once."""
    run: bool = False
    """Whether the model was loaded and called."""
    not_run: str = ""
    """Why it wasn't; empty where it was."""
    not_checked: tuple[str, ...] = ()
    """IDs of the rules that were skipped: a scan doesn't read the base model's values, for example."""
    not_determined: str | None = None
    """Why there is no verdict, in a word; null with a verdict."""
    reason: str = ""
    """Why there is no verdict, or the first finding of a failed checkpoint, as a sentence; or empty."""
    bytes_read: int | None = None
    """Bytes read of the checkpoint."""
    bytes_total: int | None = None
    """Size of all its weight files in bytes."""
    requests: int | None = None
    """Number of requests to the Hub."""
    seconds: float = 0.0
    """Wall time of the examination."""
    schema_version: str = SCAN_SCHEMA
    """The version of the schema that the row follows."""

    def to_dict(self) -> dict[str, Any]:
        """Gives the row as plain JSON values, which every reader of tables can decode."""
        row = to_dict(self)
        for name, value in row.items():
            if isinstance(value, str):
                row[name] = storable(value)
            elif isinstance(value, list):
                row[name] = [storable(item) for item in value]
        return row


def storable(text: str) -> str:
    r"""`text` as UTF-8 can hold it: a lone surrogate, such as in a file name that isn't UTF-8, becomes `\udcff`."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


@cache
def columns() -> dict[str, Any]:
    """Lists the columns of the table in order, each with the type that `ScanRow` declares for it."""
    hints = get_type_hints(ScanRow)
    named = {json_name(field): hints[field.name] for field in fields(ScanRow)}
    return {name: hint for name, hint in named.items() if name is not None}


def is_row(value: object) -> bool:
    """True if `value`, read from JSON, has every column of the table, no other, and what `to_dict` writes in each."""
    try:
        row = restore(ScanRow, value) if isinstance(value, dict) else None
    except (TypeError, ValueError):
        return False
    return row is not None and abs(row.seconds) <= sys.float_info.max and row.to_dict() == value


@dataclass(frozen=True, slots=True)
class Count:
    """How many rows have a value."""

    name: str
    """The value."""
    count: int
    """Number of rows that have it."""


@dataclass(frozen=True, slots=True)
class RuleCount:
    """How many rows a rule found something in; `name` and `title` are empty for a rule of another version."""

    id: str
    """The ID of the rule."""
    count: int
    """Number of rows in which it found something."""
    name: str = ""
    """The name of the rule; empty if this version has no such rule."""
    title: str = ""
    """What it finds; empty if this version has no such rule."""


@dataclass(frozen=True, slots=True)
class Slow:
    """A row that took long."""

    reference: str
    seconds: float
    """Wall time of its examination."""


@dataclass(frozen=True, slots=True)
class Interval:
    """How many rows took `low` seconds or more, and less than `high`; `high` is None for the last interval."""

    low: float
    """Seconds from which the interval begins."""
    high: float | None
    """Seconds at which it ends, not included; null for no end."""
    count: int
    """Number of rows in it."""


@dataclass(frozen=True, slots=True)
class ScanSummary:
    """A whole table in counts, the most frequent first; `written` rows are of this run, `skipped` were there before."""

    rows: int
    """Number of rows in the table, those of earlier runs too."""
    written: int
    """Number of rows that this run wrote."""
    skipped: int
    """Number of checkpoints that the table holds already."""
    verdicts: tuple[Count, ...]
    """Rows by verdict."""
    causes: tuple[Count, ...]
    """Rows without a verdict, by cause."""
    findings: tuple[RuleCount, ...]
    """Rows by rule that found something; a row may count in several."""
    classes: tuple[Count, ...]
    """Rows by class."""
    poolings: tuple[Count, ...]
    """Rows by pooling."""
    durations: tuple[Interval, ...]
    """Rows by seconds; intervals outside the first and the last row are left out."""
    slowest: tuple[Slow, ...]
    """The rows that took longest."""
    not_checked: tuple[Count, ...] = ()
    """The rules that were skipped in some rows."""
    requests: int = 0
    """Number of requests to the Hub, of all rows."""
    profiles: tuple[Count, ...] = ()
    """Rows by what their findings are weighed for; a row without an examination has none."""
    bytes_read: int = 0
    """Bytes read, of all rows."""
    seconds: float = 0.0
    """Wall time of this run."""

    def to_dict(self) -> dict[str, Any]:
        """Gives the summary as plain JSON values."""
        return to_dict(self)


RuleNames = Mapping[str, tuple[str, str]]
"""The name and the title of each rule, by its id."""

_EDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Tally:
    """Counts rows one by one, in memory that doesn't grow with their number."""

    def __init__(self) -> None:
        self.rows = 0
        self._counts: dict[str, Counter[str]] = {
            name: Counter()
            for name in ("verdict", "not_determined", "findings", "not_checked", "class", "pooling_kind", "profile")
        }
        self._slowest: list[tuple[float, str]] = []
        self._durations = [0] * (len(_EDGES) + 1)
        self._requests = self._bytes = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Counts a row as `ScanRow.to_dict` gives it."""
        self.rows += 1
        for name, counts in self._counts.items():
            value = row.get(name)
            counts.update(value if isinstance(value, list) else () if value is None else (value,))
        seconds = float(row["seconds"])
        self._slowest = nlargest(5, (*self._slowest, (seconds, str(row["reference"]))))
        self._durations[bisect_right(_EDGES, seconds)] += 1
        self._requests += row["requests"] or 0
        self._bytes += row["bytes_read"] or 0

    def summary(self, *, written: int, skipped: int, seconds: float, rules: RuleNames | None = None) -> ScanSummary:
        """Sums up the rows that were counted so far."""
        ordered = {
            name: tuple(Count(*pair) for pair in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
            for name, counts in self._counts.items()
        }
        each = tuple(zip((0.0, *_EDGES), (*_EDGES, None), self._durations, strict=True))
        taken = [place for place, (_, _, count) in enumerate(each) if count]
        used = each[taken[0] : taken[-1] + 1] if taken else ()  # from the first to the last that have a row
        named = rules or {}
        return ScanSummary(
            rows=self.rows,
            written=written,
            skipped=skipped,
            verdicts=ordered["verdict"],
            causes=ordered["not_determined"],
            findings=tuple(RuleCount(one.name, one.count, *named.get(one.name, ())) for one in ordered["findings"]),
            classes=ordered["class"],
            poolings=ordered["pooling_kind"],
            durations=tuple(Interval(*one) for one in used),
            slowest=tuple(Slow(reference, taken) for taken, reference in self._slowest),
            not_checked=ordered["not_checked"],
            profiles=ordered["profile"],
            requests=self._requests,
            bytes_read=self._bytes,
            seconds=round(seconds, 3),
        )
