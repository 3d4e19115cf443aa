"""Accelerate: the traces of `prepare` and of offloading on a model. It is not imported."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

from headscope.errors import moved

NAME = "Accelerator"
_HOOK = "_hf_hook"
_WRAPPED = "_old_forward"
OF_HOOKS = (_HOOK, _WRAPPED, "forward")
"""The attributes that a hook puts on a module: itself, the forward of the class, and its own."""

TensorReader = Callable[[], torch.Tensor]
"""Reads a tensor from where it was offloaded to."""


def is_prepared(module: nn.Module) -> bool:
    """True if `prepare` replaced the forward of a model, for mixed precision; without that it leaves no trace."""
    return "_original_forward" in vars(module)


def is_hooked(module: nn.Module) -> bool:
    """True if a hook replaced the forward of a module, as `dispatch_model` and `cpu_offload` do."""
    return _HOOK in vars(module) and _WRAPPED in vars(module)


def offloaded(module: nn.Module) -> dict[str, TensorReader]:
    """Finds the tensors of a model that are kept in a file or in the CPU's memory until their module runs.

    In the model itself they are on the meta device. Raises Unsupported if a hook of Accelerate has another form.
    """
    found: dict[str, TensorReader] = {}
    for path, part in module.named_modules():
        joined = vars(part).get(_HOOK)
        # Accelerate joins several hooks in a SequentialHook, whose `hooks` they are.
        for hook in getattr(joined, "hooks", (joined,)):
            if not getattr(hook, "offload", False):
                continue
            try:
                names = list(_names_in(part, recurse=hook.place_submodules))
                found |= {f"{path}.{name}".lstrip("."): partial(hook.weights_map.__getitem__, name) for name in names}
            except AttributeError as err:
                raise moved("accelerate", f"a hook that offloads keeps no weights_map ({err})") from err
    return found


def _names_in(module: nn.Module, *, recurse: bool) -> Iterator[str]:
    for named in (module.named_parameters, module.named_buffers):
        yield from (name for name, item in named(recurse=recurse) if item.is_meta)
