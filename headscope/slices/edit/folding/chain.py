"""A head as a chain of sentence-transformers' modules: planned from its layers, written by the library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN

from headscope.copies.facts import FoldedParameter, FoldKind
from headscope.core.checkpoints.contents.sentence import SETFIT_HEAD
from headscope.core.facts import Where
from headscope.core.facts.heads.tasks import TEXT_TASKS, Activation
from headscope.core.model.classes.module_chain import base_class_of
from headscope.core.model.quiet import quiet
from headscope.core.source.checkpoint import Checkpoint
from headscope.core.trace.layers import HeadLayer, LayerKind, is_same_function, module_as_layer
from headscope.core.upstream.optional.sentence_transformers import (
    ChainModule,
    modules_of_encoder,
    pooled_model,
    save_cross_encoder,
)
from headscope.errors import Unsupported
from headscope.slices.edit.folding.arithmetic import DoesNotFold, Values, words_of_pooling
from headscope.slices.edit.folding.source import FoldSource, build_on_meta, read_setfit
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
    choice, pipeline = checkpoint.choice, checkpoint.manifest.sentence
    config, folder = choice.config, Path(checkpoint.location.reference)
    if choice.task not in TEXT_TASKS:
        raise DoesNotFold(f"{choice.cls.__name__} takes no texts, and the modules after a Transformer score texts")
    base = _base_class_of_chain(config)
    prefix, unread = f"{base.base_model_prefix}.", set[str]()
    if source.kind is FoldKind.SETFIT and pipeline is not None:
        mode, begin, planned = "", pipeline.modules, list(_modules_of_setfit(folder))
    elif source.kind is FoldKind.CLASS:
        place = source.head.positions
        mode = "" if place is None else _MODES.get((source.head.pooled, place.where, place.index), "")
        if not mode:
            raise DoesNotFold(f"the head reads {words_of_pooling(source.head)}, and no mode of Pooling does")
        planned = list(_modules_of_class(source, values, config))
        begin = ("Transformer", f"Pooling ({mode})")
        unread = _children_without_values(build_on_meta(base, config), prefix, values)
    else:
        is_chain = source.kind is FoldKind.CHAIN
        what = "it is a chain already" if is_chain else "it is not the head of a class of Transformers, or of SetFit"
        raise DoesNotFold(what, f"--as auto folds it into its class{'' if is_chain else ', which may become a chain'}")
    modules = [module for module, _ in planned]
    if not modules or modules[-1].kind != "Dense":
        raise DoesNotFold("the scores are not those of a linear layer")
    if (count := len(modules[-1].values["weight"])) != len(source.labels):
        what = f"there are {count} scores, and {len(source.labels)} names of classes"
        raise DoesNotFold(what, "name every class once, in the order of the scores: --labels A,B")
    parameters = tuple(
        FoldedParameter(f"{at}_{module.kind}.{key}", (name,), is_copied=source.kind is FoldKind.CLASS)
        for at, (module, names) in enumerate(planned, len(begin)) for key, name in names.items() if name
    )  # fmt: skip
    own = {name for item in parameters for name in item.sources}
    kept = tuple(name for name in values if name.startswith(prefix) and name not in own)
    last = "Sigmoid" if function == Activation.SIGMOID else "Identity"

    def write(place: Path, fields: Mapping[str, Any]) -> None:  # the library reads the base model from the source
        with quiet():
            width = modules[0].values["weight"].shape[-1] if mode else 0
            first = pooled_model(folder, mode, width) if mode else modules_of_encoder(folder)
            save_cross_encoder(first, place, modules, activation=last, labels=source.labels, unread=unread)

    formula = " -> ".join([*begin, *map(str, modules)])
    return FoldTarget(FoldKind.CHAIN, "CrossEncoder", formula, parameters, kept, write)


def _base_class_of_chain(config: Any) -> Any:
    family = str(config.model_type)
    try:
        return base_class_of(family, is_encoder_decoder=bool(getattr(config, "is_encoder_decoder", False)))
    except Unsupported as err:
        what = f"a chain begins with a model that only encodes texts, and Transformers has none for {family}"
        raise DoesNotFold(what) from err


_Planned = tuple[ChainModule, Mapping[str, str]]
"""A module, and the names of what its weight and bias are made of; "" for none."""


def _modules_of_setfit(folder: Path) -> Iterator[_Planned]:
    weight, bias, is_normalized = read_setfit(folder)
    if is_normalized:
        yield ChainModule("Normalize"), {}
    names = {"weight": f"{SETFIT_HEAD}: coef_", "bias": f"{SETFIT_HEAD}: intercept_"}
    yield ChainModule("Dense", {"weight": weight, "bias": bias}, "Identity"), names


def _modules_of_class(source: FoldSource, values: Values, config: Any) -> Iterator[_Planned]:
    read = {name: getattr(config, name, None) for name in source.head.config_fields}
    settings = [f"{name}: {value}" for name, value in read.items() if isinstance(value, str) and value in ACT2FN]
    layers = [layer for layer in source.head.layers if layer.kind is not LayerKind.POOLING]
    while layers:
        layer, activation = layers.pop(0), "Identity"
        if layer.kind is LayerKind.LINEAR and layers and layers[0].kind is LayerKind.FUNCTION:
            activation = _name_of_activation(layers.pop(0), settings)
        yield _module_of(layer, activation, values), {"weight": layer.weight, "bias": layer.bias}


def _children_without_values(base: nn.Module, prefix: str, values: Values) -> set[str]:
    """Lists modules of a base model of which the checkpoint gives nothing, such as a pooler that its class lacks.

    Whether the hidden states need them is for the proof. Raises DoesNotFold for a module that is given in part.
    """
    lacking = [name for name in base.state_dict() if f"{prefix}{name}" not in values]
    found = {name.partition(".")[0] for name in lacking}
    given = [
        name for name in values if name.removeprefix(prefix).partition(".")[0] in found and name.startswith(prefix)
    ]
    if given:
        raise DoesNotFold(f"the checkpoint doesn't give {lacking[0]} of {type(base).__name__}")
    return found


def _module_of(layer: HeadLayer, activation: str, values: Values) -> ChainModule:
    stored = {key: values[name] for key, name in (("weight", layer.weight), ("bias", layer.bias)) if name}
    if layer.kind is LayerKind.LINEAR and layer.weight:
        return ChainModule("Dense", stored, activation)
    own = nn.LayerNorm(layer.width, elementwise_affine=False)
    if layer.kind is LayerKind.NORM and is_same_function(layer, module_as_layer(own, layer.width)):
        plain = {"weight": torch.ones(layer.width), "bias": torch.zeros(layer.width)}
        return ChainModule("LayerNorm", plain | stored)
    raise DoesNotFold(f"no module of sentence-transformers computes {layer.text} there")


def _name_of_activation(layer: HeadLayer, settings: Sequence[str]) -> str:
    """Finds the activation of PyTorch that computes what a function does. Raises DoesNotFold if there is none.

    `settings` are the fields of the configuration that choose one. An option, as of `GELU(approximate="tanh")`, would
    be lost: Dense saves the class alone.
    """
    for name in nn.modules.activation.__all__:
        try:
            module = getattr(nn, name)()
            if is_same_function(layer, module_as_layer(module, layer.width)):
                return name
        except Exception:
            continue
    named = f" ({', '.join(settings)})" if settings else ""
    raise DoesNotFold(f"Dense saves the class of its activation, and none of PyTorch computes this {layer.text}{named}")
