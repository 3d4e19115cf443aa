"""Screen of `diff-weights`: every parameter whose values do not come from the key with its name."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.core.facts import (
    Carried,
    CheckpointKind,
    ParameterOrigin,
    ParameterStatus,
    Rename,
    Report,
    WeightDiff,
)
from headscope.core.facts.counting import counted
from headscope.core.words.console import QUIET, STATUS, STRONG
from headscope.core.words.fold import FoldedRow, fold_keys, fold_rows
from headscope.core.words.lines import GAP, FittedRows, Paragraph
from headscope.core.words.safe import label, safe
from headscope.core.words.words import size_of
from headscope.shared.report.findings import ID_COLUMN, repaired_sentence
from headscope.shared.report.report_facts import notice_facts
from headscope.shared.report.verdict import verdict_screen


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table without its names: everything that all of them have in common."""

    status: str
    style: str
    shape: str
    dtype: str
    note: str = ""


_RAISES = (
    "from_pretrained raises an error because of the mismatched shapes; with ignore_mismatched_sizes=True, "
    "it initializes these tensors again."
)


def diff_screen(report: Report, *, every: bool = False) -> RenderableType:
    """Shows the weights of `report` as a table; with `every`, also those that were loaded under their own name."""
    diff = report.weights
    rows = fold_rows(_diff_rows(diff, every))
    renamed = f" ({len(diff.renamed):,} stored under other names)" if diff.renamed else ""
    listed = (("new", diff.new), ("mismatched", diff.mismatched), ("tied", diff.tied), ("unused", diff.unused))
    counts = [f"{diff.loaded:,} loaded{renamed}", *(f"{len(items):,} {word}" for word, items in listed if items)]
    parts: list[RenderableType] = [verdict_screen(report), Text(), Paragraph(Text(", ".join(counts)))]
    if report.adapter is not None:
        saved = sum(item.adapter is Carried.SAVED for item in diff.parameters)
        adapted = sum(item.adapter is Carried.ADAPTED for item in diff.parameters)
        given = f"gives {counted(saved, 'tensor')} whole and changes {counted(adapted, 'tensor')} of the base model"
        facts = report.adapter
        parts.append(Paragraph(label(f"the adapter {facts.reference} ({facts.method}) {given} {facts.base}")))
    if rows:
        parts += [Text(), *_status_tables(rows)]
    if diff.mismatched and report.checkpoint.kind is not CheckpointKind.MEMORY:
        parts += [Text(), Paragraph(Text(_RAISES), Text("note", STRONG), ID_COLUMN)]
    if report.repaired is not None:
        parts += [Text(), Paragraph(repaired_sentence(report.repaired))]
    notices = [Paragraph(body, Text(word, STRONG), ID_COLUMN) for word, body in notice_facts(report)]
    parts += [Text(), *notices] if notices else []
    return Group(*parts)


def _diff_rows(diff: WeightDiff, every: bool) -> Iterator[FoldedRow]:
    origins = {origin.name: origin for origin in diff.parameters}
    place = {name: number for number, name in enumerate(origins)}
    for name in sorted(diff.new, key=lambda name: place.get(name, len(place))):
        own = origins.get(name)
        yield _single_row((name,), _status_line("new", own, "a buffer" if own is not None and own.is_buffer else ""))
    for mismatch in diff.mismatched:
        change = f"{size_of(mismatch.checkpoint_shape)} -> {size_of(mismatch.model_shape)}"
        yield _single_row((mismatch.parameter,), _line_of_status("mismatched", change, origins.get(mismatch.parameter)))
    for origin in diff.parameters:
        if origin.status in _UNEXPLAINED:
            yield _single_row((origin.name,), _status_line(origin.status.value, origin, _UNEXPLAINED[origin.status]))
    yield from _unused_rows(diff)
    for tie in diff.tied:
        yield _single_row(
            (tie.parameter, tie.source), _status_line("tied", origins.get(tie.parameter), "same tensor as")
        )
    yield from _renamed_rows(diff, origins, every)
    renamed = {rename.parameter for rename in diff.renamed}
    for origin in diff.parameters if every else ():
        if origin.status is ParameterStatus.LOADED and origin.name not in renamed:
            yield _single_row((origin.name,), _status_line("loaded", origin))


def _renamed_rows(diff: WeightDiff, origins: Mapping[str, ParameterOrigin], every: bool) -> Iterator[FoldedRow]:
    """Gives rows for loaded parameters whose keys have other names; those that differ in the same part are one row."""
    counted = Counter(filter(None, map(_prefix_change, diff.renamed)))
    prefixes = {change: count for change, count in counted.items() if count > 1 and not every}
    for (ours, theirs), count in sorted(prefixes.items()):
        note = "from" if theirs else f"stored without {ours}"
        names = (f"{ours}*", *([f"{theirs}*"] if theirs else []))
        yield FoldedRow(names, (_line_of_status("renamed", "", None, note),), count)
    # Other changes are often a renamed module or leaf, the same in every layer.
    others = [rename for rename in diff.renamed if _prefix_change(rename) not in prefixes]
    by_change: dict[tuple[str, str] | None, list[Rename]] = {}
    for rename in others:
        by_change.setdefault(None if every else name_change(rename), []).append(rename)
    folded = {change: len(some) for change, some in by_change.items() if change is not None and len(some) > 1}
    yield from _changed_rows(folded)
    for rename in others:
        if name_change(rename) not in folded:
            names = (rename.parameter, *fold_keys(rename.checkpoint_keys))
            yield _single_row(names, _status_line("renamed", origins.get(rename.parameter), "from"))


def _changed_rows(changes: Mapping[tuple[str, str], int]) -> Iterator[FoldedRow]:
    """Gives a row for each change of a name; changes of the leaves of one module share a row."""
    by_module: dict[tuple[str, str], list[tuple[str, str, int]]] = {}
    for (ours, theirs), count in changes.items():
        (mine, leaf), (their, other) = _leaf_of(ours), _leaf_of(theirs)
        by_module.setdefault((mine, their), []).append((leaf, other, count))
    for (mine, their), leaves in by_module.items():
        leaves.sort(key=lambda item: item[0] != "weight")  # the weight before the bias
        names = (_with_leaves(mine, [item[0] for item in leaves]), _with_leaves(their, [item[1] for item in leaves]))
        yield FoldedRow(names, (_line_of_status("renamed", "", None, "from"),), sum(count for _, _, count in leaves))


def _leaf_of(name: str) -> tuple[str, str]:
    module, _, leaf = name.rpartition(".")
    return module, leaf


def _with_leaves(module: str, leaves: Sequence[str]) -> str:
    """Writes `*.LayerNorm.{weight,bias}`; a leaf that is the only one, or is the same for all, without braces."""
    unlike = list(dict.fromkeys(leaves))
    inner = unlike[0] if len(unlike) == 1 else "{" + ",".join(leaves) + "}"
    return f"{module}.{inner}" if module else inner


def name_change(rename: Rename) -> tuple[str, str] | None:
    """Gives the part in which a parameter and its key differ, `*` for the layers before it; None for several keys.

    `bert.encoder.layer.0.output.LayerNorm.bias` from `...LayerNorm.beta` is `*.LayerNorm.bias` from `*.LayerNorm.beta`.
    """
    if len(rename.checkpoint_keys) != 1:
        return None
    ours, theirs = rename.parameter.split("."), rename.checkpoint_keys[0].split(".")
    same = next((at for at, (own, other) in enumerate(zip(ours, theirs, strict=False)) if own != other), 0)
    start = max(same - 1, 0)
    if not same or ours[start].isdigit():
        return None  # no common beginning, or the number of a layer, which `fold_rows` folds
    star = "*." if start else ""
    return f"{star}{'.'.join(ours[start:])}", f"{star}{'.'.join(theirs[start:])}"


def _prefix_change(rename: Rename) -> tuple[str, str] | None:
    """Gives the prefix that only the parameter has, or only its key; None for any other change."""
    if len(rename.checkpoint_keys) != 1:
        return None
    ours, theirs = rename.parameter, rename.checkpoint_keys[0]
    if ours.endswith(f".{theirs}"):
        return ours.removesuffix(theirs), ""
    return ("", theirs.removesuffix(ours)) if theirs.endswith(f".{ours}") else None


_UNEXPLAINED = {
    ParameterStatus.IGNORED: "not in the checkpoint, and Transformers does not report it",
    ParameterStatus.UNKNOWN: "the checkpoint could not be read whole",
    ParameterStatus.CHANGED: "differs from the checkpoint: trained, replaced or filled by an adapter since the load",
}


def _single_row(names: tuple[str, ...], line: Line) -> FoldedRow:
    return FoldedRow(names, (line,))


_STYLE = {status.value: style for status, style in STATUS.items()} | {"unused": "magenta", "renamed": "green"}


def _line_of_status(status: str, shape: str, origin: ParameterOrigin | None, note: str = "") -> Line:
    return Line(status, _STYLE[status], shape, origin.dtype if origin else "", note)


def _status_line(status: str, origin: ParameterOrigin | None, note: str = "") -> Line:
    return _line_of_status(status, size_of(origin.shape) if origin else "", origin, note)


def _unused_rows(diff: WeightDiff) -> Iterator[FoldedRow]:
    headers = {header.key: header for header in diff.unused_tensors}
    described = {key: item.what for item in diff.unplaced for key in item.tensors}
    described |= {key: f"no place: {item.what}" for item in diff.without_place for key in item.tensors}
    for key in diff.unused:
        header = headers.get(key)
        shape, dtype = (size_of(header.shape), header.dtype) if header else ("", "")
        yield _single_row((key,), Line("unused", _STYLE["unused"], shape, dtype, described.get(key, "")))


def _line_of(row: FoldedRow) -> Line:
    line = row.same[0]
    assert isinstance(line, Line)
    return line


def _line_cells(line: Line, row: FoldedRow) -> tuple[Text, ...]:
    name, *others = row.names
    note = " ".join(filter(None, (safe(line.note), ", ".join(map(safe, others)))))
    return (
        label(name),
        Text(line.shape),
        label(line.dtype),
        Text(f"{row.count:,} tensors" if row.count > 1 else ""),
        label(note, QUIET),
    )


_INLINE = (5, 4, 1)
"""How many cells are on a row's own line, from wide to narrow; the others go below it."""
_AS_STORED = {"tied", "renamed", "loaded"}


def _status_tables(rows: Sequence[FoldedRow]) -> Iterator[FittedRows]:
    """Makes a table for what differs, and one each for tied, renamed and plainly loaded parameters."""
    lines = [(_line_of(row), row) for row in rows]
    margin = max(len(line.status) for line, _ in lines) + GAP
    for _, group in groupby(lines, key=lambda pair: pair[0].status in _AS_STORED and pair[0].status):
        cells = ((Text(line.status, line.style), *_line_cells(line, row)) for line, row in group)
        yield FittedRows(tuple(cells), _INLINE, margin, margin + GAP)
