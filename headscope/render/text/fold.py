"""Names that differ in a running index only, written once: `layer.{0...11}.attention.self.query.weight`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_DIGITS = 9  # longer runs of digits are not layer numbers

Segments = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class FoldedRow:
    """Names that belong together (a parameter and its checkpoint keys), and everything else about them.

    Rows fold only when `same` is equal and the names are equal but for one index, which is the same in
    every name of a row. `count` is how many rows it stands for.
    """

    names: tuple[str, ...]
    same: tuple[object, ...] = ()
    count: int = 1


def fold_rows(rows: Iterable[FoldedRow]) -> tuple[FoldedRow, ...]:
    """The rows with every running index folded, in the order of their first members."""
    folded = tuple(rows)
    deepest = max((len(_indices(row.names[0])) for row in folded), default=0)
    for position in reversed(range(deepest)):
        folded = _fold_index(folded, position)
    return folded


def fold_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """Keys with running indices folded, then leaves of one parent: `classifier.{weight,bias}`."""
    return tuple(name for name, _ in _folded(keys))


def few_keys(keys: Iterable[str], limit: int = 4, rest: str = "more") -> str:
    """A few folded keys, and how many keys there are besides."""
    folded = _folded(keys)
    others = sum(count for _, count in folded[limit:])
    return ", ".join(name for name, _ in folded[:limit]) + (f" and {others:,} {rest}" if others else "")


def _folded(keys: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Folded keys, and for how many keys each stands."""
    return _fold_leaves((row.names[0], row.count) for row in fold_rows(FoldedRow((key,)) for key in keys))


def _indices(name: str) -> tuple[int, ...]:
    """The segments of a dotted name that are running indices."""
    return tuple(position for position, part in enumerate(name.split(".")) if _is_index(part))


def _is_index(part: str) -> bool:
    return part.isascii() and part.isdigit() and len(part) <= _DIGITS and str(int(part)) == part


def _fold_index(rows: Sequence[FoldedRow], position: int) -> tuple[FoldedRow, ...]:
    groups: dict[object, list[tuple[int, FoldedRow]]] = {}
    for number, row in enumerate(rows):
        index, template = _opened(row.names, position)
        # A row without such an index stands alone.
        group = number if index is None else (template, row.same)
        groups.setdefault(group, []).append((index or 0, row))
    return tuple(_merged(members, position) for members in groups.values())


def _opened(names: tuple[str, ...], position: int) -> tuple[int | None, tuple[Segments, ...]]:
    """The index at `position` of the first name, and all names with that index left open."""
    places = _indices(names[0])
    if position >= len(places):
        return None, ()
    index = names[0].split(".")[places[position]]
    from_the_end = position - len(places)
    others = (_without(name, _place_of(index, name, from_the_end)) for name in names[1:])
    return int(index), (_without(names[0], places[position]), *others)


def _place_of(index: str, name: str, from_the_end: int) -> int | None:
    """Where `index` is in another name: as far from the end among its indices, or where it first is."""
    parts, places = name.split("."), _indices(name)
    if len(places) >= -from_the_end and parts[places[from_the_end]] == index:
        return places[from_the_end]
    return parts.index(index) if index in parts else None


def _without(name: str, place: int | None) -> Segments:
    return tuple(None if number == place else part for number, part in enumerate(name.split(".")))


def _merged(members: list[tuple[int, FoldedRow]], position: int) -> FoldedRow:
    first = members[0][1]
    if len(members) == 1:
        return first
    _, template = _opened(first.names, position)
    run = spell_run(index for index, _ in members)
    names = tuple(".".join(run if part is None else part for part in parts) for parts in template)
    return FoldedRow(names, first.same, sum(row.count for _, row in members))


def spell_run(indices: Iterable[int]) -> str:
    """Indices in braces, runs of three or more by their ends: `{0...11}`, `{0,2,4...7}`."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return "{" + ",".join(_spell(run) for run in runs) + "}"


def _spell(run: list[int]) -> str:
    ends = f"{run[0]}...{run[-1]}"
    return ends if len(run) > 2 else ",".join(map(str, run))  # a pair needs no dots


def _fold_leaves(keys: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    parents: dict[str, dict[str, int]] = {}
    for key, count in keys:
        parent, _, leaf = key.rpartition(".")
        leaves = parents.setdefault(parent, {})
        leaves[leaf] = leaves.get(leaf, 0) + count
    return tuple(item for parent, leaves in parents.items() for item in _with_leaves(parent, leaves))


def _with_leaves(parent: str, leaves: dict[str, int]) -> list[tuple[str, int]]:
    if not parent:
        return list(leaves.items())
    inner = next(iter(leaves)) if len(leaves) == 1 else "{" + ",".join(sorted(leaves, key=_weight_first)) + "}"
    return [(f"{parent}.{inner}", sum(leaves.values()))]


def _weight_first(leaf: str) -> bool:
    return leaf != "weight"
