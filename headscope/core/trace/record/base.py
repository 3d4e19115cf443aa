"""Parts of a model: the base model inside a classifier, and the names of what it holds, by identity."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from headscope.core.trace.record.recorder import Operation
from headscope.core.upstream.torch import buffers_of, is_persistent


def base_module(model: nn.Module) -> nn.Module | None:
    """Returns the base model inside `model`: the one it declares, or a composite child; None without any.

    Of several children, it prefers one that holds a model of Transformers, then one with a forward to a list of
    modules, then the largest.
    """
    declared = declared_base(model)
    if declared is not None:
        return declared
    # Size decides last: a head may be larger than its encoder.
    return max(composite_children(model), key=_base_rank, default=None)


def composite_children(model: nn.Module) -> tuple[nn.Module, ...]:
    """Lists the direct children of a model that have children, in order, each once."""
    return tuple(child for child in model.children() if next(child.children(), None) is not None)


def declared_base(model: nn.Module) -> nn.Module | None:
    """Returns the base model that the class itself names, or None."""
    prefix = getattr(model, "base_model_prefix", "")
    declared = getattr(model, prefix, None) if isinstance(prefix, str) and prefix else None
    return declared if isinstance(declared, nn.Module) else None


def base_below_output_embeddings(base: nn.Module | None) -> nn.Module | None:
    """Returns the base model inside a language model of Transformers, which hands over the hidden states of its scores;
    any other module itself.
    """
    while isinstance(base, PreTrainedModel):
        model: Any = base  # Transformers leaves its getters untyped
        inner = None if model.get_output_embeddings() is None else declared_base(base)
        if inner is None:
            break
        base = inner
    return base


def _base_rank(module: nn.Module) -> tuple[bool, bool, int]:
    holds_model = any(isinstance(part, PreTrainedModel) for part in module.modules())
    size = sum(parameter.numel() for parameter in module.parameters())
    return holds_model, not isinstance(module, nn.ModuleList | nn.ModuleDict), size


def persistent_buffers(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the name and tensor of each buffer that `state_dict` holds; a shared one under each of its names."""
    # Duplicates too: a checkpoint stores a shared buffer under each of its names.
    for path, module in model.named_modules(remove_duplicate=False):
        for name, buffer in buffers_of(module).items():
            if buffer is not None and is_persistent(module, name):
                yield (f"{path}.{name}" if path else name), buffer


class ModelNames:
    """Full names of a model's modules, parameters and persistent buffers, by identity."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = {id(module): name for name, module in model.named_modules()}
        # A shared tensor has several names: the first counts.
        self.parameters = {id(parameter): name for name, parameter in model.named_parameters()}
        self.buffers: dict[int, str] = {}
        for name, buffer in persistent_buffers(model):
            self.buffers.setdefault(id(buffer), name)

    def path(self, operation: Operation) -> str:
        """Returns the path of the innermost registered module that ran `operation`; "" is the model itself."""
        return next((self.modules[id(item)] for item in reversed(operation.modules) if id(item) in self.modules), "")
