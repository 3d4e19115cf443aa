"""Templates for a number of classes: one value that says what Python's own functions say for each of some numbers.

A template is JSON. `{"$+": [a, b]}` is the number a * N + b. `{"$": [...]}` is a text in parts: a part `[a, b, how]` is
a * N + b, plain, with commas (","), or with commas behind its article ("an", "An"). `{"$by": [[most, template], ...]}`
has a template for N up to each `most`. `docs/js/look/template.mjs` fills them.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

MOST = 9_999
"""Up to which number of classes templates are made."""
SAMPLES = (3, 4, 5, 8, 57, 805, 8_123)
"""The numbers that every template is compared with: lists name three or four, and how many more there are."""
MORE_SAMPLES = (*SAMPLES, 9, 11, 99, 131, 999, 1_000, MOST)
"""Those where the number of digits matters: at least three of each range that holds more than one."""
_RANGES = ((3, 3), (4, 4), (5, MOST))
_DIGITS = ((3, 3), (4, 4), (5, 9), (10, 99), (100, 999), (1_000, MOST))
_NUMBER = re.compile(r"((?:\b[Aa]n? )?(?<![\d.,])\d[\d,]*(?<!,))")


class Unfit(Exception):
    """What depends on the number of classes in a way that no template tells."""


def proven_template(values: Mapping[int, Any]) -> Any:
    """A template that gives each of some values again. Raises Unfit where there is none."""
    template = template_of(values)
    if any(filled(template, count) != value for count, value in values.items()):
        raise Unfit
    return template


def template_of(values: Mapping[int, Any]) -> Any:
    """One template for values by their number of classes. Raises Unfit where there is none."""
    first = next(iter(values.values()))
    if all(type(value) is type(first) and value == first for value in values.values()):
        return first
    try:
        return _whole(values, first)
    except Unfit:
        return _by_range(values)


def _whole(values: Mapping[int, Any], first: Any) -> Any:
    """One template for all numbers."""
    if all(isinstance(value, dict) and value.keys() == first.keys() for value in values.values()):
        return {name: template_of({count: value[name] for count, value in values.items()}) for name in first}
    if all(isinstance(value, list) and len(value) == len(first) for value in values.values()):
        return [template_of({count: value[at] for count, value in values.items()}) for at in range(len(first))]
    if all(type(value) is int for value in values.values()):
        return {"$+": _line(values)}
    if all(isinstance(value, str) for value in values.values()):
        return {"$": _text(values)}
    raise Unfit


def _by_range(values: Mapping[int, Any]) -> Any:
    """A template for each range of numbers, neighbors with the same one together."""
    found: list[list[Any]] = []
    for first, last in _DIGITS if MOST in values else _RANGES:
        inside = {count: value for count, value in values.items() if first <= count <= last}
        if len(inside) == len(values):
            raise Unfit
        if not inside:
            continue
        template = template_of(inside)
        if found and found[-1][1] == template:
            found[-1][0] = last
        else:
            found.append([last, template])
    return {"$by": found}


def _line(values: Mapping[int, int]) -> list[int]:
    """Slope and rest of the straight line through all values. Raises Unfit where there is none."""
    counts = list(values)
    if len(counts) == 1:
        return [0, values[counts[0]]]
    each, rest = divmod(values[counts[-1]] - values[counts[0]], counts[-1] - counts[0])
    more = values[counts[0]] - each * counts[0]
    if rest or any(each * count + more != value for count, value in values.items()):
        raise Unfit
    return [each, more]


def _text(values: Mapping[int, str]) -> list[Any]:
    """The parts of a text. Raises Unfit where its words differ."""
    split = {count: _NUMBER.split(value) for count, value in values.items()}
    if len({len(parts) for parts in split.values()}) > 1:
        raise Unfit
    found: list[Any] = []
    for at in range(len(next(iter(split.values())))):
        part = _part({count: parts[at] for count, parts in split.items()}, is_number=at % 2 == 1)
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        elif part != "":
            found.append(part)
    return found


def _part(values: Mapping[int, str], *, is_number: bool) -> Any:
    first = next(iter(values.values()))
    if all(value == first for value in values.values()):
        return first
    if not is_number:
        raise Unfit
    digits = {count: value.rpartition(" ")[2].replace(",", "") for count, value in values.items()}
    line = _line({count: int(value) for count, value in digits.items()})
    for how in ("", ",", "an", "An"):
        if all(_written(line, count, how) == value for count, value in values.items()):
            return [*line, how]
    raise Unfit


def _written(line: Sequence[int], count: int, how: str) -> str:
    number = line[0] * count + line[1]
    if how in ("an", "An"):
        return f"{how if number in with_an() else how[0]} {number:,}"
    return f"{number:,}" if how else str(number)


@cache
def with_an() -> frozenset[int]:
    """The numbers that are read with `an` before them, as the plain words have it."""
    from headscope.render.text.plain_words import article_of

    return frozenset(number for number in range(1, MOST + 1) if article_of(number) == "an")


def filled(template: Any, count: int) -> Any:
    """A template for a number of classes."""
    match template:
        case {"$+": [int(each), int(more)]}:
            return each * count + more
        case {"$": [*parts]}:
            return "".join(part if isinstance(part, str) else _written(part[:2], count, part[2]) for part in parts)
        case {"$by": [*ranges]}:
            return filled(next(item for most, item in ranges if count <= most), count)
        case dict():
            return {name: filled(value, count) for name, value in template.items()}
        case list():
            return [filled(value, count) for value in template]
    return template
