"""Options that several commands share, written once as a dataclass: a command takes it as one parameter."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any


def with_option_groups(command: Callable[..., int]) -> Callable[..., int]:
    """`command` as Typer wants it: a parameter that is a dataclass becomes an option for each field."""
    signature = inspect.signature(command, eval_str=True)
    groups = {name: item.annotation for name, item in signature.parameters.items() if _is_group(item)}

    @functools.wraps(command)
    def grouped(**values: Any) -> int:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
        return command(**values)

    options = [option for item in signature.parameters.values() for option in _options(item)]
    grouped.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    return grouped


def _is_group(parameter: inspect.Parameter) -> bool:
    return dataclasses.is_dataclass(parameter.annotation)


def _options(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    if not _is_group(parameter):
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        return
    for field in dataclasses.fields(parameter.annotation):
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.type)
