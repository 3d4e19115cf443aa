"""`config.json`, read by our own rules: bounded, one meaning for every key, errors with line and column."""

import json
import re
from typing import Any

from headscope.core.facts.stored.checkpoint import LABEL_MAPS
from headscope.errors import Malformed

TOKENIZER = "tokenizer.json"
LARGEST_JSON = 20_000_000
# The size of the text is not limit enough: 20 MB of `[],[],` are six million lists, over 400 MB as Python values.
_MOST_MEMORY = 150_000_000
_LARGEST_TOKENIZER = 64 << 20
_TOKENIZER_MEMORY = 500_000_000
"""The largest published vocabularies (262,144 tokens with half a million merges) are 33 MB and count as 340 MB."""
_COSTS = ((b"{", 80), (b"[", 80), (b":", 100), (b",", 80))
"""Bytes that Python takes at most for what each of these signs begins or separates, measured on CPython 3.11."""
_LARGEST_MAPS = 200_000_000
_MOST_COLONS = 4_200_000
"""What the two maps of a million labels of 70 letters may take in config.json, beside the limits for all else."""
_LABEL_MAP = re.compile(rb'"(?:' + "|".join(sorted(LABEL_MAPS)).encode() + rb')"\s*:\s*\{[^{}\[\]]*\}')
_WIDE_BYTES = (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4")


def largest_text(name: str) -> int:
    """Gives the most bytes that a file of JSON may have, by its name."""
    if name == TOKENIZER:
        return _LARGEST_TOKENIZER
    return LARGEST_JSON + (_LARGEST_MAPS if name == "config.json" else 0)


def parse_object(text: bytes, name: str, limit: int = LARGEST_JSON) -> dict[str, Any]:
    """Parses a JSON object of at most `limit` bytes. Raises Malformed with the file and the place of the fault."""
    value = parse_json(text, name, limit)
    if not isinstance(value, dict):
        raise Malformed(f"{name} must hold an object, not {_json_kind(value)}", f"correct {name}")
    return value


def parse_list(text: bytes, name: str) -> list[Any]:
    """Parses a JSON list; see `parse_object`. Raises Malformed for anything else."""
    value = parse_json(text, name)
    if not isinstance(value, list):
        raise Malformed(f"{name} must hold a list, not {_json_kind(value)}", f"correct {name}")
    return value


def parse_json(text: bytes, name: str, limit: int = LARGEST_JSON) -> Any:
    """Parses any JSON; see `parse_object`."""
    rest = text
    if name == "config.json":
        # A million classes have two large maps of labels, and no other part of a config.json is large. Still larger
        # maps count like the rest.
        maps = _LABEL_MAP.findall(text)
        is_usual = sum(map(len, maps)) <= _LARGEST_MAPS and sum(found.count(b":") for found in maps) <= _MOST_COLONS
        rest = _LABEL_MAP.sub(b"", text) if is_usual and maps else text
    if len(rest) > limit:
        besides = f" and {_LARGEST_MAPS:,} for maps of labels" if name == "config.json" else ""
        sizes = f"{len(text):,} bytes, over the limit of {limit:,}{besides}"
        raise Malformed(f"{name} has {sizes}", "check what the file is")
    if text.startswith(b"version https://git-lfs"):
        raise Malformed(f"{name} is a Git LFS pointer, not JSON", "run `git lfs pull` in the folder")
    check_cost(rest, name)
    try:
        # Editors on Windows put a byte order mark before the text, which JSON doesn't allow.
        return json.loads(text.decode("utf-8-sig"), object_pairs_hook=_refuse_repeated_keys)
    except UnicodeDecodeError as err:
        raise Malformed(f"{name} is not UTF-8 text", "save it as UTF-8") from err
    except json.JSONDecodeError as err:
        raise Malformed(
            f"{name} is not valid JSON: {err.msg} at line {err.lineno}, column {err.colno}", f"correct {name}"
        ) from err
    except (ValueError, RecursionError) as err:
        raise Malformed(f"{name} is not valid JSON: {err}", f"correct {name}") from err


def check_cost(text: bytes, name: str) -> None:
    """Raises Malformed for JSON whose values could take more memory than any real file needs.

    Counts the signs of its structure and the widest letter, before anything is parsed: the same text ends in the same
    way on every computer.
    """
    # The bytes, the decoded text and the texts in it: Python stores a text as wide as its widest letter.
    if text.isascii():
        width = 6 if b"\\u" in text else 3
    else:
        width = 9 if b"\\u" in text or any(lead in text for lead in _WIDE_BYTES) else 5
    cost = len(text) * width + sum(text.count(sign) * each for sign, each in _COSTS)
    most = _TOKENIZER_MEMORY if name == TOKENIZER else _MOST_MEMORY
    if cost > most:
        raise Malformed(
            f"{name} holds more values than can be read: they could take {cost:,} bytes of memory, "
            f"over the limit of {most:,}",
            "check what the file is",
        )


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Builds an object; of two values for one key, readers could take either. Raises ValueError."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return found


def _json_kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", type(None): "null", bool: "true or false"}
    return kinds.get(type(value), "a number")
