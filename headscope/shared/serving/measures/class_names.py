"""The checkpoint's class that each name of an engine's scores stands for."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

_SEPARATORS = re.compile(r"(?<=\w)[\s_-]+(?=\w)")


def match_names(names: Sequence[str], labels: Sequence[str], label2id: Mapping[str, int]) -> tuple[int, ...] | None:
    """Finds the class of each name: as in id2label, without case, as in label2id, `LABEL_1` or `1` as its index.

    None where the names are not of different classes, or where two of these ways contradict each other.
    """
    if len(set(labels)) == len(labels) and set(names) <= set(labels):
        return tuple(labels.index(name) for name in names)
    numbers = range(len(labels))
    tables: list[Iterable[tuple[str, int]]] = [
        zip(labels, numbers, strict=True),
        [(name, at) for name, at in label2id.items() if at in numbers],
    ]
    if len(names) == len(labels):  # a part of the numbers may be counted from 1
        tables += [(f"LABEL_{at}", at) for at in numbers], [(str(at), at) for at in numbers]
    found = {_match_in_table(table, names) for table in tables} - {None}
    return found.pop() if len(found) == 1 else None


def _match_in_table(table: Iterable[tuple[str, int]], names: Sequence[str]) -> tuple[int, ...] | None:
    """Looks up all names; None if one is not there, or of several classes, or two are of one class."""
    places = defaultdict(set)
    for name, at in table:
        places[_plain_name(name)].add(at)
    found = [next(iter(classes)) for name in names if len(classes := places[_plain_name(name)]) == 1]
    return tuple(found) if len(set(found)) == len(names) else None


def _plain_name(name: str) -> str:
    return _SEPARATORS.sub(" ", name).strip().casefold()
