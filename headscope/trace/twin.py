"""A copy of a model without its numbers: the same modules, for a second run that costs no memory."""

from copy import deepcopy
from typing import Any

import torch
from torch import nn

from headscope.trace.execution import is_shape_only


def meta_copy(model: nn.Module) -> nn.Module | None:
    """`model` with parameters on the meta device; None for one that is there already or cannot be copied.

    Buffers keep their values: a position or a mask that is computed from them decides what a head reads.
    """
    if is_shape_only(model):
        return None
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
        for parameter in model.parameters()
    }
    try:
        copied: nn.Module = deepcopy(model, memo)
    except Exception:  # a module that holds what cannot be copied: a lock, a generator, an open file
        return None
    return copied if is_shape_only(copied) else None
