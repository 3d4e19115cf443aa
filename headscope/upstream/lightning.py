"""Lightning: modules that hold the model that they train. It is not imported."""

from torch import nn

from headscope.upstream.python import descends_from

_PACKAGES = ("lightning", "pytorch_lightning")


def is_lightning(module: nn.Module) -> bool:
    """Whether `module` is a LightningModule, of either package."""
    return any(descends_from(module, package, "LightningModule") for package in _PACKAGES)


def has_forward(module: nn.Module) -> bool:
    """Whether the class of a LightningModule defines a forward: the one that it inherits raises."""
    defined_in = next(cls for cls in type(module).__mro__ if "forward" in vars(cls))
    return defined_in is not nn.Module and defined_in.__module__.split(".")[0] not in _PACKAGES
