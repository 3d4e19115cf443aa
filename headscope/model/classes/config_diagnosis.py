"""What helps to find the fault in a configuration: the fields without which it works."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from headscope.model.classes.reduced_config import DEPTHS
from headscope.model.quiet import quiet

_MOST_ATTEMPTS = 64
_FEWEST_ATTEMPTS = 8
_MOST_LAYERS = 2000
"""Layers built in all attempts together. Attempts are counted, not timed: a message never depends on the load."""
_NAMED = 3
_SHOWN = 60
_ESSENTIAL = ("model_type", "architectures", "auto_map")


def diagnose_by_leaving_out(config_class: Any, values: Mapping[str, Any]) -> str:
    """The fields that keep `values` from making a configuration, as a sentence's end; "" where none alone does."""
    return _sentence(_disturbing(values, config_class.from_dict), values, config_class)


def diagnose_by_building(cls: type[PreTrainedModel], config: Any, values: Mapping[str, Any]) -> str:
    """The fields that keep a configuration from making a model; "" where the model can be made, or none alone does."""
    config_class = type(config)
    with torch.device("meta"):
        if _succeeds(lambda: cls(config)):
            return ""
        return _sentence(_disturbing(values, lambda fewer: cls(config_class.from_dict(fewer))), values, config_class)


def _disturbing(values: Mapping[str, Any], make: Callable[[dict[str, Any]], Any]) -> list[str]:
    """The fields each of which, left out alone, lets `make` succeed; the number of attempts depends on `values`."""
    candidates = [name for name in values if name not in _ESSENTIAL]
    found = []
    for name in candidates[: _attempts(values)]:
        fewer = {key: value for key, value in values.items() if key != name}
        if _succeeds(lambda fewer=fewer: make(fewer)):  # type: ignore[misc]  # bound immediately
            found.append(name)
    return found


def _attempts(values: Mapping[str, Any]) -> int:
    """How many models are made: fewer of deep ones."""
    depths = [value for name in DEPTHS if type(value := values.get(name)) is int and value > 0]
    return min(_MOST_ATTEMPTS, max(_FEWEST_ATTEMPTS, _MOST_LAYERS // max(depths, default=1)))


def _succeeds(attempt: Callable[[], Any]) -> bool:
    try:
        with quiet():
            attempt()
    except Exception:  # whatever a foreign constructor raises
        return False
    return True


def _sentence(names: list[str], values: Mapping[str, Any], config_class: Any) -> str:
    """What was observed, and no more: two fields may contradict each other, and then either could be at fault."""
    if not names:
        return ""
    found = [f"{name} = {_short(values[name])}{_default(name, config_class)}" for name in names[:_NAMED]]
    return f"; it works without {' or without '.join(found)}"


def _default(name: str, config_class: Any) -> str:
    """The field's default: the best hint of what is expected."""
    try:
        with quiet():
            found = getattr(config_class(), name)
    except Exception:  # a configuration that needs arguments, or has no such field
        return ""
    return "" if found is None or callable(found) else f" (default {_short(found)})"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
