"""The checkpoint's class that each name of an engine's scores stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

_SEPARATORS = re.compile(r"[\s_-]+")


def match_classes(names: Sequence[str], labels: Sequence[str], label2id: Mapping[str, int]) -> tuple[int, ...] | None:
    """Finds the class of each name: as in id2label, without case, as in label2id, `LABEL_1` or `1` as its index.

    None where the names are not of different classes, or where two of these ways contradict each other.
    """
    exact = _classes_in({label: at for at, label in enumerate(labels)}, names, str)
    if exact is not None and len(set(labels)) == len(labels):
        return exact
    numbers = {f"LABEL_{at}": at for at in range(len(labels))}
    tables = [(label, at) for at, label in enumerate(labels)], list(label2id.items()), list(numbers.items())
    found = {
        _classes_in(_one_spelling(table), names, _plain_name)
        for table in tables
        if all(at < len(labels) for _, at in table)
    }
    found.add(_classes_in({str(at): at for at in range(len(labels))}, names, str.strip))
    found.discard(None)
    return found.pop() if len(found) == 1 else None


def _plain_name(name: str) -> str:
    return _SEPARATORS.sub(" ", name).strip().casefold()


def _one_spelling(table: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Indexes a table by plain names, without those that two classes share."""
    found: dict[str, int] = {}
    shared = set()
    for name, at in table:
        if found.setdefault(_plain_name(name), at) != at:
            shared.add(_plain_name(name))
    return {name: at for name, at in found.items() if name not in shared}


def _classes_in(
    table: Mapping[str, int], names: Sequence[str], spelled: Callable[[str], str]
) -> tuple[int, ...] | None:
    """Looks up all names; None if one is not there, or two are of one class."""
    found = [table.get(spelled(name), -1) for name in names]
    return tuple(found) if -1 not in found and len(set(found)) == len(found) else None
