"""Whether a caller hands over a model in memory. It doesn't import torch, because every use case calls it first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

from headscope.upstream.python import descends_from

if TYPE_CHECKING:
    from torch import nn


def is_in_memory(reference: Any) -> TypeGuard[nn.Module]:
    """Whether `reference` is meant as a model in memory: a module, a class of modules, an exported program."""
    # SetFit's models aren't modules: they hold one, and a classifier that may be scikit-learn's.
    is_module = callable(getattr(reference, "named_parameters", None))
    return is_module or descends_from(reference, "setfit", "SetFitModel")
