"""Tensors among the arguments of a call.

A forward of 80 layers makes 7,000 calls, and PyTorch's own walk, which looks up how to open each value, took a quarter
of its trace. Lists, tuples and dictionaries are walked here; whatever else holds tensors is left to PyTorch.
"""

from collections.abc import Callable
from typing import Any

import torch

from headscope.core.upstream.torch import tree_leaves, tree_map

_EMPTY = {int, float, bool, str, complex, slice, type(None), type(Ellipsis), torch.dtype, torch.device, torch.layout}
"""Types that hold no tensor."""
_TENSORS = {torch.Tensor, torch.nn.Parameter}


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Lists every tensor in nested arguments, in their order."""
    found: list[torch.Tensor] = []
    _collect_tensors(value, found)
    return found


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """Applies `function` to each tensor in nested arguments."""
    kind = type(value)
    if kind in _EMPTY:
        return value
    if isinstance(value, torch.Tensor):
        return function(value)
    if kind is tuple:
        return tuple([map_tensors(function, item) for item in value])
    if kind is list:
        return [map_tensors(function, item) for item in value]
    if kind is dict:
        return {key: map_tensors(function, item) for key, item in value.items()}
    return tree_map(lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf, value)


def _collect_tensors(value: Any, found: list[torch.Tensor]) -> None:
    kind = type(value)
    if kind is tuple or kind is list:
        for item in value:
            inner = type(item)  # most items are plain: no call for each
            if inner in _TENSORS:
                found.append(item)
            elif inner not in _EMPTY:
                _collect_tensors(item, found)
    elif kind is dict:
        for item in value.values():
            _collect_tensors(item, found)
    elif isinstance(value, torch.Tensor):
        found.append(value)
    elif kind not in _EMPTY:
        found.extend(leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
