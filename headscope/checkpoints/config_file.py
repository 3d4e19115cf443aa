"""`config.json`, read by our own rules: bounded, one meaning for every key, errors with line and column."""

import json
from typing import Any

from headscope.errors import Malformed

LARGEST_JSON = 20_000_000


def parse_object(text: bytes, name: str, limit: int = LARGEST_JSON) -> dict[str, Any]:
    """A JSON object of at most `limit` bytes. Raises Malformed with the file's name and the place of the fault."""
    value = _parse(text, name, limit)
    if not isinstance(value, dict):
        raise Malformed(f"{name} holds {_kind(value)} where an object was expected", f"correct {name}")
    return value


def parse_list(text: bytes, name: str, limit: int = LARGEST_JSON) -> list[Any]:
    """A JSON list; see `parse_object`."""
    value = _parse(text, name, limit)
    if not isinstance(value, list):
        raise Malformed(f"{name} holds {_kind(value)} where a list was expected", f"correct {name}")
    return value


def _parse(text: bytes, name: str, limit: int) -> Any:
    if len(text) > limit:
        raise Malformed(f"{name} has {len(text)} bytes, over the limit of {limit}", "check what the file is")
    if text.startswith(b"version https://git-lfs"):
        raise Malformed(f"{name} is a Git LFS pointer, not JSON", "run `git lfs pull` in the folder")
    try:
        return json.loads(text.decode("utf-8-sig"), object_pairs_hook=_unique)
    except UnicodeDecodeError as err:
        raise Malformed(f"{name} is no UTF-8 text", "save it as UTF-8") from err
    except json.JSONDecodeError as err:
        raise Malformed(
            f"{name} is no valid JSON: {err.msg} at line {err.lineno}, column {err.colno}", f"correct {name}"
        ) from err
    except (ValueError, RecursionError) as err:
        raise Malformed(f"{name} is no valid JSON: {err}", f"correct {name}") from err


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", type(None): "null", bool: "a truth value"}
    return kinds.get(type(value), "a number")


def canonical_text(value: dict[str, Any]) -> str:
    """The object as one line of JSON with sorted keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
