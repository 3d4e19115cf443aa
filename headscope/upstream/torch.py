"""PyTorch: what it keeps under an underscore."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = [
    "TorchDispatchMode",
    "argument_names",
    "buffers_of",
    "compiled_calls",
    "function_names",
    "inside_compiled",
    "is_persistent",
    "name_of_overload",
    "overloads",
    "parameters_of",
    "set_compiled_call",
    "storage_id",
    "tree_leaves",
    "tree_map",
    "version_of",
]


def version_of(tensor: torch.Tensor) -> int:
    """PyTorch's count of the writes to a tensor and its views; -1 where nothing counts them (inference mode)."""
    try:
        return tensor._version
    except RuntimeError:
        return -1


def storage_id(tensor: torch.Tensor) -> int:
    """What two tensors on one memory have in common; a tensor without memory of its own has only itself."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # sparse, or a subclass without memory
        return id(tensor)


def name_of_overload(func: Any) -> str | None:
    """`add` for `torch.ops.aten.add.Tensor`; None for what is no operator of the dispatcher."""
    if isinstance(func, torch._ops.OpOverload):
        return str(func._schema.name.rpartition("::")[2])
    return None


def function_names() -> frozenset[str]:
    """The names of PyTorch's functions, methods and operators of the dispatcher, and of what a tensor has."""
    places = (torch, nn.functional, torch.linalg, torch.fft, torch.special)
    functions = (name for place in places for name in dir(place) if _is_function(getattr(place, name)))
    operators = (name.partition("::")[2].partition(".")[0] for name in torch._C._dispatch_get_all_op_names())
    return frozenset((*functions, *dir(torch.Tensor), *operators))


def _is_function(found: Any) -> bool:
    return callable(found) and not isinstance(found, type)


def overloads(func: Any, *names: str) -> list[Any]:
    """The overloads of an operator that bear these names; `*` in one is the name of `func` itself."""
    own = func._overloadname
    found = (getattr(func.overloadpacket, name.replace("*", own), None) for name in names)
    return [item for item in found if item is not None]


def argument_names(overload: Any) -> dict[str, Any]:
    """The arguments of an operator of the dispatcher, with their defaults, in order."""
    return {item.name: item.default_value for item in overload._schema.arguments}


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """The parameters of one module, by name; the dictionary itself."""
    return module._parameters


def buffers_of(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """The buffers of one module, by name; the dictionary itself."""
    return module._buffers


def is_persistent(module: nn.Module, name: str) -> bool:
    """Whether `state_dict` holds a buffer."""
    return name not in module._non_persistent_buffers_set


def inside_compiled(module: nn.Module) -> nn.Module | None:
    """The module that `torch.compile(module)` wraps; None for no such wrapper."""
    found = getattr(module, "_orig_mod", None)
    return found if isinstance(found, nn.Module) else None


def compiled_calls(module: nn.Module) -> dict[nn.Module, Any]:
    """The parts on which `.compile()` was called, with their compiled forward."""
    return {part: part._compiled_call_impl for part in module.modules() if part._compiled_call_impl is not None}


def set_compiled_call(part: nn.Module, call: Any) -> None:
    """Sets or removes (None) the compiled forward of a part."""
    part._compiled_call_impl = call
