"""Heads that other libraries save beside a model of Transformers: value heads, reward heads, those of adapters."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from headscope.checkpoints.foreign.adapter_hub import heads_in_config
from headscope.facts.stored.checkpoint import ScoreHead, TensorHeader
from headscope.facts.stored.weights import layer_numbers

_NAMED = re.compile(r"(?:^|\.)(?P<name>v_head|value_head|reward_head)\.")


def score_heads_of(tensors: Iterable[TensorHeader], config: Mapping[str, Any] | None = None) -> tuple[ScoreHead, ...]:
    """The heads among the tensors of a checkpoint, by the names that training libraries give them, or `config` does.

    The shape of a matrix says how many scores it makes; a name without any matrix is not taken for a head.
    """
    found: dict[str, list[TensorHeader]] = {}
    own = tuple(f"heads.{name}" for name in heads_in_config(config or {}))
    for tensor in tensors:
        match = _NAMED.search(tensor.key)
        name = tensor.key[: match.end("name")] if match is not None else _own_head(tensor.key, own)
        if name:
            found.setdefault(name, []).append(tensor)
    heads = (_head(name, tuple(held)) for name, held in found.items())
    return tuple(head for head in heads if head is not None)


def _own_head(key: str, names: tuple[str, ...]) -> str:
    """The head of adapters that a tensor belongs to, "" for none."""
    return max((name for name in names if key.startswith(f"{name}.")), key=len, default="")


def _head(name: str, tensors: tuple[TensorHeader, ...]) -> ScoreHead | None:
    matrices = [tensor for tensor in tensors if len(tensor.shape) == 2]
    if not matrices:
        return None
    last = max(matrices, key=lambda tensor: layer_numbers(tensor.key))  # the highest number comes last
    return ScoreHead(name, last.shape[0], last.key, tuple(tensor.key for tensor in tensors))
