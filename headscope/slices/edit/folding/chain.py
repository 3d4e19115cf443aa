"""A head as a chain of sentence-transformers' modules: planned from its layers, written by the library."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
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
from headscope.core.upstream.optional.sentence_transformers import ChainModule, ModuleChain, save_cross_encoder
from headscope.core.upstream.torch import on_meta
from headscope.slices.edit.folding.arithmetic import DoesNotFold, Values, words_of_pooling
from headscope.slices.edit.folding.source import FoldSource
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
_BASE = ".base"


def plan_chain(checkpoint: Checkpoint, source: FoldSource, values: Values) -> FoldTarget:
    """Plans the modules that compute what a head does. Raises DoesNotFold with the part that has no module."""
    if source.kind is not FoldKind.CLASS:
        raise DoesNotFold("only the head of a class of Transformers is written as a chain")
    head, place = source.head, source.head.positions
    mode = None if place is None else _MODES.get((head.pooled, place.where, place.index))
    if mode is None:
        raise DoesNotFold(f"the head reads {words_of_pooling(head)}, and no mode of Pooling does")
    layers = [layer for layer in head.layers if layer.kind is not LayerKind.POOLING]
    modules: list[ChainModule] = []
    while layers:
        layer, function = layers.pop(0), ""
        if layer.kind is LayerKind.LINEAR and layers and layers[0].kind is LayerKind.FUNCTION:
            function = _name_of_activation(layers.pop(0))
        modules.append(_module_of(layer, function, values))
    if not modules or modules[-1].kind != "Dense":
        raise DoesNotFold("the scores are not those of a linear layer")
    names = {name for layer in head.layers for name in (layer.weight, layer.bias) if name}
    model, prefix = _fill_base(checkpoint, values)
    activation = "Sigmoid" if checkpoint.report.model.activation == Activation.SIGMOID else "Identity"
    parameters = tuple(
        FoldedParameter(f"{at}_{module.kind}.{name}", (source_name,), is_copied=True)
        for at, module in enumerate(modules, 2)
        for name, source_name in module.names
    )
    return FoldTarget(
        FoldKind.CHAIN,
        "CrossEncoder",
        " -> ".join(["Transformer", f"Pooling ({mode})", *map(str, modules)]),
        parameters,
        tuple(name for name in values if name.startswith(prefix) and name not in names),
        partial(_write_chain, model, ModuleChain(mode, tuple(modules), activation)),
    )


def _fill_base(checkpoint: Checkpoint, values: Values) -> tuple[Any, str]:
    """Makes the base model with its tensors; gives the prefix of their names too."""
    config = checkpoint.choice.config
    base = base_class_of(str(config.model_type), is_encoder_decoder=bool(getattr(config, "is_encoder_decoder", False)))
    prefix = f"{base.base_model_prefix}."
    own = {name.removeprefix(prefix): item for name, item in values.items() if name.startswith(prefix)}
    with quiet(), on_meta():
        model: Any = base(config)
    model.load_state_dict(own, assign=True, strict=False)
    lacking = [name for name, item in model.state_dict().items() if item.is_meta]
    if lacking:
        raise DoesNotFold(f"the checkpoint doesn't give {lacking[0]} of {base.__name__}")
    return model, prefix


def _module_of(layer: HeadLayer, activation: str, values: Values) -> ChainModule:
    weight, bias = (values[name] if name else None for name in (layer.weight, layer.bias))
    names = tuple((kind, name) for kind, name in (("weight", layer.weight), ("bias", layer.bias)) if name)
    if layer.kind is LayerKind.LINEAR and weight is not None:
        return ChainModule("Dense", weight, bias, activation or "Identity", names)
    own = nn.LayerNorm(layer.width, elementwise_affine=False)
    if layer.kind is LayerKind.NORM and is_same_function(layer, module_as_layer(own, layer.width)):
        weight = torch.ones(layer.width) if weight is None else weight
        return ChainModule("LayerNorm", weight, torch.zeros(layer.width) if bias is None else bias, "", names)
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


def _write_chain(model: Any, chain: ModuleChain, place: Path, fields: Mapping[str, Any]) -> None:
    """Writes the base model, then what the library makes of it and the modules."""
    whole = place / _BASE
    whole.mkdir()
    for file in [item for item in place.iterdir() if item.is_file()]:  # the tokenizer
        shutil.copyfile(file, whole / file.name)
    with quiet():
        model.save_pretrained(whole)
        save_cross_encoder(whole, place, chain)
    shutil.rmtree(whole)
