"""A card read from its file, and the reference scores in it; a file of an engine's scores for the inputs of a card."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headscope.core.checkpoints.formats.config_file import parse_json, parse_object
from headscope.core.facts.counting import counted, list_of
from headscope.core.facts.heads.head import AS_IT_IS
from headscope.core.facts.heads.tasks import Activation
from headscope.core.facts.plain import restore
from headscope.errors import Malformed, NotFound, UsageError
from headscope.shared.serving.answers import Answer, Answers, TextOrPair
from headscope.shared.serving.card.facts import (
    CARD_FORMAT,
    CARD_VERSION,
    IN_SINGLE,
    LARGEST_CARD,
    PRECISIONS,
    Card,
    CardInput,
    CardRows,
    CardTolerance,
)
from headscope.shared.serving.comparing import ReferenceScores, VariantScores, measure_rounding
from headscope.shared.serving.explaining import FORWARD_BY_NAME, SINGLE_PRECISION, Scores
from headscope.shared.serving.served_facts import FROM_FILE

_ROUNDED_TEXT = 1e-5
"""How far scores in a card may be from those of its logits: both are written with the digits of float32."""
_ROUNDED_TOLERANCE = 0.05
"""How far a tolerance may be off, in parts of itself: it was measured before the runs were written in decimals."""
_WRITE_AGAIN = "write the card again with `headscope verify MODEL --write-card FILE`"


def read_card(path: Path) -> Card:
    """Reads a card. Raises NotFound without a file, and Malformed for another version and for a damaged card."""
    name, document = path.name, parse_object(_read_bytes(path, "card"), path.name, LARGEST_CARD)
    if document.get("format") != CARD_FORMAT:
        found = f"{name} is a JSON file, but not a card: its field format isn't {CARD_FORMAT!r}"
        raise Malformed(found, _WRITE_AGAIN)
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
    score = FORWARD_BY_NAME.get(card.activation)
    if score is None and card.activation != Activation.NOT_DETERMINED:
        yield f"the activation {card.activation!r} is unknown"
    elif card.scores is not None and score is not None:
        difference = np.abs(score(_array_of(card.logits)) - _array_of(card.scores)).max()
        if difference > _ROUNDED_TEXT * max(1.0, float(np.abs(_array_of(card.scores)).max())):
            yield f"the scores are not the {card.activation} of the logits"
    yield from _false_tolerances(card)


def _false_tolerances(card: Card) -> Iterator[str]:
    """Yields the tolerances that don't follow from the runs: one of the two was changed."""
    own = {item.precision: item for item in measure_tolerances(reference_of(card, range(len(card.inputs))))}
    if len({item.precision for item in card.tolerances}) < len(card.tolerances):
        yield "two tolerances are of one precision"
    for item in card.tolerances:
        known = own.get(item.precision, CardTolerance(item.precision, None, None))
        for stated, measured in ((item.logits, known.logits), (item.scores, known.scores)):
            if stated is None or measured is None:
                is_own = stated is measured
            else:
                is_own = abs(stated - measured) <= _ROUNDED_TOLERANCE * measured
            if not is_own:
                yield f"the tolerance in {item.precision} doesn't follow from its runs"


def measure_tolerances(reference: ReferenceScores) -> tuple[CardTolerance, ...]:
    """Measures how far logits and scores may be off in each precision."""
    logits, scores = (measure_rounding(reference, is_raw=is_raw) for is_raw in (True, False))
    return tuple(CardTolerance(name, logits.get(name), scores.get(name)) for name in PRECISIONS)


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
    `labels`, `dtype`, `engine`, `version` and `input_ids`; so may a line, with `input_ids` beside its row. A field that
    is null is absent. `is_raw`: rows without a name are logits. Raises Malformed for another form.
    """
    document = _parse_scores(path)
    if {"logits", "scores"} <= document.keys():
        raise _unfit_error(path, "logits and scores: both were found, and one was expected")
    name = next((key for key in ("logits", "scores") if key in document), "rows")
    if is_raw and name == "scores":
        raise UsageError("--logits was given, but the file says that it holds scores", "leave out --logits")
    count, width, ids = len(card.inputs), len(card.labels), document.get("input_ids")
    labels = _read_labels(path, document, width)
    rows = _as_rows(path, name, document.get(name), count)
    items = [Answer(_read_row(path, f"{name}, row {at}", row), labels) for at, row in enumerate(rows)]
    odd = next((at for at, item in enumerate(items) if len(item.scores) != width), None)
    if odd is not None:
        given = f"{name}, row {odd}: {counted(len(items[odd].scores), 'number')}"
        raise _unfit_error(path, f"{given} found, and one for each of the card's {width} classes expected")
    engine, version, dtype = (str(document.get(key, "")) for key in ("engine", "version", "dtype"))
    if dtype not in ("", *PRECISIONS):
        raise _unfit_error(path, f"dtype: {dtype[:80]!r} found, and {list_of(PRECISIONS, 3)} expected")
    raw = is_raw or name == "logits"
    found = Answers(engine or "scores in a file", version, FROM_FILE, raw, tuple(items), dtype=dtype)
    return GivenScores(found, None if ids is None else _read_ids(path, ids, count))


def _unfit_error(path: Path, found: str) -> Malformed:
    return Malformed(f"{path.name} can't be used: {found}", "see `headscope explain card` for the form of the file")


def _parse_scores(path: Path) -> dict[str, Any]:
    """Parses JSON or JSON lines to an object of columns; rows without a name are `rows`."""
    data = _read_bytes(path, "scores")
    try:
        found = parse_json(data, path.name, LARGEST_CARD)
    except Malformed as err:
        found = _parse_lines(data, path.name, err)
    if isinstance(found, dict):
        return {name: value for name, value in found.items() if value is not None}
    if not isinstance(found, list) or not found:
        raise _unfit_error(path, "no rows found, and a list of rows or an object expected")
    if not all(isinstance(row, dict) for row in found):
        return {"rows": found}
    named = [{name for name, value in row.items() if value is not None} for row in found]
    odd = next((at for at, names in enumerate(named) if names != named[0]), None)
    if odd is not None:
        raise _unfit_error(path, f"row {odd} has other fields than row 0")
    return {name: [row[name] for row in found] for name in named[0] & {"logits", "scores", "input_ids"}}


def _parse_lines(data: bytes, name: str, of_whole: Malformed) -> list[Any]:
    """Parses JSON lines. Raises the error of the whole file if not even the first line is JSON."""
    rows = list[Any]()
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            rows += [parse_json(line, f"line {number} of {name}", LARGEST_CARD)] if line.strip() else []
        except Malformed as err:
            raise (err if rows else of_whole) from None
    return rows


def _as_rows(path: Path, name: str, rows: Any, count: int) -> list[Any]:
    """Checks a list with an entry for each input of the card. Raises Malformed for anything else."""
    if not isinstance(rows, list) or len(rows) != count:
        given = counted(len(rows), "row") if isinstance(rows, list) else "no list"
        what = "scores or logits" if name == "rows" and rows is None else name
        raise _unfit_error(path, f"{what}: {given} found, and a row for each of the card's {count} inputs expected")
    return rows


def _read_labels(path: Path, document: dict[str, Any], width: int) -> tuple[str, ...]:
    labels = document.get("labels")
    if labels is None:
        return ()
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise _unfit_error(path, "labels: a list of texts was expected")
    if len(set(labels)) != width or len(labels) != width:
        found = f"labels: {counted(len(set(labels)), 'name')} found, and one for each of the card's {width} classes"
        raise _unfit_error(path, f"{found} expected; without labels, scores are in the order of the card")
    return tuple(labels)


def _read_row(path: Path, where: str, row: Any) -> tuple[float, ...]:
    values = row if isinstance(row, list) else [row]
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in values):
        raise _unfit_error(path, f"{where}: neither a number nor a list of numbers")
    try:
        found = tuple(map(float, values))
    except OverflowError:
        found = (float("inf"),)
    if not np.isfinite(found).all():
        raise _unfit_error(path, f"{where}: a number that is not finite")
    return found


def _read_ids(path: Path, rows: Any, count: int) -> tuple[tuple[int, ...], ...]:
    for at, row in enumerate(_as_rows(path, "input_ids", rows, count)):
        # Some writers give whole numbers as 101.0, which in JSON is the same number.
        is_right = isinstance(row, list) and all(
            type(one) is int or (type(one) is float and one.is_integer()) for one in row
        )
        if not is_right:
            raise _unfit_error(path, f"input_ids, row {at}: not a list of whole numbers")
    return tuple(tuple(map(int, row)) for row in rows)


def inputs_with_other_ids(card: Card, given: GivenScores) -> tuple[int, ...]:
    """Lists the inputs of which an engine's tokenizer made other IDs, with the card's padding or without it."""
    if given.input_ids is None:
        return ()
    pairs = zip(card.inputs, given.input_ids, strict=True)
    return tuple(at for at, (item, ids) in enumerate(pairs) if ids not in (item.input_ids, tokens_of_input(item)))


def tokens_of_input(item: CardInput) -> tuple[int, ...]:
    """Gives the token IDs of an input without padding."""
    return tuple(one for one, kept in zip(item.input_ids, item.attention_mask, strict=True) if kept)
