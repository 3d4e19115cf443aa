"""A card read from its file, and the reference scores in it; a file of an engine's scores for the inputs of a card."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.facts.heads.head import AS_IT_IS
from headscope.core.facts.heads.tasks import Activation
from headscope.core.facts.plain import restore
from headscope.errors import Malformed, NotFound, UsageError
from headscope.shared.serving.answers import Answer, Answers, TextOrPair
from headscope.shared.serving.card.facts import CARD_FORMAT, CARD_VERSION, IN_SINGLE, Card, CardInput, CardRows
from headscope.shared.serving.comparing import ReferenceScores, VariantScores, measured_tolerances
from headscope.shared.serving.explaining import SCORE_FUNCTIONS, SINGLE_PRECISION, Scores
from headscope.shared.serving.served_facts import FROM_FILE

LARGEST_CARD = 50_000_000
_ROUNDED_TEXT = 1e-5
"""How far scores in a card may be from those of its logits: both are written with the digits of float32."""
_ROUNDED_TOLERANCE = 0.05
"""How far a tolerance may be off, in parts of itself: it was measured before the runs were written in decimals."""
_WRITE_AGAIN = "write the card again with `headscope verify MODEL --write-card FILE`"


def read_card(path: Path) -> Card:
    """Reads a card. Raises NotFound without a file, and Malformed for another version and for a damaged card."""
    name, document = path.name, parse_object(_read_bytes(path, "card"), path.name, LARGEST_CARD)
    if document.get("format") != CARD_FORMAT:
        raise Malformed(f"{name} is a JSON file, but not a card", _WRITE_AGAIN)
    if type(document.get("version")) is not int or document["version"] != CARD_VERSION:
        found = f"{name} is a card of version {document.get('version')!r}"
        raise Malformed(
            f"{found}, but this headscope reads version {CARD_VERSION}", f"{_WRITE_AGAIN}, or upgrade headscope"
        )
    try:
        card = restore(Card, document)
        reason = next(_damage_of(card), "")
    except (TypeError, ValueError, OverflowError) as err:
        reason = str(err)
    if reason:
        raise Malformed(f"{name} is damaged: {reason}", _WRITE_AGAIN)
    return card


def _damage_of(card: Card) -> Iterator[str]:
    """Yields what in a card contradicts the rest."""
    shape = len(card.inputs), len(card.labels)
    if not all(shape):
        yield f"it has {shape[0]} inputs and {shape[1]} labels"
    for at, item in enumerate(card.inputs):
        beside = (item.attention_mask, *([] if item.token_type_ids is None else [item.token_type_ids]))
        if any(len(row) != len(item.input_ids) for row in beside) or not {*item.attention_mask} <= {0, 1}:
            yield f"the mask or the segments of input {at} don't fit its {len(item.input_ids)} IDs"
    names = [AS_IT_IS, *(item.name for item in card.alternatives)]
    if len(set(names)) < len(names):
        yield "two alternatives have one name"
    rows: dict[str, CardRows | None] = {"logits": card.logits, "scores": card.scores}
    rows |= {f"the run {run.name}": run.logits for run in card.runs}
    rows |= {f"the alternative {item.name}": item.logits for item in card.alternatives}
    for what, given in rows.items():
        if given is not None and (len(given) != shape[0] or any(len(row) != shape[1] for row in given)):
            yield f"{what}: not {shape[0]} rows of {shape[1]} numbers"
        elif given is not None and not np.isfinite(_array_of(given)).all():
            yield f"{what}: numbers that are not finite"
    functions = {item.name: item.forward for item in SCORE_FUNCTIONS}
    score = functions.get(card.activation)
    if score is None and card.activation != Activation.NOT_DETERMINED:
        yield f"the activation {card.activation!r} is unknown"
    elif card.scores is not None and score is not None:
        difference = np.abs(score(_array_of(card.logits)) - _array_of(card.scores)).max()
        if difference > _ROUNDED_TEXT * max(1.0, float(np.abs(_array_of(card.scores)).max())):
            yield f"the scores are not the {card.activation} of the logits"
    yield from _false_tolerances(card)


def _false_tolerances(card: Card) -> Iterator[str]:
    """Yields the tolerances that don't follow from the runs: one of the two was changed."""
    reference = reference_of(card, range(len(card.inputs)))
    logits, scores = (measured_tolerances(reference, is_raw=is_raw) for is_raw in (True, False))
    if len({item.precision for item in card.tolerances}) < len(card.tolerances):
        yield "two tolerances are of one precision"
    for item in card.tolerances:
        for stated, measured in ((item.logits, logits.get(item.precision)), (item.scores, scores.get(item.precision))):
            if stated is None or measured is None:
                is_own = stated is measured
            else:
                is_own = abs(stated - measured) <= _ROUNDED_TOLERANCE * measured
            if not is_own:
                yield f"the tolerance in {item.precision} doesn't follow from its runs"


def _array_of(rows: CardRows) -> Scores:
    return np.asarray(rows, dtype=np.float64)


def _read_bytes(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as err:
        raise NotFound(f"{path} can't be read: {err.strerror}", f"give the {what} as a file") from err


def texts_of(card: Card) -> list[TextOrPair]:
    """Lists the texts and pairs of a card."""
    return [(item.text,) if item.text_pair is None else (item.text, item.text_pair) for item in card.inputs]


def reference_of(card: Card, rows: Sequence[int]) -> ReferenceScores:
    """Gives the reference scores of some inputs of a card: as those of a checkpoint, without the checkpoint."""
    at = list(rows)
    runs = {run.name: _array_of(run.logits)[at] for run in card.runs}
    found = {AS_IT_IS: VariantScores(_array_of(card.logits)[at], card.formula or "")}
    tolerance = SINGLE_PRECISION * max(float(np.abs(found[AS_IT_IS].logits).max(initial=0.0)), 1.0)
    for item in card.alternatives:
        logits = _array_of(item.logits)[at]
        # Some differ on other inputs only: segments, on pairs.
        if all(np.abs(logits - known.logits).max() > tolerance for known in found.values()):
            found[item.name] = VariantScores(logits, item.formula, item.is_sum)
    return ReferenceScores(
        found[AS_IT_IS].logits,
        card.labels,
        card.activation,
        runs.get,
        lambda: found,
        {label: number for number, label in enumerate(card.labels)},
        [sum(card.inputs[row].attention_mask) for row in at],
        in_single=IN_SINGLE,
    )


@dataclass(frozen=True, slots=True)
class GivenScores:
    """An engine's scores for the inputs of a card, and the token IDs that its own tokenizer made, None if not given."""

    answers: Answers
    input_ids: tuple[tuple[int, ...], ...] | None = None


def read_scores(path: Path, card: Card, *, is_raw: bool) -> GivenScores:
    """Reads the scores of an engine: JSON or JSON lines, a row for each input of a card.

    A row is a list of numbers, or one number. JSON may also be an object with `scores` or `logits`, and beside them
    `labels`, `dtype`, `engine`, `version` and `input_ids`; so may a line, with `input_ids` beside its row. `is_raw`:
    rows without a name are logits. Raises Malformed for another form.
    """
    document = _parse_scores(path)
    name = next((key for key in ("logits", "scores") if key in document), "rows")
    if is_raw and name == "scores":
        raise UsageError("--logits was given, but the file says that it holds scores", "leave out --logits")
    count, rows, ids = len(card.inputs), document.get(name), document.get("input_ids")
    if not isinstance(rows, list) or len(rows) != count:
        given = f"{len(rows)} rows" if isinstance(rows, list) else "no list of scores or logits"
        raise _unfit_error(path, f"{given}, and the card has {count} inputs")
    labels = document.get("labels", [])
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise _unfit_error(path, "labels that are not a list of texts")
    if len(set(labels)) < len(labels):
        raise _unfit_error(path, "a label that is there twice; without labels, scores are in the order of the card")
    items = [Answer(_read_row(path, row), tuple(labels)) for row in rows]
    if labels and any(len(item.scores) != len(labels) for item in items):
        raise _unfit_error(path, f"{len(labels)} labels, and rows of another length")
    engine, version, dtype = (str(document.get(key, "")) for key in ("engine", "version", "dtype"))
    raw = is_raw or name == "logits"
    found = Answers(engine or "scores in a file", version, FROM_FILE, raw, tuple(items), dtype=dtype)
    return GivenScores(found, None if ids is None else _read_ids(path, ids, count))


def _unfit_error(path: Path, found: str) -> Malformed:
    return Malformed(f"{path.name} holds {found}", "see `headscope explain card` for the form of the file")


def _parse_scores(path: Path) -> dict[str, Any]:
    """Parses JSON or JSON lines to an object of columns; rows without a name are `rows`."""
    try:
        text = _read_bytes(path, "scores").decode("utf-8-sig")
        try:
            found = json.loads(text)
        except json.JSONDecodeError:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as err:
        raise _unfit_error(path, f"something that is not JSON: {err}") from err
    if isinstance(found, dict):
        return found
    if not isinstance(found, list) or not found:
        raise _unfit_error(path, "no rows")
    if not all(isinstance(row, dict) for row in found):
        return {"rows": found}
    names = set(found[0])
    if any(set(row) != names for row in found):
        raise _unfit_error(path, "lines with different fields")
    return {name: [row[name] for row in found] for name in names & {"logits", "scores", "input_ids"}}


def _read_row(path: Path, row: Any) -> tuple[float, ...]:
    values = row if isinstance(row, list) else [row]
    if not values or not all(isinstance(one, int | float) and not isinstance(one, bool) for one in values):
        raise _unfit_error(path, "a row that is neither a number nor a list of numbers")
    try:
        found = tuple(map(float, values))
    except OverflowError as err:
        raise _unfit_error(path, "a number that is not finite") from err
    if not np.isfinite(found).all():
        raise _unfit_error(path, "a number that is not finite")
    return found


def _read_ids(path: Path, rows: Any, count: int) -> tuple[tuple[int, ...], ...]:
    is_right = isinstance(rows, list) and len(rows) == count
    if not is_right or not all(isinstance(row, list) and all(type(one) is int for one in row) for row in rows):
        raise _unfit_error(path, f"input_ids that are not {count} lists of integers")
    return tuple(map(tuple, rows))


def inputs_with_other_ids(card: Card, given: GivenScores) -> tuple[int, ...]:
    """Lists the inputs of which an engine's tokenizer made other IDs, with the card's padding or without it."""
    if given.input_ids is None:
        return ()
    pairs = zip(card.inputs, given.input_ids, strict=True)
    return tuple(at for at, (item, ids) in enumerate(pairs) if ids not in (item.input_ids, tokens_of_input(item)))


def tokens_of_input(item: CardInput) -> tuple[int, ...]:
    """Gives the token IDs of an input without padding."""
    return tuple(one for one, kept in zip(item.input_ids, item.attention_mask, strict=True) if kept)
