"""Strict reading of scores in the JSON of servers: every row there once, in order, finite values only."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headscope.errors import Malformed
from headscope.shared.serving.answers import Answer
from headscope.shared.serving.asking.address import one_line

_HINT = "check that the server is what --protocol says, and its log for errors"
_NUMERIC = ("FP16", "FP32", "FP64", "BF16")
_PREFERRED = ("logits", "scores", "probabilities")
"""Names of outputs, the best first: logits tell heads apart whose probabilities are alike."""
_SGLANG_FAILURE = ("Default", [1.0])


def wrong_answer(found: str, expected: str) -> Malformed:
    """Makes the error for an answer in another form than the protocol has."""
    return Malformed(f"the server answered {found}, but {expected} was expected", _HINT)


def described(value: Any) -> str:
    """Describes a value of JSON for a message: its kind, and a little of its content."""
    if isinstance(value, dict):
        return f"an object with {', '.join(one_line(str(key)) for key in list(value)[:5]) or 'no fields'}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "null" if value is None else one_line(repr(value))


def field_of(payload: Any, name: str, expected: type) -> Any:
    """Reads a field of an object. Raises Malformed if it is missing or of another type."""
    if not isinstance(payload, dict) or name not in payload:
        raise wrong_answer(described(payload), f"an object with {name}")
    if not isinstance(payload[name], expected):
        raise wrong_answer(f"{described(payload[name])} as {name}", f"a {expected.__name__}")
    return payload[name]


def row_list(payload: Any, count: int) -> list[Any]:
    """Checks a list with an entry for each text. Raises Malformed for anything else."""
    if not isinstance(payload, list):
        raise wrong_answer(described(payload), "a list")
    if len(payload) != count:
        raise wrong_answer(f"{len(payload)} rows to {count} texts", "a row for each text")
    return payload


def number_in(value: Any) -> float:
    """Reads a finite number. Raises Malformed for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_answer(f"{described(value)} as a score", "a number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise wrong_answer(f"{found} as a score", "a finite number")
    return found


def numbers_in(value: Any) -> tuple[float, ...]:
    """Reads a row of scores, at least one. Raises Malformed for anything else."""
    if not isinstance(value, list) or not value:
        raise wrong_answer(f"{described(value)} as scores", "a list of numbers")
    return tuple(number_in(one) for one in value)


def in_order(rows: Any, count: int, index_needed: bool = True) -> list[Any]:
    """Puts rows into the order of the texts, by the index that each carries.

    Raises Malformed if one is missing or there twice.
    """
    found = row_list(rows, count)
    positions = [row.get("index") if isinstance(row, dict) else None for row in found]
    if not index_needed and all(position is None for position in positions):
        return found
    numbers = [position for position in positions if type(position) is int]
    if sorted(numbers) != list(range(count)):
        told = ", ".join(described(position) for position in positions[:5])
        raise wrong_answer(f"rows with index {told}", f"each index from 0 to {count - 1} once")
    ordered = dict(zip(numbers, found, strict=True))
    return [ordered[position] for position in range(count)]


def probability_rows(payload: Any, count: int) -> list[Answer]:
    """Reads answers of vLLM's /classify and SGLang's /v1/classify: `data[].probs`. Raises Malformed otherwise."""
    answers = []
    for row in in_order(field_of(payload, "data", list), count, index_needed=False):
        scores = numbers_in(field_of(row, "probs", list))
        if row.get("num_classes", len(scores)) != len(scores):
            raise wrong_answer(f"{len(scores)} probs with num_classes {described(row['num_classes'])}", "as many probs")
        if (row.get("label"), row["probs"]) == _SGLANG_FAILURE:
            raise wrong_answer("the label Default with the score 1, which SGLang sends after a failure", "scores")
        top = row.get("label")
        answers.append(Answer(scores, top=top if isinstance(top, str) else ""))
    return answers


def single_scores(payload: Any, count: int, rows: str = "data", score: str = "score") -> list[Answer]:
    """Reads answers of one score each, in rows with an index; `rows` is "" where the payload is the list."""
    found = field_of(payload, rows, list) if rows else payload
    return [Answer((number_in(row.get(score)),)) for row in in_order(found, count)]


def vectors(payload: Any, count: int, rows: str, name: str) -> list[Answer]:
    """Reads answers whose scores come as the vectors of an endpoint for embeddings.

    vLLM puts those of ERNIE into one more list: its head has an axis of one token.
    """
    found = field_of(payload, rows, list) if rows else [payload] if isinstance(payload, dict) else payload
    given = [field_of(row, name, list) for row in in_order(found, count, index_needed=False)]
    return [Answer(numbers_in(row[0] if len(row) == 1 and isinstance(row[0], list) else row)) for row in given]


def labeled_rows(payload: Any, count: int) -> list[Answer]:
    """Reads answers in the form of Transformers' pipeline: a list of {label, score} per text, or the top one alone.

    Raises Malformed for another form.
    """
    if not isinstance(payload, list):
        raise wrong_answer(described(payload), "a list of {label, score}")
    if payload and all(isinstance(row, dict) for row in payload):
        if count == 1:
            return [labeled_row(payload, len(payload) == 1)]
        return [labeled_row([row], True) for row in row_list(payload, count)]
    return [labeled_row(row, False) for row in row_list(payload, count)]


def labeled_row(row: Any, is_partial: bool) -> Answer:
    """Reads one text's list of {label, score}. Raises Malformed for another form, and a label that is there twice."""
    if not isinstance(row, list) or not row:
        raise wrong_answer(f"{described(row)} for a text", "a list of {label, score}")
    labels = tuple(field_of(one, "label", str) for one in row)
    twice = (
        next((label for label in labels if labels.count(label) > 1), None) if len(set(labels)) < len(labels) else None
    )
    if twice is not None:
        raise wrong_answer(
            f"the label {one_line(twice)} twice in a row", "each label once: give the classes distinct names"
        )
    return Answer(tuple(number_in(one.get("score")) for one in row), labels, is_partial)


def tensor_rows(payload: Any, count: int) -> list[Answer]:
    """Reads answers of KServe's protocol: a tensor of floats, or the JSON of a pipeline in a tensor of strings.

    Raises Malformed for another form.
    """
    outputs = [one for one in field_of(payload, "outputs", list) if isinstance(one, dict)]
    floats = [one for one in outputs if one.get("datatype") in _NUMERIC]
    named = [one for name in _PREFERRED for one in floats if one.get("name") == name]
    texts = [one for one in outputs if one.get("datatype") == "BYTES"]
    if named or len(floats) == 1:
        first, *others = named or floats
        found, is_raw = _float_rows(first, count), first.get("name") == _PREFERRED[0]
        for other in others:
            is_like = other.get("shape") == first.get("shape")
            if is_like and _predicted_classes(_float_rows(other, count)) != _predicted_classes(found):
                names = f"{first['name']} and {other['name']}"
                raise wrong_answer(f"{names} whose highest values are of other classes", "outputs that agree")
        return [replace(item, is_raw=is_raw) for item in found]
    if not floats and len(texts) == 1:
        return _json_rows(texts[0], count)
    told = ", ".join(f"{one_line(str(one.get('name')))} ({one_line(str(one.get('datatype')))})" for one in outputs[:5])
    raise wrong_answer(f"the outputs {told or '(none)'}", "one tensor of floats, or one with the JSON of a pipeline")


def _predicted_classes(answers: Sequence[Answer]) -> list[int]:
    return [item.scores.index(max(item.scores)) for item in answers]


def _float_rows(tensor: dict[str, Any], count: int) -> list[Answer]:
    shape, data = field_of(tensor, "shape", list), field_of(tensor, "data", list)
    if not shape or any(type(size) is not int or size < 1 for size in shape) or len(shape) > 2 or shape[0] != count:
        raise wrong_answer(f"a tensor of the shape {one_line(str(shape))} to {count} texts", f"[{count}, classes]")
    width = shape[1] if len(shape) == 2 else 1
    if len(data) == count and all(isinstance(row, list) for row in data):  # nested, which the protocol allows
        rows: Sequence[Any] = data
    else:
        rows = [data[at : at + width] for at in range(0, len(data), width)]
    if len(rows) != count or any(len(row) != width for row in rows):
        raise wrong_answer(
            f"{len(data)} values in a tensor of the shape {one_line(str(shape))}", "as many as the shape says"
        )
    return [Answer(numbers_in(list(row))) for row in rows]


def _json_rows(tensor: dict[str, Any], count: int) -> list[Answer]:
    found = []
    for text in row_list(field_of(tensor, "data", list), count):
        try:
            row = json.loads(text) if isinstance(text, str) else None
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict | list):
            raise wrong_answer(f"{described(text)} as the answer to a text", "JSON with label and score")
        found.append(labeled_row([row], True) if isinstance(row, dict) else labeled_row(row, False))
    return found
