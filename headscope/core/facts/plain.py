"""Facts as JSON: for readers, or to be read back."""

import dataclasses
from collections.abc import Callable
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

_Fact = TypeVar("_Fact")
_JSON_KINDS = {
    str: "a text", int: "a whole number", float: "a number", bool: "true or false", NoneType: "null", list: "a list",
    dict: "an object",
}  # fmt: skip
_PLAIN = (str, int, NoneType, bool, float, dict)
"""What JSON knows as it is; a dict is JSON that was read."""


def json_name(field: dataclasses.Field[Any]) -> str | None:
    """Gives the key of a field in JSON; None for a field that is left out."""
    name: str | None = field.metadata.get("json", field.name)
    return name


class Derived(property):
    """A property that JSON shows too, after the fields; it isn't stored."""


@cache
def derived_names(kind: Any) -> tuple[str, ...]:
    """Lists the derived properties of a dataclass, in order."""
    return tuple(name for base in kind.__mro__ for name, value in vars(base).items() if isinstance(value, Derived))


def to_dict(fact: Any) -> dict[str, Any]:
    """One dataclass of facts as a dict, in the order of its fields; then what is derived from them."""
    named = [(json_name(field), getattr(fact, field.name)) for field in dataclasses.fields(fact)]
    kind: Any = type(fact)
    named += [(name, getattr(fact, name)) for name in derived_names(kind)]
    return {name: to_json_value(value) for name, value in named if name is not None}


def to_json_value(value: Any, opened: Callable[[Any], Any] = to_dict) -> Any:
    """`value` as JSON knows it, a dataclass as `opened` gives it. Raises TypeError for a value that is not a fact."""
    if type(value) in _PLAIN:  # nearly every value is: a match takes longer
        return value
    match value:
        case Enum():
            return value.value
        case int() | float() | str() | dict():
            return value
        case tuple():
            return [to_json_value(item, opened) for item in value]
        case _ if dataclasses.is_dataclass(value):
            return opened(value)
    raise TypeError(f"not a fact: {type(value).__name__}")


def store(value: Any) -> Any:
    """`value` so that `restore` can read it back: a dataclass as a dict of its fields by their own names."""
    return to_json_value(value, _store_fields)


def _store_fields(fact: Any) -> dict[str, Any]:
    # By the names of the fields, and without derived values: JSON names may differ, and the cache keeps hidden fields.
    kind: Any = type(fact)
    return {name: store(getattr(fact, name)) for name in _field_types(kind)}


def restore(kind: type[_Fact], stored: Any) -> _Fact:
    """A fact of a dataclass from what `store` or `to_dict` made of it, or from its JSON.

    Raises TypeError or ValueError where it does not fit.
    """
    hint: Any = kind
    restored: _Fact = _restorer_of(hint)(stored)
    return restored


@cache
def _field_types(kind: Any) -> dict[str, Any]:
    """Gives the types of the fields, by name and in order."""
    hints = get_type_hints(kind)
    return {
        field.name: hints[field.name]
        for field in dataclasses.fields(kind)
        if not field.metadata.get("transient")  # what is of this process only
    }


@cache
def _restorer_of(hint: Any) -> Callable[[Any], Any]:
    """Gives the function that reads a value of a type back. A type is looked into once, however many values it has."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return partial(_restore_union, arguments)
    if origin is tuple:
        return partial(_restore_tuple, arguments)
    if hint in (str, int, bool, float, NoneType):
        # JSON writers may drop the fraction of 1.0. bool is checked by its own type, as True is an int too.
        return partial(_restore_plain, (hint, int) if hint is float else (hint,))
    return hint if issubclass(hint, Enum) else partial(_restore_fact, hint)


def _restore_plain(kinds: tuple[type, ...], stored: Any) -> Any:
    if type(stored) not in kinds:
        raise TypeError(f"{_JSON_KINDS[kinds[0]]} was expected, found {_kind_of(stored)}")
    return stored


def _kind_of(stored: Any) -> str:
    return _JSON_KINDS.get(type(stored), type(stored).__name__)


def _restore_fact(kind: Any, stored: Any) -> Any:
    hints = _field_types(kind)
    if not isinstance(stored, dict):
        raise TypeError(f"an object was expected, found {_kind_of(stored)}")
    if stored.keys() != hints.keys():  # made by `to_dict`, and not by `store`
        stored = _rename_to_fields(kind, stored)
    values = dict[str, Any]()
    for name, item in stored.items():
        try:
            values[name] = _restorer_of(hints[name])(item)
        except (TypeError, ValueError) as err:
            raise TypeError(f"{name}: {err}") from err
    return kind(**values)


def _rename_to_fields(kind: Any, named: dict[str, Any]) -> dict[str, Any]:
    """Renames the keys of a dict that `to_dict` made to the fields. Raises TypeError if they don't fit."""
    fields = [field for field in dataclasses.fields(kind) if field.metadata.get("stored", True)]
    names = {json_name(field): field.name for field in fields}
    missing, unknown = sorted(names.keys() - named.keys(), key=str), sorted(named.keys() - names.keys())
    if missing or unknown:
        where = f"{missing[0]} is missing" if missing else f"{str(unknown[0])[:80]!r} is unknown"
        raise TypeError(f"the fields don't fit: {where}")
    return {name: named[key] for key, name in names.items() if key is not None}


def _restore_union(options: tuple[Any, ...], stored: Any) -> Any:
    # JSON doesn't say which type a value had: the first that accepts it is taken.
    if stored is None and NoneType in options:
        return None
    kept = [option for option in options if option is not NoneType]
    if len(kept) == 1:
        return _restorer_of(kept[0])(stored)
    for option in kept:
        try:
            return _restorer_of(option)(stored)
        except (TypeError, ValueError):
            continue
    raise TypeError(f"{_kind_of(stored)} fits none of the kinds that may stand here")


def _restore_tuple(arguments: tuple[Any, ...], stored: Any) -> tuple[Any, ...]:
    if not isinstance(stored, list):
        raise TypeError(f"a list was expected, found {_kind_of(stored)}")
    if arguments[-1:] == (Ellipsis,):
        values, restorer = list[Any](), _restorer_of(arguments[0])
        try:
            values.extend(map(restorer, stored))
        except (TypeError, ValueError) as err:
            raise TypeError(f"item {len(values)}: {err}") from err
        return tuple(values)
    return tuple(_restorer_of(hint)(item) for hint, item in zip(arguments, stored, strict=True))
