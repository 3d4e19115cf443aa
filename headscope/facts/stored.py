"""Facts as JSON that can be read back: every field, by the types that the dataclasses declare."""

import dataclasses
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Fact = TypeVar("Fact")


def store(value: Any) -> Any:
    """`value` as plain JSON values; a dataclass as the list of its fields in order."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [store(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple):
        return [store(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"not a fact: {type(value).__name__}")


def restore(kind: type[Fact], stored: Any) -> Fact:
    """A fact of a dataclass from what `store` made of it. Raises TypeError or ValueError where it does not fit."""
    restored: Fact = _restored(kind, stored)
    return restored


@cache
def _hints(kind: type) -> tuple[Any, ...]:
    hints = get_type_hints(kind)
    return tuple(hints[field.name] for field in dataclasses.fields(kind))


def _restored(hint: Any, stored: Any) -> Any:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _one_of(get_args(hint), stored)
    if origin is tuple:
        return _tuple_of(get_args(hint), stored)
    if hint is float and type(stored) is int:
        return stored
    if hint in (str, int, bool, float, NoneType):
        if type(stored) is not hint:
            raise TypeError(f"{hint} was expected, found {type(stored)}")
        return stored
    if issubclass(hint, Enum):
        return hint(stored)
    hints = _hints(hint)
    if not isinstance(stored, list) or len(stored) != len(hints):
        raise TypeError(f"{hint.__name__} does not fit")
    return hint(*(_restored(field, item) for field, item in zip(hints, stored, strict=True)))


def _one_of(options: tuple[Any, ...], stored: Any) -> Any:
    for option in options:
        try:
            return _restored(option, stored)
        except (TypeError, ValueError):
            continue
    raise TypeError(f"{stored!r} is none of {options}")


def _tuple_of(arguments: tuple[Any, ...], stored: Any) -> tuple[Any, ...]:
    if not isinstance(stored, list):
        raise TypeError("a list was expected")
    if arguments[-1:] == (Ellipsis,):
        return tuple(_restored(arguments[0], item) for item in stored)
    return tuple(_restored(hint, item) for hint, item in zip(arguments, stored, strict=True))
