"""Open fields of default configurations that a model needs, and the values for them."""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from transformers import PreTrainedModel

from headscope.core.model.classes.reduced_config import DEPTHS, shallow_config
from headscope.core.model.quiet import quiet
from headscope.core.upstream.transformers import config_classes

_FIELDS: dict[str, Any] = {
    "pad_token_id": lambda config: 1 if config.vocab_size is None else None,
    "vocab_size": lambda config: 100,
    "head_dim": lambda config: config.hidden_size // config.num_attention_heads,
    "num_key_value_heads": lambda config: config.num_attention_heads,
    "num_experts_per_tok": lambda config: 2,
    "decoder_start_token_id": lambda config: 0,
    "rope_parameters": lambda config: {
        kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in config.layer_types
    },
}
_NEEDED_IF_ABSENT = ("decoder_start_token_id",)


def fill_open_fields(config: Any) -> tuple[str, ...]:
    """Sets open (None or empty) fields that models compute with, in place; returns what it set, as `field=value`."""
    filled = []
    for name, value_for in _FIELDS.items():
        is_open = hasattr(config, name) and getattr(config, name) in (None, {})
        is_absent = name in _NEEDED_IF_ABSENT and not hasattr(config, name)
        if is_open or (is_absent and getattr(config, "is_encoder_decoder", False)):
            try:
                value = value_for(config)
            except (AttributeError, TypeError):
                continue
            if value is None:
                continue
            setattr(config, name, value)
            filled.append(f"{name}={value}")
    return tuple(filled)


def default_values(model_type: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Makes the `config.json` of a family's default configuration, and lists the fields that had to be set."""
    config = config_classes()[model_type]()
    filled = fill_open_fields(config)
    names = (item.partition("=")[0] for item in filled)
    return {"model_type": model_type} | {name: getattr(config, name) for name in names}, filled


_SMALLER = {"crop_size": 64, "frames_per_clip": 4}


def default_configs(model_type: str) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Yields the default configuration of a family, with the fields that had to be set: with few layers first.

    A hybrid model may need its whole pattern of layers, so the second one has the default depth.
    """
    for reduce in (_few_layers, deepcopy):
        config = config_classes()[model_type]()
        filled = fill_open_fields(config)
        yield reduce(config), filled


def _few_layers(config: Any) -> Any:
    shallow = shallow_config(config, depth=2)
    for name, value in _SMALLER.items():
        if getattr(shallow, name, None) is not None:
            setattr(shallow, name, value)
    return shallow


# Each attempt builds the class once more, which takes long for deep models.
_MOST_ATTEMPTS = 64
_FEWEST_ATTEMPTS = 8
_MOST_LAYERS = 2000
"""Layers built in all attempts together. Attempts are counted, not timed: a message never depends on the load."""
_SHOWN = 60
_ESSENTIAL = ("model_type", "architectures", "auto_map")


def diagnose_by_leaving_out(config_class: Any, values: Mapping[str, Any]) -> str:
    """Names the fields that keep `values` from making a configuration, as a sentence's end; "" if none alone does."""
    return _describe_fields(_find_disturbing_fields(values, config_class.from_dict), values, config_class)


def diagnose_by_building(cls: type[PreTrainedModel], config: Any, values: Mapping[str, Any]) -> str:
    """Names the fields that keep a configuration from making a model; "" if it makes one, or no single field does."""
    config_class = type(config)
    with torch.device("meta"):
        if _is_successful(lambda: cls(config)):
            return ""
        return _describe_fields(
            _find_disturbing_fields(values, lambda fewer: cls(config_class.from_dict(fewer))), values, config_class
        )


def _find_disturbing_fields(values: Mapping[str, Any], make: Callable[[dict[str, Any]], Any]) -> list[str]:
    """Finds the fields each of which, left out alone, lets `make` succeed."""
    candidates = [name for name in values if name not in _ESSENTIAL]
    found = []
    # Deep models take longer to build, so there are fewer attempts.
    depths = [value for name in DEPTHS if type(value := values.get(name)) is int and value > 0]
    attempts = min(_MOST_ATTEMPTS, max(_FEWEST_ATTEMPTS, _MOST_LAYERS // max(depths, default=1)))
    for name in candidates[:attempts]:
        fewer = {key: value for key, value in values.items() if key != name}
        if _is_successful(lambda fewer=fewer: make(fewer)):  # type: ignore[misc]  # bound immediately
            found.append(name)
    return found


def _is_successful(attempt: Callable[[], Any]) -> bool:
    try:
        with quiet():
            attempt()
    except Exception:  # whatever a foreign constructor raises
        return False
    return True


def _describe_fields(names: list[str], values: Mapping[str, Any], config_class: Any) -> str:
    if not names:
        return ""
    # Only what was observed: two fields may contradict each other, and then either could be at fault.
    found = [f"{name} = {_shorten_value(values[name])}{_describe_default(name, config_class)}" for name in names[:3]]
    return f"; it works without {' or without '.join(found)}"


def _describe_default(name: str, config_class: Any) -> str:
    """Writes the field's default, the best hint of what is expected; "" where there is none to show."""
    try:
        with quiet():
            found = getattr(config_class(), name)
    except Exception:  # a configuration that needs arguments, or has no such field
        return ""
    return "" if found is None or callable(found) else f" (default {_shorten_value(found)})"


def _shorten_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
