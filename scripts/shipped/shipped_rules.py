"""Rules of the fields of a configuration: which values change nothing, and how sizes stand to each other."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any
from unittest.mock import patch

from headscope.core.source.memory.shipped_structures import ABSENT, fits
from headscope.core.source.reading import tracing
from headscope.core.source.request import Request
from headscope.facts import CheckpointManifest
from scripts.pages.shipped_sizes import LEFTOVERS
from scripts.shipped.examined_documents import TRACES, document_of, examined
from scripts.shipped.shipped_families import Family

FREE = {"?": "f"}
"""What a rule has for any number."""
ENOUGH = 2
"""With how many sizes a value is tried."""
_SHARES = ("partial_rotary_factor",)
"""Numbers in a field that the lists beside them depend on: these have one value for each pair that is rotated."""


class Tried:
    """A checkpoint of a layout whose configuration is tried with other values."""

    def __init__(self, manifest: CheckpointManifest, request: Request) -> None:
        self.manifest, self._request = manifest, request
        self._needs_numbers = False

    @cached_property
    def _expected(self) -> Any:
        found = self._document({})
        if found["report"]["head"] is None:
            self._needs_numbers = True  # a model of random values is made where a trace without them fails
            found = self._document({})
        return found

    def _document(self, values: dict[str, Any]) -> Any:
        TRACES.clear()
        other = replace(self.manifest, config={**self.manifest.config, **values})
        never = patch.object(tracing, "traced_with_numbers", lambda *given: None)
        with nullcontext() if self._needs_numbers else never:
            return document_of(examined(other, self._request, None), is_plain=True)

    def is_same_with(self, values: dict[str, Any]) -> bool:
        """Whether other values of fields change nothing of what is known."""
        expected = self._expected
        try:
            return bool(self._document(values) == expected)
        except Exception:  # whatever a class raises for a value that it doesn't take
            return False


def loosened(rules: dict[str, Any], tried: Sequence[Tried], family: Family) -> dict[str, Any]:
    """The rules with the values that were tried and change nothing.

    With other sizes, a value isn't that of another field by chance: two are enough, but for lists in a dict, whose
    lengths may hang on sizes that are equal in two.
    """
    accepted = family.accepted
    rounds = [(name, value) for name, values in accepted.items() for value in values]
    kept = {"problem_type", *(_SHARES if any(_has_list(rule[1]) for rule in rules.values() if rule[1:]) else ())}
    others = {name: _others(name, rule[1]) for name, rule in rules.items() if rule[0] == "=" and name not in kept}
    for name, rule in rules.items():
        if rule[0] != "=":  # any number fits as it is
            others[name] = [item for item in _others(name, 0) if not _is_number(item)]
    fresh = [
        (name, value) for name, values in others.items() for value in values if value not in accepted.get(name, ())
    ]
    if accepted:  # what changed something in a class of the family is not tried again
        fresh = [(name, value) for name, value in fresh if name not in family.tried]
    family.tried.update(others)
    for some in (rounds, fresh):
        left = [(name, value) for name, value in some if name in others]
        while left:
            turn = dict(reversed(left))  # one value of each field
            left = [(name, value) for name, value in left if turn[name] != value]
            for at, one in enumerate(tried):
                fixed = {name: value for name, value in turn.items() if at >= ENOUGH and not _has_list(value)}
                rest = {name: value for name, value in turn.items() if name not in fixed}
                turn = {**fixed, **{name: rest[name] for name in _idle(one, rest)}}
            for name in turn:
                accepted.setdefault(name, [])
                if turn[name] not in accepted[name]:
                    accepted[name].append(turn[name])
                rules[name].append(turn[name])
    return {name: _freed(name, rule) for name, rule in rules.items()}


def _idle(one: Tried, values: dict[str, Any]) -> list[str]:
    """The fields whose other values change nothing: all together, or else those of each half."""
    if not values or one.is_same_with(values):
        return list(values)
    if len(values) == 1:
        return []
    pairs = list(values.items())
    halves = dict(pairs[: len(pairs) // 2]), dict(pairs[len(pairs) // 2 :])
    return [name for half in halves for name in _idle(one, half)]


def _others(name: str, value: Any) -> list[Any]:
    """Values of a field that are tried beside its own."""
    found = [item for item in LEFTOVERS.get(name, ()) if not fits(item, value)]
    dicts = [item for item in (value, *found) if isinstance(item, dict) and item != ABSENT]
    return [*found, *(_doubled(item) for item in dicts if _doubled(item) != item)]


def _doubled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: item if name in _SHARES else _doubled(item) for name, item in value.items()}
    if _is_list_of_numbers(value):
        return [2 * item for item in value]
    return 2 * value if type(value) in (int, float) else value


def _freed(name: str, rule: list[Any]) -> list[Any]:
    """A rule with what stands for any number, or any list of ids, where all that were tried changed nothing.

    The class's own value stays first.
    """
    kind, *allowed = rule
    for is_such, free in ((_is_number, FREE), (_is_list_of_ids, {"?": "ids"})):
        tried = [item for item in LEFTOVERS.get(name, ()) if is_such(item)]
        if len(tried) > 1 and all(item in allowed for item in tried):
            allowed = [*allowed[:1], *(item for item in allowed[1:] if not is_such(item)), free]
    for item in [item for item in allowed if isinstance(item, dict)]:
        if _doubled(item) in allowed and _doubled(item) != item:
            others = [other for other in allowed[1:] if other not in (item, _doubled(item))]
            allowed = [*allowed[:1], *others, _with_any_number(item)]
    return [kind, *allowed]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_list_of_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and set(map(type, value)) == {int}


def _has_list(value: Any) -> bool:
    return isinstance(value, dict) and any(map(_is_list_of_numbers, value.values()))


def _is_list_of_numbers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_number, value))


def _with_any_number(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: item if name in _SHARES else _with_any_number(item) for name, item in value.items()}
    if _is_list_of_numbers(value):
        return [FREE] * len(value)
    return FREE if type(value) in (int, float) else value
