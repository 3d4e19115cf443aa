"""Smaller copies of configurations: heads do not depend on depth, vocabulary or number of experts."""

from copy import deepcopy
from typing import Any

DEPTHS = (
    "num_hidden_layers",
    "n_layers",
    "n_layer",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "num_decoder_layers",
)
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_PARTS = ("text_config", "vision_config", "audio_config", "encoder", "decoder", "encoder_config", "decoder_config")


def shallow_config(config: Any, depth: int = 1) -> Any:
    """A copy with at most `depth` layers, also in its parts."""
    shallow = deepcopy(config)
    for part in _with_parts(shallow):
        _reduce(part, DEPTHS, depth)
    return shallow


def reduced_config(config: Any) -> Any:
    """A copy that fits into memory with real weights of single precision: one layer, few experts."""
    reduced = shallow_config(config)
    reduced.dtype = "float32"
    for part in _with_parts(reduced):
        _reduce(part, _EXPERTS, 4)
        _reduce(part, ("num_experts_per_tok",), 2)
    return reduced


def _with_parts(config: Any) -> list[Any]:
    parts = (getattr(config, name, None) for name in _PARTS)
    return [config, *(part for part in parts if hasattr(part, "to_dict"))]


def _reduce(config: Any, names: tuple[str, ...], most: int) -> None:
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > most:
            try:
                setattr(config, name, most)
            except Exception:  # a configuration may derive the field and refuse to have it set
                continue
