"""The base model inside a classifier: what makes the hidden states."""

from torch import nn


def base_module(model: nn.Module) -> nn.Module | None:
    """The base model inside `model`: the one it declares, else its largest composite child; None without any."""
    declared = declared_base(model)
    if declared is not None:
        return declared
    composite = [child for child in model.children() if next(child.children(), None) is not None]
    return max(composite, key=_parameter_count, default=None)


def declared_base(model: nn.Module) -> nn.Module | None:
    """The base model that the class itself names, or None."""
    prefix = getattr(model, "base_model_prefix", "")
    declared = getattr(model, prefix, None) if isinstance(prefix, str) and prefix else None
    return declared if isinstance(declared, nn.Module) else None


def _parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
