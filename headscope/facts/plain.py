"""Facts as plain JSON values: field by field, enums by value, tuples as lists."""

import dataclasses
from enum import Enum
from typing import Any


def json_name(field: dataclasses.Field[Any]) -> str | None:
    """The key a field has in JSON; None for one that is left out."""
    name: str | None = field.metadata.get("json", field.name)
    return name


def to_json_value(value: Any) -> Any:
    """`value` as JSON knows it. Raises TypeError for what is no fact."""
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | float() | str():
            return value
        case tuple():
            return [to_json_value(item) for item in value]
        case _ if dataclasses.is_dataclass(value):
            return to_dict(value)
    raise TypeError(f"not a fact: {type(value).__name__}")


def to_dict(fact: Any) -> dict[str, Any]:
    """One dataclass of facts as a dict, in the order of its fields."""
    named = ((json_name(field), getattr(fact, field.name)) for field in dataclasses.fields(fact))
    return {name: to_json_value(value) for name, value in named if name is not None}
