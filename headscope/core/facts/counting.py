"""Counts and lists in sentences."""

from collections.abc import Iterable


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 tensor`, `2,048 tensors`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


_SHORT = 60


def shortened(text: str) -> str:
    """Cuts a long text after its beginning."""
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."


def safe_repr(value: object) -> str:
    """Gives `repr(value)`, or the class and address of an object whose `__repr__` raises."""
    try:
        return repr(value)
    except Exception:  # foreign code, or a number of too many digits
        return object.__repr__(value)


def verb(count: int, one: str = "is", many: str = "are") -> str:
    """Picks the form of a verb behind a count."""
    return one if count == 1 else many


def few_of(items: Iterable[str]) -> str:
    """A few items, and how many there are besides."""
    return list_of(items, 4)


def list_of(items: Iterable[str], limit: int, rest: str = "more") -> str:
    """Up to `limit` items whole, and how many there are besides."""
    every = tuple(items)
    shown = ", ".join(every[:limit])
    return shown if len(every) <= limit else f"{shown} and {len(every) - limit:,} {rest}"
