"""A head as a chain of sentence-transformers' modules: planned from its layers, written by the library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headscope.copies.facts import FoldedParameter, FoldKind
from headscope.core.facts import Where
from headscope.core.facts.heads.tasks import Activation
from headscope.core.model.classes.module_chain import base_class_of
from headscope.core.model.quiet import quiet
from headscope.core.source.checkpoint import Checkpoint
from headscope.core.trace.layers import HeadLayer, LayerKind, is_same_function, module_as_layer
from headscope.core.upstream.optional.sentence_transformers import ChainModule, save_cross_encoder
from headscope.slices.edit.folding.arithmetic import DoesNotFold, Values, words_of_pooling
from headscope.slices.edit.folding.source import FoldSource, build_on_meta
from headscope.slices.edit.folding.target import FoldTarget

AS_CHAIN = "chain"
_MODES = {
    ("", Where.INDEX, 0): "cls",
    ("", Where.FIRST_NON_PAD, None): "cls",
    ("", Where.LAST_NON_PAD, None): "lasttoken",
    ("mean", Where.NON_PAD, None): "mean",
    ("max", Where.NON_PAD, None): "max",
}
"""The mode of Pooling, by function and place."""


def plan_chain(checkpoint: Checkpoint, source: FoldSource, values: Values, function: str) -> FoldTarget:
    """Plans the modules that compute what a head does; `function` is put on the scores.

    Raises DoesNotFold with the part that has no module.
    """
    if source.kind is not FoldKind.CLASS:
        raise DoesNotFold("only the head of a class of Transformers is written as a chain")
    head, place, config = source.head, source.head.positions, checkpoint.choice.config
    mode = None if place is None else _MODES.get((head.pooled, place.where, place.index))
    if mode is None:
        raise DoesNotFold(f"the head reads {words_of_pooling(head)}, and no mode of Pooling does")
    layers = [layer for layer in head.layers if layer.kind is not LayerKind.POOLING]
    modules, parameters = list[ChainModule](), list[FoldedParameter]()
    while layers:
        layer, activation = layers.pop(0), "Identity"
        if layer.kind is LayerKind.LINEAR and layers and layers[0].kind is LayerKind.FUNCTION:
            activation = _name_of_activation(layers.pop(0))
        modules.append(_module_of(layer, activation, values))
        names = {"weight": layer.weight, "bias": layer.bias}
        folder = f"{len(modules) + 1}_{modules[-1].kind}"
        parameters += (FoldedParameter(f"{folder}.{key}", (name,), True) for key, name in names.items() if name)
    if not modules or modules[-1].kind != "Dense":
        raise DoesNotFold("the scores are not those of a linear layer")
    base = base_class_of(str(config.model_type), is_encoder_decoder=bool(getattr(config, "is_encoder_decoder", False)))
    prefix = f"{base.base_model_prefix}."
    lacking = [name for name in build_on_meta(base, config).state_dict() if f"{prefix}{name}" not in values]
    if lacking:
        raise DoesNotFold(f"the checkpoint doesn't give {lacking[0]} of {base.__name__}")
    own = {name for item in parameters for name in item.sources}
    formula = " -> ".join(["Transformer", f"Pooling ({mode})", *map(str, modules)])
    kept = tuple(name for name in values if name.startswith(prefix) and name not in own)
    last = "Sigmoid" if function == Activation.SIGMOID else "Identity"

    def write(folder: Path, fields: Mapping[str, Any]) -> None:  # the library reads the base model from the source
        with quiet():
            save_cross_encoder(Path(checkpoint.location.reference), folder, mode, modules, last)

    return FoldTarget(FoldKind.CHAIN, "CrossEncoder", formula, tuple(parameters), kept, write)


def _module_of(layer: HeadLayer, activation: str, values: Values) -> ChainModule:
    stored = {key: values[name] for key, name in (("weight", layer.weight), ("bias", layer.bias)) if name}
    if layer.kind is LayerKind.LINEAR and layer.weight:
        return ChainModule("Dense", stored, activation)
    own = nn.LayerNorm(layer.width, elementwise_affine=False)
    if layer.kind is LayerKind.NORM and is_same_function(layer, module_as_layer(own, layer.width)):
        plain = {"weight": torch.ones(layer.width), "bias": torch.zeros(layer.width)}
        return ChainModule("LayerNorm", plain | stored)
    raise DoesNotFold(f"no module of sentence-transformers computes {layer.text} there")


def _name_of_activation(layer: HeadLayer) -> str:
    """Finds the activation of PyTorch that computes what a function does. Raises DoesNotFold if there is none."""
    for name in nn.modules.activation.__all__:
        try:
            module = getattr(nn, name)()
            if is_same_function(layer, module_as_layer(module, layer.width)):
                return name
        except Exception:
            continue
    raise DoesNotFold(f"no activation of PyTorch computes {layer.text}")
