"""Finds the template that gives each of several documents again, from the symbols that each was made with."""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from headscope.core.model.classes.reduced_config import DEPTHS
from headscope.core.model.tensors.initialization import CUT_AT_TWO
from headscope.core.source.memory.templates import Symbols, filled, number

Made = Sequence[tuple[Symbols, Any]]
"""Values with the symbols that each was made with."""
_NUMBER = re.compile(r"(\d{1,3}(?:,\d{3})+|(?<==)\d+\.\d+(?:e-\d+)?|\d+)")
"""A number in a text; one with a fraction after an equals sign, as names hold others."""
_LAYER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_MOST_TIMES = 64
_COUNTER = "at"
_QUOTIENTS = (("image_size", "patch_size"), ("hidden_size", "num_attention_heads"))
"""Sizes of which only the whole part of a quotient is used."""


class Unfit(Exception):
    """What depends on symbols in a way that no template tells."""


def fitted(made: Made, path: tuple[Any, ...] = ()) -> Any:
    """One template for all values. Raises Unfit where there is none."""
    first = made[0][1]
    if all(type(value) is type(first) and value == first for _, value in made):
        return first
    if all(type(value) is float for _, value in made):
        return _spread(made, path)
    if all(type(value) is int for _, value in made):
        return {"+": _terms(made, path)}
    if all(isinstance(value, str) for _, value in made):
        return _text(made, path)
    if all(isinstance(value, dict) and value.keys() == first.keys() for _, value in made):
        return {name: fitted([(env, value[name]) for env, value in made], (*path, name)) for name in first}
    if all(isinstance(value, list) for _, value in made):
        return _list(made, path)
    raise Unfit(path, [value for _, value in made])


def _spread(made: Made, path: tuple[Any, ...]) -> Any:
    """A float that is a symbol, or a spread that an initialization derives from sizes."""
    with suppress(Unfit):
        return {"t": _name_of(made, path)}
    for times, above in itertools.product((1.0, CUT_AT_TWO), (1, 2)):
        below = [(env, round(above * (times / value) ** 2) if value else 0) for env, value in made]
        if all(
            size and times * math.sqrt(above / size) == value for (_, size), (_, value) in zip(below, made, strict=True)
        ):
            return {"√": [times, above, _terms(below, path)]}
    raise Unfit(path, [value for _, value in made])


def _list(made: Made, path: tuple[Any, ...]) -> Any:
    lengths = {len(value) for _, value in made}
    begin = made[0][1][0] if made[0][1] else None
    if (
        len(lengths) > 1
        and type(begin) is int
        and all(value == list(range(begin, begin + len(value))) for _, value in made)
    ):
        terms = _terms([(env, begin + len(value)) for env, value in made], path)
        return [{"*": [terms, _COUNTER, begin, [{"+": [[1, _COUNTER]]}]]}]
    if len(lengths) > 1 and all(
        type(item) is int or (isinstance(item, str) and not _LAYER.search(item)) for _, value in made for item in value
    ):
        try:
            return _cycle(made, path)
        except Unfit:
            if type(begin) is int:
                raise
            return _numbered(made, path)
    with suppress(Unfit):
        return _same_length(made, path)
    return _repeated(made, path)


def _numbered(made: Made, path: tuple[Any, ...]) -> list[Any]:
    """A template for a word, and then another one with each number: `stem`, `stage1`, `stage2`."""
    (first, second, *_) = longest = max((value for _, value in made), key=len)
    word = second.removesuffix("1")
    if word == second or any(value[1:] != [f"{word}{at}" for at in range(1, len(value))] for _, value in made):
        raise Unfit(path, "no numbered words", longest)
    terms = _terms([(env, len(value)) for env, value in made], path)
    return [first, {"*": [terms, _COUNTER, 1, [{"": [word, [[1, _COUNTER]]]}]]}]


def _cycle(made: Made, path: tuple[Any, ...]) -> list[Any]:
    """A template for lists of words that come again and again, as many as a symbol says."""
    longest = max((value for _, value in made), key=len)
    for period in range(1, len(longest) // 2 + 1):
        words = longest[:period]
        if all(value == [words[at % period] for at in range(len(value))] for _, value in made):
            return [{"~": [_terms([(env, len(value)) for env, value in made], path), words]}]
    raise Unfit(path, "no cycle", [value for _, value in made])


def _layer_of(item: Any) -> tuple[str, int] | None:
    """The part of a name before the number of a layer, and that number; None for an item without one."""
    parts = item.values() if isinstance(item, dict) else item if isinstance(item, list) else [item]
    text = next((part for part in parts if isinstance(part, str)), "")
    found = _LAYER.search(text)
    return (text[: found.start()], int(found.group())) if found else None


def _repeated(made: Made, path: tuple[Any, ...]) -> list[Any]:
    """A template for lists of which some items come once for each layer."""
    rows = [
        [(key, list(group)) for key, group in itertools.groupby(value, lambda item: (_layer_of(item) or ("", 0))[0])]
        for _, value in made
    ]
    if len({tuple(key for key, _ in row) for row in rows}) > 1:
        raise Unfit(path, "other groups")
    found: list[Any] = []
    for at, (key, _) in enumerate(rows[0]):
        part = [(env, row[at][1]) for (env, _), row in zip(made, rows, strict=True)]
        if not key or len({len(value) for _, value in part}) == 1:
            found += _same_length(part, (*path, at))
        else:
            found += _layers(part, (*path, key))
    return found


def _layers(made: Made, path: tuple[Any, ...]) -> list[Any]:
    """The first layer as it is, and the others from one template."""
    blocks = [(env, [list(group) for _, group in itertools.groupby(value, _layer_of)]) for env, value in made]
    counts = [(env, len(value)) for env, value in blocks]
    terms = _terms(counts, path)
    reason: Any = ""
    for first in (0, 1, 2):
        later = [
            ({**env, _COUNTER: at}, block) for env, value in blocks for at, block in enumerate(value) if at >= first
        ]
        if not later:
            break
        try:
            repeated = _same_length(later, path)
        except Unfit as err:
            reason = err
            continue
        own = [
            item
            for at in range(first)
            for item in _same_length([(env, value[at]) for env, value in blocks], (*path, at))
        ]
        return [*own, {"*": [terms, _COUNTER, first, repeated]}]
    raise Unfit(path, "layers of several kinds", reason)


def _same_length(made: Made, path: tuple[Any, ...]) -> list[Any]:
    if len({len(value) for _, value in made}) > 1:
        raise Unfit(path, "another length", [value for _, value in made])
    return [fitted([(env, value[at]) for env, value in made], (*path, at)) for at in range(len(made[0][1]))]


def _name_of(made: Made, path: tuple[Any, ...]) -> str:
    """The symbol that is the value. Raises Unfit where none is."""
    for name in made[0][0]:
        if all(env.get(name) == value for env, value in made):
            return name
    raise Unfit(path, [value for _, value in made])


def _text(made: Made, path: tuple[Any, ...]) -> Any:
    with suppress(Unfit):
        return {"t": _name_of(made, path)}
    split = [_NUMBER.split(value) for _, value in made]
    if len({tuple(parts[::2]) for parts in split}) > 1:
        raise Unfit(path, [value for _, value in made])
    found: list[Any] = []
    for at in range(len(split[0])):
        texts = [parts[at] for parts in split]
        if len(set(texts)) == 1:
            found.append(texts[0])
            continue
        written = [(env, text) for (env, _), text in zip(made, texts, strict=True)]
        if "." in texts[0]:
            found.append(["t", _name_of([(env, float(text)) for env, text in written], path)])
            continue
        terms = _terms([(env, int(text.replace(",", ""))) for env, text in written], path)
        ways = ([*terms], [",", *terms])
        for way in ways:
            if all(filled({"": [way]}, env) == text for (env, _), text in zip(made, texts, strict=True)):
                found.append(way)
                break
        else:
            raise Unfit(path, texts)
    return {"": found}


def _terms(made: Sequence[tuple[Symbols, int]], path: tuple[Any, ...]) -> list[Any]:
    """The simplest sum that gives each number. Raises Unfit where there is none."""
    if len({value for _, value in made}) == 1:
        return [made[0][1]]
    for terms in _candidates(made):
        try:
            if all(number(terms, env) == value for env, value in made):
                return terms
        except (KeyError, ZeroDivisionError):
            continue
    raise Unfit(path, [value for _, value in made])


def _candidates(made: Sequence[tuple[Symbols, int]]) -> Iterator[list[Any]]:
    names = [name for name, value in made[0][0].items() if type(value) is int]
    names += [f"{name}//{by}" for name, by in _QUOTIENTS if {name, by} <= {*names}]
    yield from ([[1, name]] for name in names if "//" not in name)
    for product in _products(names, made):
        line = _line(made, product)
        if line is not None:
            each, more = line
            yield [[each, *product], more] if more else [[each, *product]]
    plain = [name for name in names if "//" not in name]
    for one, two in itertools.combinations(plain, 2):
        for a, b in itertools.product((1, 2, 3, -1), repeat=2):
            rest = {value - a * env[one] - b * env[two] for env, value in made}
            if len(rest) == 1:
                more = rest.pop()
                yield [[a, one], [b, two], *([more] if more else [])]
    depths = [name for name in names if name in DEPTHS]
    yield from (terms for one, two in itertools.combinations(depths, 2) for terms in _plane(made, one, two))
    if "classes" in names:  # a classifier with its bias
        yield from ([[1, "classes", name], [1, "classes"]] for name in plain)
    pairs = list(_products(names, made))[: 4 * len(names)]
    for first, second in itertools.combinations(pairs, 2):
        if all(number([[1, *first], [1, *second]], env) == value for env, value in made):
            yield [[1, *first], [1, *second]]
    quotients = [product for product in _products(names, made) if "/" in product]
    for name in plain:  # the queries, keys and values of one matrix
        others = [(env, value - env[name]) for env, value in made]
        lines = ((product, _line(others, product)) for product in quotients)
        yield from ([[1, name], [each[0], *product]] for product, each in lines if each is not None and not each[1])


def _plane(made: Sequence[tuple[Symbols, int]], one: str, two: str) -> Iterator[list[Any]]:
    """The sums of multiples of two symbols: tensors of the layers of an encoder and a decoder."""
    (start, value), *others = made
    for a in range(1, _MOST_TIMES):
        rest = [(env[two] - start[two], (got - value) - a * (env[one] - start[one])) for env, got in others]
        step = next((left // by for by, left in rest if by), 0)
        if step > 0 and all(left == step * by for by, left in rest):
            more = value - a * start[one] - step * start[two]
            yield [[a, one], [step, two], *([more] if more else [])]


def _products(names: Sequence[str], made: Sequence[tuple[Symbols, int]]) -> Iterator[tuple[str, ...]]:
    yield from ((name,) for name in names if "//" not in name)
    for one, two in itertools.permutations(names, 2):
        if "//" not in one + two and all(env[two] and env[one] % env[two] == 0 for env, _ in made):
            yield one, "/", two
    yield from ((name,) for name in names if "//" in name)
    yield from itertools.combinations_with_replacement(names, 2)
    for one, two, three in itertools.permutations(names, 3):
        if (
            one < two
            and "//" not in one + two + three
            and all(env[three] and env[one] * env[two] % env[three] == 0 for env, _ in made)
        ):
            yield one, two, "/", three


def _line(made: Sequence[tuple[Symbols, int]], product: tuple[str, ...]) -> tuple[int, int] | None:
    """The slope and the rest of the straight line through all values over a product; None where there is none."""
    points = [(number([[1, *product]], env), value) for env, value in made]
    (x, y), *others = points
    other = next(((a, b) for a, b in others if a != x), None)
    if other is None:
        return None
    each, rest = divmod(other[1] - y, other[0] - x)
    if rest or each == 0 or abs(each) > _MOST_TIMES or any(each * a + y - each * x != b for a, b in points):
        return None
    return each, y - each * x


def changes_between(one: Any, other: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[list[Any], Any]]:
    """The places where a nested value differs from another, with what is there."""
    if one == other and type(one) is type(other):
        return
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for at, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from changes_between(left, right, (*path, at))
        return
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for name, left in one.items():
            yield from changes_between(left, other[name], (*path, name))
        return
    yield [*path], other
