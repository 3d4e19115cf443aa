"""One line of a scan: a checkpoint's identity, its head, and the verdict, flat for tables."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import nlargest
from typing import Any

from headscope.facts.check import Verdict
from headscope.facts.plain import to_dict

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

    Counts are None where the checkpoint could not be examined, `new` also where missing files leave it open. `new`,
    `mismatched` and `unused` count tensors, `new_in_head` those new or mismatched ones that the scores depend on;
    `head_parameters` and `parameters` count numbers. `findings` are the IDs of
    the rules that found something, errors first. `not_determined` is the `Cause` in a word (None for a verdict), and
    `reason` says it in a sentence. `bytes_read` are bytes, `requests` those to the Hub, `seconds` wall time.
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
    not_determined: str | None = None
    reason: str = ""
    bytes_read: int | None = None
    bytes_total: int | None = None
    requests: int | None = None
    seconds: float = 0.0
    schema_version: str = SCAN_SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """The row as plain JSON values."""
        return to_dict(self)


@dataclass(frozen=True, slots=True)
class ScanSummary:
    """A whole table in counts, the most frequent first; `written` rows are of this run, `skipped` were there before.

    `slowest` are references with their seconds, `seconds` is the wall time of this run. `requests` and `bytes_read` are
    sums over the rows that know them.
    """

    rows: int
    written: int
    skipped: int
    verdicts: tuple[tuple[str, int], ...]
    causes: tuple[tuple[str, int], ...]
    findings: tuple[tuple[str, int], ...]
    classes: tuple[tuple[str, int], ...]
    poolings: tuple[tuple[str, int], ...]
    slowest: tuple[tuple[str, float], ...]
    requests: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    schema_version: str = SCAN_SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """The summary as plain JSON values."""
        return to_dict(self)


_MOST_SLOW = 5


class Tally:
    """Counts rows one by one, in memory that doesn't grow with their number."""

    def __init__(self) -> None:
        self.rows = 0
        self._counts: dict[str, Counter[str]] = {
            name: Counter() for name in ("verdict", "not_determined", "findings", "class", "pooling_kind")
        }
        self._slowest: list[tuple[float, str]] = []
        self._requests = self._bytes = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Counts a row as `ScanRow.to_dict` gives it."""
        self.rows += 1
        for name, counts in self._counts.items():
            value = row[name]
            counts.update(value if isinstance(value, list) else () if value is None else (value,))
        self._slowest = nlargest(_MOST_SLOW, (*self._slowest, (float(row["seconds"]), str(row["reference"]))))
        self._requests += row["requests"] or 0
        self._bytes += row["bytes_read"] or 0

    def summary(self, *, written: int, skipped: int, seconds: float) -> ScanSummary:
        """What was counted so far."""
        ordered = {name: _by_count(counts) for name, counts in self._counts.items()}
        return ScanSummary(
            rows=self.rows,
            written=written,
            skipped=skipped,
            verdicts=ordered["verdict"],
            causes=ordered["not_determined"],
            findings=ordered["findings"],
            classes=ordered["class"],
            poolings=ordered["pooling_kind"],
            slowest=tuple((reference, taken) for taken, reference in self._slowest),
            requests=self._requests,
            bytes_read=self._bytes,
            seconds=round(seconds, 3),
        )


def _by_count(counts: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
