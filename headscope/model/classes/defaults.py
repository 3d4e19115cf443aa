"""Sensible values where a default configuration leaves a field open that its own model needs."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from headscope.model.classes.reduced_config import shallow_config
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
