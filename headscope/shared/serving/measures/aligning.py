"""An engine's scores in the order of the checkpoint's classes."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headscope.core.facts.counting import list_of
from headscope.shared.serving.answers import Answers
from headscope.shared.serving.explaining import Scores

_MOST_NAMES = 5
_SEPARATORS = re.compile(r"(?<=\w)[\s_-]+(?=\w)")


@dataclass(frozen=True, slots=True)
class AlignedScores:
    """A row for each text in the order of the checkpoint's classes, or None with the reason.

    With scores and a reason, the order is not known. With `top`, a row has the score of one class, the one in `top`,
    and each other class of the text has at most as much.
    """

    scores: Scores | None
    reason: str = ""
    top: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def align_scores(
    answers: Answers, labels: Sequence[str], label2id: Mapping[str, int], shape: tuple[int, ...]
) -> AlignedScores:
    """Puts the scores into the order of the checkpoint's classes, by the names that the engine gave.

    Scores without names are in the order of the model, and so are those of an engine that said its order.
    """
    items = answers.items
    is_partial = shape[1] > 1 and any(item.is_partial for item in items)
    misfit = _find_misfit(answers, shape, is_partial=is_partial)
    if misfit:
        return AlignedScores(None, misfit)
    names = sorted({name for item in items for name in item.labels})
    found = match_names(names, labels, label2id) if names else None
    if is_partial:
        return _align_top(answers, found, names)
    given = np.asarray([item.scores for item in items], dtype=np.float64)
    if not names or shape[1] == 1:
        return AlignedScores(given, notes=_note_other_tops(answers, labels, label2id))
    if found is None:
        words = f"the engine names the classes {_join_names(items[0].labels)}"
        if not answers.is_indexed:
            return AlignedScores(given, f"{words}, and the checkpoint {_join_names(labels)}")
        return AlignedScores(given, notes=(f"{words}; they are compared by their index",))
    places, rows = dict(zip(names, found, strict=True)), np.empty_like(given)
    for at, item in enumerate(items):
        rows[at, [places[name] for name in item.labels]] = item.scores
    return AlignedScores(rows)


def _note_other_tops(answers: Answers, labels: Sequence[str], label2id: Mapping[str, int]) -> tuple[str, ...]:
    """Notes a class that the engine names as the highest although its scores say another one."""
    for name in sorted({item.top for item in answers.items} & set(labels)):
        found = match_names([name], labels, label2id)
        tops = {item.scores.index(max(item.scores)) for item in answers.items if item.top == name}
        if found is not None and tops != set(found):
            told = ", ".join(str(at) for at in sorted(tops))
            return (f"the engine names class {told} {name}, and the checkpoint has {name} as class {found[0]}",)
    return ()


def _find_misfit(answers: Answers, shape: tuple[int, ...], *, is_partial: bool) -> str:
    """Gives the reason why scores can't be compared, whatever their names; "" if they can."""
    items = answers.items
    if len(items) != shape[0]:
        return f"{len(items)} answers to {shape[0]} texts"
    if not is_partial and any(len(item.scores) != shape[1] for item in items):
        sizes = " or ".join(map(str, sorted({len(item.scores) for item in items})))
        return f"the engine gave {sizes} scores for a text, and the checkpoint has {shape[1]}"
    is_finite = np.isfinite([score for item in items for score in item.scores]).all()
    return "" if is_finite else "the engine gave scores that are not finite"


def _align_top(answers: Answers, found: tuple[int, ...] | None, names: Sequence[str]) -> AlignedScores:
    """Aligns the scores of one class for each text."""
    if found is None or any(len(item.scores) != 1 or len(item.labels) != 1 for item in answers.items):
        return AlignedScores(None, "the engine gave the scores of some classes only")
    places = dict(zip(names, found, strict=True))
    scores = np.asarray([item.scores for item in answers.items], dtype=np.float64)
    return AlignedScores(scores, top=tuple(places[item.labels[0]] for item in answers.items))


def _join_names(names: Sequence[str]) -> str:
    return list_of(names, _MOST_NAMES)


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
