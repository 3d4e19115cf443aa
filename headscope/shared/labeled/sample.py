"""A sample of labeled rows: seeded, spread over the file, and with as many rows of each class as there are."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headscope.errors import UsageError
from headscope.shared.labeled.facts import DataFacts, LabelKind
from headscope.shared.labeled.rows import RowCells, RowSource
from headscope.shared.labeled.tally import Label, is_ignored, read_label, spelled

_SEED = 0
_BY_CLASS = {LabelKind.INTEGERS, LabelKind.TEXTS, LabelKind.BOOLEANS}
_LONGEST_TEXT = 100_000
"""Characters of a text that are kept: a tokenizer cuts far earlier."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A row: its texts (one, or a pair), its label (for several label columns a list of 0 and 1), its number from 1."""

    texts: tuple[str, ...]
    label: Label
    row: int = 0


def sample_rows(source: RowSource, data: DataFacts, count: int) -> tuple[Sampled, ...]:
    """Samples up to `count` rows with a label, as many of each class. Raises UsageError for texts that are none."""
    if data.kind in _BY_CLASS:
        chosen = _pick_rows_by_class(data, count)
    else:
        usable = data.rows - data.missing
        chosen = {"": frozenset(random.Random(_SEED).sample(range(usable), min(count, usable)))}
    return tuple(_chosen_rows(source, data, chosen))


def sample_in_proportion(source: RowSource, data: DataFacts, count: int, seed: int) -> tuple[Sampled, ...]:
    """Samples up to `count` rows of single labels, with each class's share as in the file; all rows where they fit.

    A cell without a text is an empty text. Raises UsageError for other cells that are not texts.
    """
    total = sum(item.rows for item in data.classes)
    shares = [min(count, total) * item.rows / total for item in data.classes]
    quotas = [int(share) for share in shares]
    # Largest remainders: the rounded shares add up to `count`.
    by_remainder = sorted(range(len(shares)), key=lambda place: (quotas[place] - shares[place], place))
    for place in by_remainder[: min(count, total) - sum(quotas)]:
        quotas[place] += 1
    draw = random.Random(seed)
    classes = zip(data.classes, quotas, strict=True)
    chosen = {item.label: frozenset(draw.sample(range(item.rows), quota)) for item, quota in classes}
    return tuple(_chosen_rows(source, data, chosen, missing=""))


def sample_spread(source: RowSource, data: DataFacts, count: int, seed: int) -> tuple[Sampled, ...]:
    """Samples up to `count` rows with numbers or several labels; all rows where they fit.

    A cell without a text is an empty text. Raises UsageError for other cells that are not texts.
    """
    usable = data.rows - data.missing
    chosen = frozenset(random.Random(seed).sample(range(usable), min(count, usable)))
    plain = replace(data, kind=LabelKind.NUMBERS)
    return tuple(_chosen_rows(source, plain, {"": chosen}, missing="", keeps_ignored=True))


def sample_texts(source: RowSource, columns: Sequence[str], count: int) -> tuple[tuple[str, ...], ...]:
    """Samples the texts of up to `count` rows, seeded and in the file's order; rows with an empty cell are left out.

    Raises UsageError for cells that are not texts, and where no row is left.
    """
    draw, kept, seen = random.Random(_SEED), dict[int, tuple[int, RowCells]](), 0
    for number, cells in enumerate(source.read(columns)):
        if any(cell is None or not str(cell).strip() for cell in cells):
            continue
        # Reservoir sampling: each row is equally likely to be kept, in one pass and the memory of `count` rows.
        place = seen if seen < count else draw.randrange(seen + 1)
        seen += 1
        if place < count:
            kept[place] = (number, cells)
    if not kept:
        raise UsageError(f"{source.name} has no row with a text in {' and '.join(map(repr, columns))}", "name another")
    return tuple(_texts_of_row(cells, source, columns) for _, cells in sorted(kept.values()))


def _pick_rows_by_class(data: DataFacts, count: int) -> dict[str, frozenset[int]]:
    """Picks, for each class, the ordinal numbers of its rows: equally many for each, as far as its rows go."""
    quotas = dict.fromkeys((item.label for item in data.classes), 0)
    left = count
    while left > 0:
        open_classes = [item for item in data.classes if quotas[item.label] < item.rows]
        if not open_classes:
            break
        for item in open_classes[:left]:
            more = min(max(left // len(open_classes), 1), item.rows - quotas[item.label])
            quotas[item.label] += more
        left = count - sum(quotas.values())
    draw = random.Random(_SEED)
    return {item.label: frozenset(draw.sample(range(item.rows), quotas[item.label])) for item in data.classes}


def _chosen_rows(
    source: RowSource,
    data: DataFacts,
    chosen: dict[str, frozenset[int]],
    missing: str | None = None,
    *,
    keeps_ignored: bool = False,
) -> Iterator[Sampled]:
    """Yields the rows with these ordinal numbers within their class; `missing` replaces a cell that holds nothing."""
    seen: Counter[str] = Counter()
    width = len(data.label_columns)
    for number, row in enumerate(source.read((*data.label_columns, *data.text_columns)), 1):
        flags = [read_label(cell, source, column) for cell, column in zip(row[:width], data.label_columns, strict=True)]
        label = flags[0]
        if width > 1:
            label = None if None in flags else tuple(int(spelled(flag).lower() in ("1", "true")) for flag in flags)
        if label is None or (is_ignored(label) and not keeps_ignored):
            continue
        key = spelled(label) if data.kind in _BY_CLASS else ""
        if seen[key] in chosen.get(key, frozenset()):
            cells = [missing if cell is None else cell for cell in row[width:]]
            yield Sampled(_texts_of_row(cells, source, data.text_columns), label, number)
        seen[key] += 1


def _texts_of_row(cells: Sequence[Any], source: RowSource, columns: Sequence[str]) -> tuple[str, ...]:
    for cell, column in zip(cells, columns, strict=True):
        if not isinstance(cell, str):
            raise UsageError(f"{column!r} of {source.name} is not a column of texts", "name another with --text-column")
    return tuple(cell[:_LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8") for cell in cells)
