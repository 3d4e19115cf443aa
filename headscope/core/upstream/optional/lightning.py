"""Lightning: modules that hold the model that they train. It is not imported."""

from torch import nn

from headscope.core.upstream.python import descends_from

_PACKAGES = ("lightning", "pytorch_lightning")


def is_lightning(module: nn.Module) -> bool:
    """True if `module` is a LightningModule, of either package."""
    return any(descends_from(module, package, "LightningModule") for package in _PACKAGES)


def has_forward(module: nn.Module) -> bool:
    """True if the class of a LightningModule defines a forward: the one that it inherits raises."""
    found = getattr(type(module), "forward", None)
    return getattr(found, "__module__", "").split(".")[0] not in (*_PACKAGES, "torch")
