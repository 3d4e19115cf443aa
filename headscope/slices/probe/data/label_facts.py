"""Facts on the labels of the texts: their balance, equal texts with different labels, rows that may be wrong."""

from __future__ import annotations

import numpy as np

from headscope.core.facts.counting import shortened
from headscope.slices.probe.arrays import Array
from headscope.slices.probe.data.rows import LabeledRows
from headscope.slices.probe.facts.data import Contradiction, LabelFacts, Numbers, Suspect
from headscope.slices.probe.facts.result import Problem

_SHOWN = 20


def describe_labels(rows: LabeledRows, predicted: Array, losses: Array) -> LabelFacts:
    """Describes the labels, and the rows that the best vector predicts worst; both arrays are out of fold."""
    contradictions = _find_contradictions(rows)
    given, ratio, numbers = rows.labels, None, None
    if rows.problem is Problem.REGRESSION:
        numbers = Numbers(float(given.min()), float(given.max()), float(given.mean()), float(given.std()))
    else:
        counts = given.sum(0) if rows.problem is Problem.MULTI_LABEL else np.bincount(given)
        ratio = float(counts.max() / counts.min())
    return LabelFacts(
        ratio=ratio,
        numbers=numbers,
        repeated=len(rows.texts) - int(rows.groups.max()) - 1,
        contradicting=len(contradictions),
        contradictions=tuple(contradictions[:_SHOWN]),
        suspects=_find_suspects(rows, predicted, losses),
    )


def _find_contradictions(rows: LabeledRows) -> list[Contradiction]:
    """Finds texts that have more than one label, in the order of the file."""
    members: dict[int, list[int]] = {}
    for place, group in enumerate(rows.groups):
        members.setdefault(int(group), []).append(place)
    found = []
    for places in members.values():
        labels = tuple(dict.fromkeys(rows.named(rows.labels[place]) for place in places))
        if len(labels) > 1:
            numbers = tuple(rows.numbers[place] for place in places)
            found.append(Contradiction(_shown_text(rows, places[0]), labels[:_SHOWN], numbers[:_SHOWN]))
    return found


def _find_suspects(rows: LabeledRows, predicted: Array, losses: Array) -> tuple[Suspect, ...]:
    """Finds the wrongly predicted rows with the largest losses."""
    wrong = predicted != rows.labels
    wrong = wrong.any(1) if wrong.ndim > 1 else wrong
    is_number = rows.problem is Problem.REGRESSION
    order = [int(place) for place in np.argsort(-losses, kind="stable") if wrong[place]][:_SHOWN]
    return tuple(
        Suspect(
            row=rows.numbers[place],
            text=_shown_text(rows, place),
            given=rows.named(rows.labels[place]),
            predicted=f"{float(predicted[place]):.4g}" if is_number else rows.named(predicted[place]),
            loss=float(losses[place]),
        )
        for place in order
    )


def _shown_text(rows: LabeledRows, place: int) -> str:
    return shortened(" / ".join(" ".join(text.split()) for text in rows.texts[place]))
