"""The options of the use cases as people write them in Python, read as the command line reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from enum import Enum
from numbers import Integral, Real
from os import PathLike, fspath
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from headscope.core.facts.counting import safe_repr
from headscope.core.facts.heads.tasks import parse_task
from headscope.core.facts.stored.location import HubOptions, Location
from headscope.core.source.request import Request
from headscope.errors import UsageError


def module_options(options: Mapping[str, Any], known: Iterable[str], **others: Any) -> dict[str, Any]:
    """Reads the options for a model in memory, which `known` names. Raises UsageError for one of a checkpoint."""
    given = _drop_omitted({**options, **others})
    names = (*known, *others)
    for name in given:
        if name not in names:
            raise UsageError(
                f"{name} is an option for a checkpoint, not for a model in memory", f"options: {', '.join(names)}"
            )
    return _read_values(given)


def options_of(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Picks the options that a `TypedDict` declares."""
    return {name: value for name, value in options.items() if name in kind.__annotations__}


def _drop_omitted(options: Mapping[str, Any]) -> dict[str, Any]:
    """Drops the options that a caller left out, which are None or False."""
    # `run` has three values: False says that the model must not be run.
    return {
        name: value for name, value in options.items() if value is not None and (value is not False or name == "run")
    }


def _read_values(given: dict[str, Any]) -> dict[str, Any]:
    return {name: _READERS[name](name, value) if name in _READERS else value for name, value in given.items()}


def plain_value(value: Any, kind: Any) -> Any:
    """Gives a value as the type of an option has it, where it only has another class, otherwise the value itself.

    A number or flag of NumPy or one element of a tensor is Python's, a path is text, a member of a `str` enum is its
    value, `torch.bfloat16` and `torch.device("cpu")` are their names, and an iterator over texts is read.
    """
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        for part in parts:
            value = plain_value(value, part)
    elif origin is Mapping and isinstance(value, Mapping) and parts[1] is not Any:
        return {key: plain_value(one, parts[1]) for key, one in value.items()}
    elif origin is Iterable and parts == (str,):
        return value if isinstance(value, str | bytes | Mapping | list | set | frozenset) else read_items(value)
    elif origin in (int, float, bool):
        return _plain_number(value, origin)
    elif origin in (str, Literal, PathLike):
        return _plain_text(value, is_path=origin is PathLike)
    return value


def read_items(value: Any) -> Any:
    """Reads what can be iterated over to a tuple; an array of no dimension, which can't, is its one item."""
    if not isinstance(value, Iterable):
        return value
    try:
        items = iter(value)
    except TypeError:
        return (value,)
    return tuple(items)


def _plain_number(value: Any, kind: type) -> Any:
    if callable(getattr(value, "item", None)) and all(size == 1 for size in getattr(value, "shape", (0,))):
        value = value.item()
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if kind is float and isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # which `is_of_kind` refuses
            return float(value)
    return value


def _plain_text(value: Any, *, is_path: bool) -> Any:
    if isinstance(value, Enum) and isinstance(value, str):
        return value.value
    if is_path and isinstance(value, PathLike):
        return fspath(value)
    is_of_torch = type(value).__module__ == "torch" and type(value).__name__ in ("device", "dtype")
    return str(value).removeprefix("torch.") if is_of_torch else value


def read_labels(given: Any, option: str = "labels") -> tuple[str, ...]:
    """Reads names of classes in order: several, or one text `A,B,C`. Raises UsageError for anything else."""
    if given is None:
        return ()
    names = read_names(given, option)
    if not all(names):
        raise UsageError(f"{option} {given!r} has an empty name", "write the names as A,B,C")
    if len(set(names)) < len(names):
        raise UsageError(f"{option} {given!r} names a class twice", "give every class a different name")
    return names


def read_names(given: Any, option: str) -> tuple[str, ...]:
    """Reads several texts, or one text `A,B,C` that lists them. Raises UsageError for anything else."""
    if isinstance(given, str):
        return tuple(name.strip() for name in given.split(","))
    # Iterables that aren't names: the keys of a dict would be taken, and bytes would give numbers.
    is_listed = isinstance(given, Iterable) and not isinstance(given, dict | bytes)
    names: tuple[Any, ...] = read_items(given) if is_listed else (None,)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(
            f"{option} must be names, not {safe_repr(given)}", f'write {option}=("A", "B") or {option}="A,B"'
        )
    return names


def read_count(given: Any) -> int | None:
    """Reads a number of classes, or its digits. Raises UsageError for anything else."""
    given = plain_value(given, int)
    if given is None or type(given) is int:  # not isinstance: True is an int
        return given
    if isinstance(given, str) and given.strip().isascii() and given.strip().isdigit() and len(given) <= 9:
        return int(given)
    raise UsageError(f"num_labels must be a whole number, not {safe_repr(given)}", "write num_labels=3")


def read_path(given: Any, option: str) -> str | None:
    """Reads a path or a Hub ID as text. Raises UsageError for anything else."""
    if given is None or isinstance(given, str | PathLike):
        return None if given is None else fspath(given)
    raise UsageError(f"{option} must be a path, not {safe_repr(given)}", f'write {option}="..."')


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "labels": lambda name, value: read_labels(value),
    "num_labels": lambda name, value: read_count(value),
    "task": lambda name, value: None if value is None else parse_task(value).value,
    "tokens": lambda name, value: () if value is None else read_names(value, name),
    "cache_dir": lambda name, value: read_path(value, name),
    "adapter": lambda name, value: read_path(value, name),
    "loaded_from": lambda name, value: read_path(value, name),
}
"""How the values of some options are read; the others are taken as they are."""
READ_OPTIONS = frozenset(_READERS)
"""The options that take more than their type says, such as digits."""


def make_request(reference: Any, options: Mapping[str, Any]) -> Request:
    """Makes a request from the arguments of a use case. Raises UsageError for invalid arguments."""
    if not isinstance(reference, str | PathLike):
        raise UsageError(
            f"{type(reference).__name__} is not a checkpoint", "give a Hub ID, a path, or a model in memory (nn.Module)"
        )
    given = _read_values(_drop_omitted(options))
    for name in given:
        if name not in _REQUEST_OPTIONS:
            raise UsageError(f"{name} is an option for a model in memory, not for a checkpoint", "leave it out")
    if not given.get("timeout", 1) > 0:  # NaN isn't either
        raise UsageError(f"timeout must be more than 0 seconds, not {given['timeout']:g}", "leave it out for 120")
    hub = HubOptions(**_pop_fields(given, HubOptions))
    location = Location(str(plain_value(reference, PathLike)), **_pop_fields(given, Location), hub=hub)
    return Request(location, **given)


_FIELDS_OF: dict[type, list[str]] = {
    kind: [item.name for item in fields(kind)] for kind in (Location, HubOptions, Request)
}
_NOT_OPTIONS = {"reference", "commit", "names", "hub", "location", "budget", "memory"}
_REQUEST_OPTIONS = [name for names in _FIELDS_OF.values() for name in names if name not in _NOT_OPTIONS]


def _pop_fields(given: dict[str, Any], kind: type) -> dict[str, Any]:
    """Takes the options that are fields of `kind` out of `given`."""
    return {name: given.pop(name) for name in _FIELDS_OF[kind] if name in given}


def read_pairs(given: Iterable[str] | None, option: str) -> dict[str, str] | None:
    """Reads `LEFT=RIGHT` texts, by their left sides, which may hold `=`. Raises UsageError for a text without one."""
    if given is None:
        return None
    found: dict[str, str] = {}
    for text in given:
        left, sign, right = text.rpartition("=")
        if not sign:
            raise UsageError(f"{option} {text!r} has no =", f"write {option} {_FORMS[option]}")
        if left in found:
            raise UsageError(f"{option} names {left} twice", "name it once")
        found[left] = right
    return found


_FORMS = {"--rename": "OLD=NEW", "--merge": "A+B=C", "--threshold": "NAME=0.3", "--bias": "NAME=0.5"}
