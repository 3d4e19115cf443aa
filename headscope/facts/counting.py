"""Counts and lists in sentences."""

from collections.abc import Iterable, Iterator

from headscope.facts.stored.checkpoint import Gap

_MOST_LISTED = 4


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 tensor`, `2,048 tensors`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


_SHORT = 60


def shortened(text: str) -> str:
    """The beginning of a long text."""
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."


def verb(count: int, one: str = "is", many: str = "are") -> str:
    """The form of a verb behind a count."""
    return one if count == 1 else many


def few_of(items: Iterable[str]) -> str:
    """A few items, and how many there are besides."""
    return list_of(items, _MOST_LISTED)


def list_of(items: Iterable[str], limit: int, rest: str = "more") -> str:
    """Up to `limit` items whole, and how many there are besides."""
    every = tuple(items)
    shown = ", ".join(every[:limit])
    return shown if len(every) <= limit else f"{shown} and {len(every) - limit:,} {rest}"


def merged_gaps(gaps: Iterable[Gap]) -> Iterator[Gap]:
    """Gaps of one reason as one gap, whose topic names a few of theirs."""
    topics: dict[str, list[str]] = {}
    for gap in gaps:
        topics.setdefault(gap.reason, []).append(gap.topic)
    return (Gap(few_of(concerned), reason) for reason, concerned in topics.items())


def told_gaps(gaps: Iterable[Gap]) -> Iterator[str]:
    """Each reason once, behind what it concerns: `HS103 head-partly-new, HS105 unused-weights-new: no head path`."""
    return (f"{gap.topic}: {gap.reason}" for gap in merged_gaps(gaps))
