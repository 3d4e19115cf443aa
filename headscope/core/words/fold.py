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
    """Folds every running index of the rows; keeps the order of their first members."""
    folded = tuple(rows)
    deepest = max((len(_index_places(row.names[0])) for row in folded), default=0)
    # The innermost index first: rows of an outer index can only be equal once the inner ones are folded.
    for position in reversed(range(deepest)):
        folded = _fold_index(folded, position)
    return folded


def fold_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """Folds running indices of keys, then leaves of one parent: `classifier.{weight,bias}`."""
    return tuple(name for name, _ in _fold_with_counts(keys))


def few_keys(keys: Iterable[str], limit: int = 4, rest: str = "more") -> str:
    """Lists a few folded keys, and how many more keys there are."""
    folded = _fold_with_counts(keys)
    others = sum(count for _, count in folded[limit:])
    return ", ".join(name for name, _ in folded[:limit]) + (f" and {others:,} {rest}" if others else "")


def _fold_with_counts(keys: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Folds keys and counts how many keys each of the results is."""
    return _fold_leaves((row.names[0], row.count) for row in fold_rows(FoldedRow((key,)) for key in keys))


def _index_places(name: str) -> tuple[int, ...]:
    """Finds the segments of a dotted name that are running indices."""
    digits = [(at, part) for at, part in enumerate(name.split(".")) if part.isascii() and part.isdigit()]
    # `01` is not one: written as a number it would be another name.
    return tuple(at for at, part in digits if len(part) <= _DIGITS and str(int(part)) == part)


def _fold_index(rows: Sequence[FoldedRow], position: int) -> tuple[FoldedRow, ...]:
    groups: dict[object, list[tuple[int, FoldedRow]]] = {}
    for number, row in enumerate(rows):
        index, template = _open_index(row.names, position)
        # A row without such an index stands alone.
        group = number if index is None else (template, row.same)
        groups.setdefault(group, []).append((index or 0, row))
    return tuple(_merge_rows(members, position) for members in groups.values())


def _open_index(names: tuple[str, ...], position: int) -> tuple[int | None, tuple[Segments, ...]]:
    """Gives the index at `position` of the first name, and all names with None for that index."""
    places = _index_places(names[0])
    if position >= len(places):
        return None, ()
    index = names[0].split(".")[places[position]]
    from_the_end = position - len(places)
    others = (_without_segment(name, _place_of(index, name, from_the_end)) for name in names[1:])
    return int(index), (_without_segment(names[0], places[position]), *others)


def _place_of(index: str, name: str, from_the_end: int) -> int | None:
    """Finds `index` in another name: as far from the end among its indices, or else its first place.

    A checkpoint key often has other prefixes than the parameter, and the same end.
    """
    parts, places = name.split("."), _index_places(name)
    if len(places) >= -from_the_end and parts[places[from_the_end]] == index:
        return places[from_the_end]
    return parts.index(index) if index in parts else None


def _without_segment(name: str, place: int | None) -> Segments:
    return tuple(None if number == place else part for number, part in enumerate(name.split(".")))


def _merge_rows(members: list[tuple[int, FoldedRow]], position: int) -> FoldedRow:
    first = members[0][1]
    if len(members) == 1:
        return first
    _, template = _open_index(first.names, position)
    run = spell_run(index for index, _ in members)
    names = tuple(".".join(run if part is None else part for part in parts) for parts in template)
    return FoldedRow(names, first.same, sum(row.count for _, row in members))


def spell_run(indices: Iterable[int]) -> str:
    """Writes indices in braces, runs of three or more by their ends: `{0...11}`, `{0,2,4...7}`."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    spelled = (f"{run[0]}...{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)
    return "{" + ",".join(spelled) + "}"


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
    in_order = sorted(leaves, key=lambda leaf: leaf != "weight")  # the weight before the bias, then as given
    inner = in_order[0] if len(leaves) == 1 else "{" + ",".join(in_order) + "}"
    return [(f"{parent}.{inner}", sum(leaves.values()))]
