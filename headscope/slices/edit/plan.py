"""Classes after an edit, as rows of the classes before: requested changes are read and applied in a fixed order."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from headscope.copies.facts import EditedLabel, LabelOrigin
from headscope.core.facts.counting import counted, few_of
from headscope.errors import UsageError, did_you_mean
from headscope.shell.values import read_pairs

_MOST_LABELS = 1_000_000
_MOST_BYTES = 200_000_000
"""Of a file that describes changes: a million names of 200 characters."""
_INITS = {"zero": LabelOrigin.ZERO, "mean": LabelOrigin.MEAN, "random": LabelOrigin.RANDOM}
_COPY = "copy:"


@dataclass(frozen=True, slots=True)
class LabelChanges:
    """Changes of the classes, applied in the order of the fields; each uses the names that the previous one left."""

    labels: Sequence[str] | None = None
    """The names of all classes, in the order of the scores."""
    rename: Mapping[str, str] = field(default_factory=dict)
    drop: Sequence[str] = ()
    keep: Sequence[str] | None = None
    merge: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The merged classes by the new name."""
    add: Mapping[str, str] = field(default_factory=dict)
    """How to fill the row of each new class: `zero`, `mean`, `random` or `copy:NAME`."""
    order: Sequence[str] | None = None
    bias: Mapping[str, float] = field(default_factory=dict)
    """What to add to the logit of each class."""
    threshold: Mapping[str, float] = field(default_factory=dict)
    """The probability from which each class is chosen."""


_Rows = dict[str, EditedLabel]
_Value = TypeVar("_Value")


def plan_labels(before: Sequence[str], changes: LabelChanges, *, is_softmax: bool) -> tuple[EditedLabel, ...]:
    """Applies the changes to the classes. Raises UsageError for a change that can't be made."""
    rows: _Rows = {name: EditedLabel(name, LabelOrigin.KEPT, at, name) for at, name in enumerate(before)}
    for step in (_name_rows, _rename_rows, _drop_rows, _merge_rows, _add_rows, _order_rows, _shift_rows):
        rows = step(rows, changes)
        if step is _merge_rows and not is_softmax:  # probabilities that aren't parts of one whole don't add up
            rows = {name: replace(row, shift=0.0) for name, row in rows.items()}
    rows = _apply_thresholds(rows, changes.threshold)
    if not rows:
        raise UsageError("no class would be left", "keep at least one")
    if len(rows) > _MOST_LABELS:
        raise UsageError(f"{len(rows):,} classes are more than the limit of {_MOST_LABELS:,}", "add fewer")
    if len(rows) == 1 and len(before) > 1 and is_softmax:
        raise UsageError(
            "one class would be left, and the softmax of one score is always 1",
            "keep two classes, or set --problem-type multi_label_classification for a sigmoid",
        )
    return tuple(rows.values())


def _name_rows(rows: _Rows, changes: LabelChanges) -> _Rows:
    if changes.labels is None:
        return rows
    if len(changes.labels) != len(rows):
        raise UsageError(
            f"--labels names {counted(len(changes.labels), 'class', 'classes')}, but the last layer has "
            f"{counted(len(rows), 'row')}",
            "name every class once, in the order of the scores",
        )
    return _rename_rows(rows, LabelChanges(rename=dict(zip(rows, changes.labels, strict=True))))


def _rename_rows(rows: _Rows, changes: LabelChanges) -> _Rows:
    for name in changes.rename:
        _check_known(name, rows)
    new = [changes.rename.get(name, name) for name in rows]
    twice = next((name for at, name in enumerate(new) if name in new[:at]), None) if len(set(new)) < len(new) else None
    if twice is not None:
        raise UsageError(f"two classes would be named {twice}", "give every class a different name")
    for name in changes.rename.values():
        _check_name(name)
    return {name: replace(row, name=name) for name, row in zip(new, rows.values(), strict=True)}


def _exact_name(name: str, rows: Iterable[str]) -> str:
    """Gives the class that a name in a list means: as it is, or without the blanks around it, as in `A, B`."""
    return name if name in rows else name.strip()


def _drop_rows(rows: _Rows, changes: LabelChanges) -> _Rows:
    drop, keep = ([_exact_name(name, rows) for name in names or ()] for names in (changes.drop, changes.keep))
    for name in (*drop, *keep):
        _check_known(name, rows)
    dropped, kept = set(drop), set(keep)
    both = sorted(dropped & kept)
    if both:
        raise UsageError(f"{both[0]} is both dropped and kept", "name it once")
    left = {name: row for name, row in rows.items() if name not in dropped}
    return left if changes.keep is None else {name: row for name, row in left.items() if name in kept}


def _merge_rows(rows: _Rows, changes: LabelChanges) -> _Rows:
    for name, parts in changes.merge.items():
        if len(set(parts)) < max(2, len(parts)):
            what = "fewer than two classes" if len(parts) < 2 else "a class twice"
            raise UsageError(f"{name} is merged from {what}", "write --merge A+B=C with different classes")
        for part in parts:
            _check_known(part, rows)
        # `A+B=C` can't say whether A+B is one class or two.
        joined = {"+".join(parts[at:end]) for at in range(len(parts)) for end in range(at + 2, len(parts) + 1)}
        both = sorted(joined.intersection(rows))
        if both:
            raise UsageError(f"{both[0]} is a class, and could also be several", "give the merge in a --labels-file")
        if name in rows and name not in parts:
            raise UsageError(f"there is a class {name} already", "give the merged one another name")
        _check_name(name)
        places = [rows[part].source for part in parts]
        merged = EditedLabel(
            name, LabelOrigin.MERGED, merged=tuple(place for place in places if place is not None),
            shift=math.log(len(parts)),
        )  # fmt: skip
        if len(merged.merged) < len(parts):
            raise UsageError(f"{name} is merged from a class that is new itself", "merge classes of the checkpoint")
        first = parts[0]
        rows = {
            name if known == first else known: merged if known == first else row
            for known, row in rows.items()
            if known == first or known not in parts
        }
    return rows


def _add_rows(rows: _Rows, changes: LabelChanges) -> _Rows:
    rows = dict(rows)
    known = dict(rows)
    for name, init in changes.add.items():
        _check_name(name)
        if name in rows:
            raise UsageError(f"there is a class {name} already", "give the new one another name")
        rows[name] = _new_row(name, init, known)
    return rows


def _new_row(name: str, init: str, known: _Rows) -> EditedLabel:
    if init.startswith(_COPY):
        like = init.removeprefix(_COPY)
        _check_known(like, known)
        return replace(known[like], name=name, origin=LabelOrigin.COPIED)
    if init not in _INITS:
        raise UsageError(f"{init!r} is not a way to fill a new row", "write zero, mean, random or copy:NAME")
    return EditedLabel(name, _INITS[init])


def _order_rows(rows: _Rows, changes: LabelChanges) -> _Rows:
    if changes.order is None:
        return rows
    order = [_exact_name(name, rows) for name in changes.order]
    known = set(order)
    unknown = [name for name in order if name not in rows]
    missing = [name for name in rows if name not in known]
    if unknown and not missing:
        _check_known(unknown[0], rows)
    if unknown or missing or len(order) != len(rows):
        what = f"lacks {few_of(missing)}" if missing else "names a class twice"
        what += f", and names {few_of(unknown)}, which the checkpoint lacks" if unknown else ""
        raise UsageError(f"the order {what}", "name every class once; --drop leaves classes out, --rename renames them")
    return {name: rows[name] for name in order}


def _shift_rows(rows: _Rows, changes: LabelChanges) -> _Rows:
    for name, amount in changes.bias.items():
        _check_known(name, rows)
        if not math.isfinite(amount):
            raise UsageError(f"a bias of {amount} for {name} is not a finite number", "give a number")
    return {name: replace(row, shift=row.shift + changes.bias.get(name, 0.0)) for name, row in rows.items()}


def _apply_thresholds(rows: _Rows, thresholds: Mapping[str, float]) -> _Rows:
    """Shifts the logits so that each threshold becomes a probability of one half."""
    for name, share in thresholds.items():
        _check_known(name, rows)
        if not 0 < share < 1:
            raise UsageError(f"a threshold of {share} for {name} is not between 0 and 1", "give a probability")
    return {
        name: replace(row, shift=row.shift - math.log(thresholds[name] / (1 - thresholds[name])))
        if name in thresholds
        else row
        for name, row in rows.items()
    }


def _check_known(name: str, rows: Iterable[str]) -> None:
    if name not in rows:
        known = list(rows)
        is_list = "," in name and {part.partition("=")[0] for part in name.split(",")}.issubset(known)
        near = did_you_mean(name, known, f"classes: {few_of(known)}")
        raise UsageError(f"no class is named {name}", "repeat the option for each class" if is_list else near)


def _check_name(name: str) -> None:
    if not name.strip() or "\0" in name or len(name) > _LONGEST_NAME:
        raise UsageError("a class would have an empty or an unusable name", "give it a short name")


_LONGEST_NAME = 1000


def read_merges(given: Iterable[str] | None) -> dict[str, tuple[str, ...]] | None:
    """Reads `A+B=C` texts: the merged classes, by the new name."""
    pairs = read_pairs(given, "--merge")
    if pairs is None:
        return None
    return _index_by_name(((name, tuple(parts.split("+"))) for parts, name in pairs.items()), "--merge")


def read_additions(given: Iterable[str] | None) -> dict[str, str] | None:
    """Reads `NAME` or `NAME=INIT` texts: how to fill the row of each new class. Raises UsageError for another INIT."""
    return None if given is None else _index_by_name(map(_read_addition, given), "--add")


def _index_by_name(pairs: Iterable[tuple[str, _Value]], option: str) -> dict[str, _Value]:
    """Puts the pairs into a dict. Raises UsageError for a name that is there twice."""
    found: dict[str, _Value] = {}
    for name, value in pairs:
        if name in found:
            raise UsageError(f"{option} makes {name} twice", "give every class a different name")
        found[name] = value
    return found


def read_numbers(pairs: Mapping[str, Any], option: str) -> dict[str, float]:
    """Reads the numbers of `NAME=NUMBER`. Raises UsageError for anything else."""
    found = {}
    for name, text in pairs.items():
        try:
            if isinstance(text, bool):  # float(True) is 1.0
                raise TypeError("a truth value")
            found[name] = float(text)
        except (TypeError, ValueError) as err:
            raise UsageError(f"{option} of {name}: {text!r} is not a number", f"write {option} NAME=0.5") from err
    return found


def _read_addition(text: str) -> tuple[str, str]:
    name, sign, like = text.partition(f"={_COPY}")
    if sign:
        return name, f"{_COPY}{like}"
    name, sign, init = text.rpartition("=")
    if sign and init not in _INITS:
        hint = "write zero, mean, random or copy:NAME; a name with = in it is given with zero, as A=B=zero"
        raise UsageError(f"--add {text!r}: {init!r} is not a way to fill a new row", hint)
    return (name, init) if sign else (text, "zero")


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Builds a JSON object. Raises ValueError for a repeated key, of which `json` would keep only the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def read_changes_file(path: Path) -> dict[str, Any]:
    """Reads changes from a JSON file: an object with the fields of `LabelChanges`, or a list, which is the order.

    Raises UsageError for anything else.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is too large for a list of classes", "check what the file is")
        found = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_refuse_repeated_keys)
    except (OSError, ValueError, RecursionError) as err:
        raise UsageError(f"{path} can't be read as JSON: {err}", "give a JSON list of class names") from err
    if isinstance(found, list):
        found = {"order": found}
    kinds = {"labels": list, "rename": dict, "drop": list, "keep": list, "merge": dict, "add": dict, "order": list,
             "bias": dict, "threshold": dict}  # fmt: skip
    if not isinstance(found, dict) or not set(found) <= set(kinds):
        raise UsageError(f"{path} holds something else than changes", f"fields: {', '.join(kinds)}")
    for name, value in found.items():
        texts = list(value) if isinstance(value, dict | list) else []
        if not isinstance(value, kinds[name]) or not all(isinstance(text, str) for text in texts):
            raise UsageError(f"{name} in {path} is not {'a list' if kinds[name] is list else 'an object'} of names", "")
    for name, parts in found.get("merge", {}).items():
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise UsageError(f"merge in {path}: {name} is not a list of names", 'write {"merge": {"C": ["A", "B"]}}')
    for option in ("rename", "add"):
        if not all(isinstance(text, str) for text in found.get(option, {}).values()):
            raise UsageError(f"{option} in {path} holds something else than texts", "")
    return found
