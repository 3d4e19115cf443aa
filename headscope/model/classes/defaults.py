"""Values where a default configuration leaves a field open that its model needs, and which fields those are."""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from transformers import PreTrainedModel

from headscope.model.classes.reduced_config import DEPTHS, shallow_config
from headscope.model.quiet import quiet
from headscope.upstream.transformers import config_classes

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
    """Sets open (None or empty) fields that models compute with, in place; returns what was set, as `field=value`."""
    filled = []
    for name, value_for in _FIELDS.items():
        is_open = hasattr(config, name) and getattr(config, name) in (None, {})
        if is_open or (name in _NEEDED_IF_ABSENT and _lacks_decoder_start(config)):
            try:
                value = value_for(config)
            except (AttributeError, TypeError):
                continue
            if value is None:
                continue
            setattr(config, name, value)
            filled.append(f"{name}={value}")
    return tuple(filled)


def _lacks_decoder_start(config: Any) -> bool:
    return bool(getattr(config, "is_encoder_decoder", False)) and not hasattr(config, "decoder_start_token_id")


def default_values(model_type: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The `config.json` of a family's default configuration, with the fields that had to be set, as `field=value`."""
    config = config_classes()[model_type]()
    filled = fill_open_fields(config)
    names = (item.partition("=")[0] for item in filled)
    return {"model_type": model_type} | {name: getattr(config, name) for name in names}, filled


_SMALLER = {"crop_size": 64, "frames_per_clip": 4}


def default_configs(model_type: str) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """The default configuration of a family, with the fields that had to be set: with few layers first.

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


_MOST_ATTEMPTS = 64
_FEWEST_ATTEMPTS = 8
_MOST_LAYERS = 2000
"""Layers built in all attempts together. Attempts are counted, not timed: a message never depends on the load."""
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
    found = [f"{name} = {_short(values[name])}{_default(name, config_class)}" for name in names[:3]]
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
