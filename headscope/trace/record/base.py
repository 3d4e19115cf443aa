"""The base model inside a classifier: what makes the hidden states."""

from torch import nn
from transformers import PreTrainedModel


def base_module(model: nn.Module) -> nn.Module | None:
    """The base model inside `model`: the one it declares, or a composite child; None without any.

    Of several, one that holds a model of Transformers goes before those that hold none, one with a forward before a
    list of modules, and a larger one before a smaller one: a head may be larger than its encoder.
    """
    declared = declared_base(model)
    if declared is not None:
        return declared
    return max(composite_children(model), key=_rank, default=None)


def composite_children(model: nn.Module) -> tuple[nn.Module, ...]:
    """The direct children of a model that have children, in order, each once."""
    return tuple(child for child in model.children() if next(child.children(), None) is not None)


def declared_base(model: nn.Module) -> nn.Module | None:
    """The base model that the class itself names, or None."""
    prefix = getattr(model, "base_model_prefix", "")
    declared = getattr(model, prefix, None) if isinstance(prefix, str) and prefix else None
    return declared if isinstance(declared, nn.Module) else None


def _rank(module: nn.Module) -> tuple[bool, bool, int]:
    holds_model = any(isinstance(part, PreTrainedModel) for part in module.modules())
    return holds_model, not isinstance(module, nn.ModuleList | nn.ModuleDict), _parameter_count(module)


def _parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
