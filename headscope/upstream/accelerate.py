"""Accelerate: what `prepare` leaves on a model. It is not imported."""

from torch import nn

NAME = "Accelerator"
_REPLACED = "_original_forward"


def is_prepared(module: nn.Module) -> bool:
    """Whether `prepare` replaced the forward of a model, for mixed precision; without that it leaves no trace."""
    return _REPLACED in vars(module)
