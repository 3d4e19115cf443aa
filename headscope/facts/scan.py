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

from headscope.facts.check import Verdict
from headscope.facts.plain import from_dict, json_name, to_dict

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

    Counts are None where the checkpoint could not be examined, `new` is None too if missing files leave it open. `new`,
    `mismatched` and `unused` count tensors, `new_in_head` those new or mismatched ones that the scores depend on;
    `head_parameters` and `parameters` count numbers. `findings` are the IDs of the rules that found something, errors
    first. `not_checked` are those of the rules that had nothing to look at: a scan reads no tokenizer, and not every
    checkpoint has weights to read. `not_determined` is the `Cause` in a word (None for a verdict), and `reason` says it
    in a sentence. `bytes_read` are bytes, `requests` those to the Hub, `seconds` wall time.
    """

    reference: str
    verdict: Verdict
    commit: str | None = None
    revision: str | None = None
    kind: str | None = None
    format: str | None = None
    model_type: str | None = None
    class_name: str | None = field(default=None, metadata={"json": "class"})
    task: str | None = None
    pooling_kind: str | None = None
    formula: str | None = None
    num_labels: int | None = None
    labels: tuple[str, ...] = ()
    dtype: str | None = None
    new: int | None = None
    new_in_head: int | None = None
    mismatched: int | None = None
    unused: int | None = None
    head_parameters: int | None = None
    parameters: int | None = None
    profile: str | None = None
    findings: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    not_determined: str | None = None
    reason: str = ""
    bytes_read: int | None = None
    bytes_total: int | None = None
    requests: int | None = None
    seconds: float = 0.0
    schema_version: str = SCAN_SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """The row as plain JSON values, which every reader of tables can decode."""
        return {name: _storable(value) for name, value in to_dict(self).items()}


def storable(text: str) -> str:
    r"""`text` as UTF-8 can hold it: a lone surrogate, such as in a file name that isn't UTF-8, becomes `\udcff`."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    return [storable(item) for item in value] if isinstance(value, list) else value


@cache
def columns() -> dict[str, Any]:
    """The columns of the table in order, each with the type that `ScanRow` declares for it."""
    hints = get_type_hints(ScanRow)
    named = {json_name(field): hints[field.name] for field in fields(ScanRow)}
    return {name: hint for name, hint in named.items() if name is not None}


def is_row(value: object) -> bool:
    """Whether `value`, read from JSON, has every column of the table, no other, and what `to_dict` writes in each."""
    try:
        row = from_dict(ScanRow, value) if isinstance(value, dict) else None
    except (TypeError, ValueError):
        return False
    return row is not None and abs(row.seconds) <= sys.float_info.max and row.to_dict() == value


@dataclass(frozen=True, slots=True)
class Count:
    """How many rows have a value."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class RuleCount:
    """How many rows a rule found something in; `name` and `title` are empty for a rule of another version."""

    id: str
    count: int
    name: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Slow:
    """A row that took long."""

    reference: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Interval:
    """How many rows took `low` seconds or more, and less than `high`; `high` is None for the last interval."""

    low: float
    high: float | None
    count: int


@dataclass(frozen=True, slots=True)
class ScanSummary:
    """A whole table in counts, the most frequent first; `written` rows are of this run, `skipped` were there before.

    `not_checked` are rules that had nothing to look at in some rows. `durations` are intervals of seconds, and
    `slowest` the rows that took longest. `requests` and `bytes_read` are sums over the rows that know them;
    `seconds` is the wall time of this run.
    """

    rows: int
    written: int
    skipped: int
    verdicts: tuple[Count, ...]
    causes: tuple[Count, ...]
    findings: tuple[RuleCount, ...]
    classes: tuple[Count, ...]
    poolings: tuple[Count, ...]
    durations: tuple[Interval, ...]
    slowest: tuple[Slow, ...]
    not_checked: tuple[Count, ...] = ()
    requests: int = 0
    bytes_read: int = 0
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The summary as plain JSON values."""
        return to_dict(self)


RuleNames = Mapping[str, tuple[str, str]]
"""The name and the title of each rule, by its id."""

_MOST_SLOW = 5
_EDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Tally:
    """Counts rows one by one, in memory that doesn't grow with their number."""

    def __init__(self) -> None:
        self.rows = 0
        self._counts: dict[str, Counter[str]] = {
            name: Counter()
            for name in ("verdict", "not_determined", "findings", "not_checked", "class", "pooling_kind")
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
        self._slowest = nlargest(_MOST_SLOW, (*self._slowest, (seconds, str(row["reference"]))))
        self._durations[bisect_right(_EDGES, seconds)] += 1
        self._requests += row["requests"] or 0
        self._bytes += row["bytes_read"] or 0

    def summary(self, *, written: int, skipped: int, seconds: float, rules: RuleNames | None = None) -> ScanSummary:
        """What was counted so far."""
        ordered = {name: _by_count(counts) for name, counts in self._counts.items()}
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
            durations=self._intervals(),
            slowest=tuple(Slow(reference, taken) for taken, reference in self._slowest),
            not_checked=ordered["not_checked"],
            requests=self._requests,
            bytes_read=self._bytes,
            seconds=round(seconds, 3),
        )

    def _intervals(self) -> tuple[Interval, ...]:
        """The intervals between the first and the last that have a row."""
        each = tuple(zip((0.0, *_EDGES), (*_EDGES, None), self._durations, strict=True))
        taken = [place for place, (_, _, count) in enumerate(each) if count]
        return tuple(Interval(*one) for one in each[taken[0] : taken[-1] + 1]) if taken else ()


def _by_count(counts: Counter[str]) -> tuple[Count, ...]:
    return tuple(Count(*pair) for pair in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
