"""Models of any classification class that are small enough to run on a CPU, with random weights."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from headscope.core.model.classes.catalog import classes_of_task
from headscope.core.model.classes.defaults import default_configs
from headscope.core.model.quiet import quiet
from headscope.facts import Task

_WIDTHS = ("hidden_size", "d_model", "dim", "n_embd", "emb_dim", "embed_dim", "embedding_size", "encoder_hidden_dim")
_INNER = ("intermediate_size", "d_ff", "ffn_dim", "n_inner", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim")
_HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads", "encoder_attention_heads", "decoder_attention_heads")
_DEPTHS = (
    "num_hidden_layers", "n_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers",
)  # fmt: skip
_LAYERS = 1
_LISTS = ("conv_dim", "tdnn_dim", "feat_extract_conv_dim")
"""Widths of the layers that read a sound, and of those that pool it."""
_MOST_PARAMETERS = 60_000_000


def spread(counts: Mapping[Task, int], begin: int = 0) -> list[tuple[Task, str, str]]:
    """Classes with their model types: about so many of each task, evenly from the whole alphabet."""
    chosen = []
    for task, count in counts.items():
        classes = sorted((name, model_type) for model_type, name in classes_of_task(task).items())
        chosen += [(task, *pair) for pair in classes[begin :: max(1, len(classes) // count)]]
    return chosen


def small_model(class_name: str, model_type: str) -> PreTrainedModel:
    """A model of that class: of few thin layers where its configuration allows it, else with more or wider ones.

    Raises ValueError where even that is too large.
    """
    usual, _ = next(iter(default_configs(model_type)))
    thin = _thin(usual)
    for config in (_shallow(thin), thin, usual):
        try:
            return _build(getattr(transformers, class_name), config)
        except Exception as err:  # whatever a configuration that was made up breaks
            failure = err
    raise ValueError(f"{class_name}: {type(failure).__name__}: {failure}")


def _build(model_class: Any, config: Any) -> PreTrainedModel:
    with quiet(), torch.device("meta"):
        size = sum(parameter.numel() for parameter in model_class(deepcopy(config)).parameters())
    if size > _MOST_PARAMETERS:
        raise ValueError(f"it has {size:,} parameters")
    text = config.get_text_config()
    if getattr(text, "pad_token_id", None) is None:
        text.pad_token_id = 0
    torch.manual_seed(0)
    with quiet():
        return model_class(config).eval()


def _shallow(config: Any) -> Any:
    """A copy with few layers, for an independent tracer takes time for each of their operations."""
    shallow = deepcopy(config)
    for name in _DEPTHS:
        value = getattr(shallow, name, None)
        if type(value) is int and value > _LAYERS:
            try:
                setattr(shallow, name, _LAYERS)
            except Exception:  # a configuration may derive the field and refuse to have it set
                continue
    return shallow


def _thin(config: Any) -> Any:
    """A copy with narrow layers and four heads."""
    thin = deepcopy(config)
    for names, value in ((_WIDTHS, 32), (_INNER, 40), (_HEADS, 4)):
        for name in names:
            if isinstance(getattr(thin, name, None), int):
                setattr(thin, name, value)
    for name in _LISTS:
        widths = getattr(thin, name, None)
        if isinstance(widths, list | tuple) and all(type(width) is int for width in widths):
            setattr(thin, name, type(widths)([32] * len(widths)))
    if getattr(thin, "num_key_value_heads", None):
        thin.num_key_value_heads = 2
    if getattr(thin, "head_dim", None) and not isinstance(getattr(type(thin), "head_dim", None), property):
        thin.head_dim = 8
    return thin
