"""Templates of facts whose sizes are symbols: JSON that is filled with the sizes of one configuration.

`{"+": [term, ...]}` is a whole number: a term is a number, or a number with the names it is multiplied by and, after
"/", those that divide it. `{"": [part, ...]}` is a text: a part is a text, or terms, with `","` before them for a
number with commas, or `["t", name]`. `{"*": [terms, symbol, first, template]}` in a list gives the items of the
template for each value of a symbol from `first` to below a number, and `{"~": [terms, words]}` that many words, again
and again. `{"t": name}` is a symbol itself, `{"√": [times, above, terms]}` a spread that depends on sizes, and
`{"@": [file, function, node, line]}` a line of the installed Transformers, which was that line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod, sqrt
from typing import Any

Symbols = Mapping[str, Any]
"""Whole numbers and texts by the names of symbols: fields of a configuration, `classes`, `dtype`."""


def filled(template: Any, symbols: Symbols, line_of: Callable[..., int] | None = None) -> Any:
    """Fills a template with the values of symbols. Raises KeyError for a symbol that is missing."""
    if isinstance(template, list):
        return list(_filled_items(template, symbols, line_of))
    if not isinstance(template, dict):
        return template
    match template:
        case {"+": terms}:
            found: Any = number(terms, symbols)
        case {"": parts}:
            found = "".join(part if isinstance(part, str) else _written_part(part, symbols) for part in parts)
        case {"t": name}:
            found = symbols[name]
        case {"√": [times, above, terms]}:
            found = times * sqrt(above / number(terms, symbols))
        case {"@": place} if line_of is not None:
            found = line_of(*place)
        case _:
            found = {name: filled(value, symbols, line_of) for name, value in template.items()}
    return found


def _filled_items(template: list[Any], symbols: Symbols, line_of: Any) -> Iterator[Any]:
    for item in template:
        if isinstance(item, dict) and "*" in item:
            terms, symbol, first, repeated = item["*"]
            for at in range(first, number(terms, symbols)):
                yield from filled(repeated, {**symbols, symbol: at}, line_of)
        elif isinstance(item, dict) and "~" in item:
            terms, words = item["~"]
            yield from (words[at % len(words)] for at in range(number(terms, symbols)))
        else:
            yield filled(item, symbols, line_of)


def number(terms: Sequence[Any], symbols: Symbols) -> int:
    """Adds up some terms."""
    return sum(term if isinstance(term, int) else _value_of_term(term, symbols) for term in terms)


def _value_of_term(term: Sequence[Any], symbols: Symbols) -> int:
    """Computes a product, or a quotient of products. Raises ValueError if that is not a whole number."""
    times, *names = term
    cut = names.index("/") if "/" in names else len(names)
    whole = times * prod(_value_of_symbol(name, symbols) for name in names[:cut])
    found, rest = divmod(whole, prod(_value_of_symbol(name, symbols) for name in names[cut + 1 :]))
    if rest:
        raise ValueError(f"{' '.join(names)} is not a whole number")
    return int(found)


def _value_of_symbol(name: str, symbols: Symbols) -> int:
    """Gives the value of a symbol, or of the whole part of a quotient: `image_size//patch_size`."""
    one, is_quotient, two = name.partition("//")
    return int(symbols[one] // symbols[two] if is_quotient else symbols[one])


def _written_part(part: Sequence[Any], symbols: Symbols) -> str:
    if part[0] == "t":
        return str(symbols[part[1]])
    return f"{number(part[1:], symbols):,}" if part[0] == "," else str(number(part, symbols))


def changed(value: Any, changes: Sequence[Any]) -> Any:
    """Copies a nested list or dict with other values at some places; a change is the path of keys, and the value."""
    for path, new in changes:
        value = _with_value_at(value, path, new)
    return value


def _with_value_at(value: Any, path: Sequence[Any], new: Any) -> Any:
    if not path:
        return new
    at, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at] = _with_value_at(copy[at], rest, new)
    return copy
