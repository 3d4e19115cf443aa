"""PyTorch: its private names that headscope relies on, and what it refuses on the meta device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy
from functools import cache
from inspect import signature
from threading import get_ident
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode as _TorchDispatchMode

from headscope.core.upstream.python import descends_from

tree_leaves, tree_map = _pytree.tree_leaves, _pytree.tree_map


class TorchDispatchMode(_TorchDispatchMode):  # type: ignore[no-untyped-call]  # upstream has no annotations
    """PyTorch's own mode, without its protection from `torch.compile`: nothing that headscope runs is compiled.

    The protection wraps each operator in a call, and imports the compiler, which takes longer than most traces.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


_FILLS = {
    nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_, nn.init.constant_, torch.Tensor.uniform_,
    torch.Tensor.normal_, torch.Tensor.fill_, torch.Tensor.zero_,
}  # fmt: skip
"""What layers call to fill their parameters when they are made."""


class _Unfilled(TorchFunctionMode):
    """Mode in which filling a tensor on meta does nothing."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # On meta, PyTorch works fills out in Python, which takes longer than making a layer.
        if func in _FILLS:
            tensor = args[0] if args else kwargs.get("tensor")
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                return tensor
        return func(*args, **kwargs)


@contextmanager
def on_meta() -> Iterator[None]:
    """Puts models that are built inside on the meta device: they have shapes and no values."""
    with torch.device("meta"), _Unfilled():
        yield


def version_of(tensor: torch.Tensor) -> int:
    """Gives PyTorch's count of the writes to a tensor and its views; -1 if nothing counts them (inference mode)."""
    try:
        return tensor._version
    except RuntimeError:
        return -1


def without_subclasses() -> AbstractContextManager[Any]:
    """Makes PyTorch read a subclass of tensor as any tensor inside: its `__torch_function__` isn't called."""
    return cast(AbstractContextManager[Any], torch._C.DisableTorchFunctionSubclass())


def storage_id(tensor: torch.Tensor) -> int:
    """Identifies the memory of a tensor: two tensors on one memory have the same; one without memory is alone."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # sparse, or a subclass without memory
        return id(tensor)


def name_of_overload(func: Any) -> str | None:
    """Gives `add` for `torch.ops.aten.add.Tensor`; None for what is not an operator of the dispatcher."""
    if isinstance(func, torch._ops.OpOverload):
        return str(func._schema.name.rpartition("::")[2])
    return None


def function_names() -> frozenset[str]:
    """Gives the names of PyTorch's functions, methods and dispatcher operators, and of a tensor's attributes."""
    places = (torch, nn.functional, torch.linalg, torch.fft, torch.special)
    functions = (
        name
        for place in places
        for name in dir(place)
        if callable(found := getattr(place, name)) and not isinstance(found, type)
    )
    operators = (name.partition("::")[2].partition(".")[0] for name in torch._C._dispatch_get_all_op_names())
    return frozenset((*functions, *dir(torch.Tensor), *operators))


def overloads(func: Any, *names: str) -> list[Any]:
    """Gives the overloads of an operator that bear these names; `*` in one is the name of `func` itself."""
    own = func._overloadname
    found = (getattr(func.overloadpacket, name.replace("*", own), None) for name in names)
    return [item for item in found if item is not None]


_UNPREDICTABLE = ("data_dependent_output", "dynamic_output_shape", "inplace_view", "nondeterministic_seeded")


def is_functional(func: Any) -> bool:
    """True if an operator makes new tensors, writes and aliases none, and gives shapes without reading numbers.

    PyTorch keeps the results of fake tensors for just these (`FakeTensorMode._validate_cache_key`).
    """
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return False
    if any(item.alias_info is not None for item in (*func._schema.arguments, *func._schema.returns)):
        return False
    name: str = func._schema.name + (f".{func._overloadname}" if func._schema.overload_name else "")
    if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
        return False
    return not any(getattr(torch.Tag, name) in func.tags for name in _UNPREDICTABLE)


def argument_names(overload: Any) -> dict[str, Any]:
    """Gives the arguments of an operator of the dispatcher, with their defaults, in order."""
    return {item.name: item.default_value for item in overload._schema.arguments}


_OF_NUMPY = {"x": "input", "a": "input", "x1": "input", "x2": "other", "axis": "dim", "keepdims": "keepdim"}
"""Names that functions in C++ take too: `numpy_compatibility_arg_names` in torch/csrc/utils/python_arg_parser.cpp."""


@cache
def places_of_arguments(func: Callable[..., Any]) -> dict[str, int]:
    """Gives the place of each argument that a function takes by place and by name; -1 for those by name alone.

    Leaves out those on which a function's overloads disagree.
    """
    packet: Any = func
    if not isinstance(func, torch._ops.OperatorBase | torch._ops.OpOverloadPacket):
        try:
            found = signature(func).parameters.values()
            return {item.name: at for at, item in enumerate(found) if item.kind is item.POSITIONAL_OR_KEYWORD}
        except (TypeError, ValueError):  # in C++: its Python arguments are made from the operator's schemas
            packet = getattr(torch.ops.aten, getattr(func, "__name__", ""), None)
    overloads = [getattr(packet, name) for name in packet.overloads()] if hasattr(packet, "overloads") else [packet]
    places: dict[str, set[int]] = {}
    for schema in (item._schema for item in overloads if hasattr(item, "_schema")):
        for at, item in enumerate(schema.arguments):
            for name in ("self", "input") if item.name == "self" else (item.name,):
                places.setdefault(name, set()).add(-1 if item.kwarg_only else at)
    known = {name: at.pop() for name, at in places.items() if len(at) == 1}
    return {name: known[other] for name, other in _OF_NUMPY.items() if other in known} | known


def usual_names(func: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Gives arguments by PyTorch's names instead of NumPy's, in the order of their places."""
    places = places_of_arguments(func)
    named = {_OF_NUMPY.get(name, name) if _OF_NUMPY.get(name) in places else name: kwargs[name] for name in kwargs}
    return dict(sorted(named.items(), key=lambda item: places.get(item[0], -1) % (len(places) + 1)))


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Gives the parameters of one module, by name; the dictionary itself."""
    return module._parameters


def buffers_of(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """Gives the buffers of one module, by name; the dictionary itself."""
    return module._buffers


def with_child(module: nn.Module, name: str, child: nn.Module) -> nn.Module:
    """Copies a module shallowly, with another child under a name; the module keeps its own."""
    found = copy(module)
    found.__dict__["_modules"] = dict(module._modules) | {name: child}
    return found


def is_persistent(module: nn.Module, name: str) -> bool:
    """True if `state_dict` holds a buffer."""
    return name not in module._non_persistent_buffers_set


def inside_compiled(module: nn.Module) -> nn.Module | None:
    """Gives the module that `torch.compile(module)` wraps; None for no such wrapper."""
    found = getattr(module, "_orig_mod", None)
    return found if isinstance(found, nn.Module) else None


def inside_parallel(module: nn.Module) -> nn.Module | None:
    """Gives the module that DataParallel or DistributedDataParallel wraps; None for no such wrapper."""
    if not any(descends_from(module, "torch", name) for name in ("DataParallel", "DistributedDataParallel")):
        return None
    found = getattr(module, "module", None)
    return found if isinstance(found, nn.Module) else None


def inside_checkpointed(module: nn.Module) -> nn.Module | None:
    """Gives the module that `checkpoint_wrapper` wraps to save activations; None for no such wrapper."""
    found = getattr(module, "_checkpoint_wrapped_module", None)
    return found if descends_from(module, "torch", "ActivationWrapper") and isinstance(found, nn.Module) else None


@contextmanager
def uncompiled(module: nn.Module) -> Iterator[None]:
    """Runs `module` without compiled code, which cannot be recorded; restores it afterwards."""
    # The parts on which `.compile()` was called. What torch.compile wraps runs as it was written under this stance.
    compiled = {part: part._compiled_call_impl for part in module.modules() if part._compiled_call_impl is not None}
    is_loaded = "torch._dynamo" in sys.modules  # otherwise nothing was compiled, and the import takes seconds
    try:
        for part in compiled:
            part._compiled_call_impl = None
        with torch.compiler.set_stance("force_eager") if is_loaded else nullcontext():
            yield
    finally:
        for part, call in compiled.items():
            part._compiled_call_impl = call


@contextmanager
def as_by_default() -> Iterator[None]:
    """Makes tensors on the CPU inside; the caller's autocast and inference mode don't apply to this thread.

    The default dtype stays: it is the process's, and loads in other threads set it for a moment.
    """
    with ExitStack() as states:
        if torch.get_default_device().type != "cpu":
            states.enter_context(torch.device("cpu"))
        if torch.is_inference_mode_enabled():
            states.enter_context(torch.inference_mode(mode=False))
        for kind in _WITH_AUTOCAST:
            if torch.is_autocast_enabled(kind):
                states.enter_context(torch.autocast(kind, enabled=False))
        yield


_WITH_AUTOCAST = [kind for kind in ("cpu", "cuda", "mps", "xpu", "hpu") if torch.amp.is_autocast_available(kind)]


# The methods are exchanged and not the class: code that has imported `autocast` by name holds the class itself.
_METHODS = ("__init__", "__enter__", "__exit__")


@contextmanager
def autocast_on_meta() -> Iterator[None]:
    """Turns autocast on the meta device off inside, and in this thread.

    Rotary embeddings of early Transformers 5 ask for it. The class `torch.autocast` stays the same object, and for
    other threads and devices it does what it did. Not for two threads in parallel.
    """
    # The class is the process's. A training in another thread must keep its autocast while a head is traced in this
    # one.
    own, real_is_enabled = get_ident(), torch.is_autocast_enabled

    def is_autocast_enabled(*args: Any) -> bool:
        return False if args == ("meta",) and get_ident() == own else real_is_enabled(*args)

    with ExitStack() as patches:
        patches.enter_context(patch.object(torch, "is_autocast_enabled", is_autocast_enabled))
        for name in _METHODS:
            method = _only_off_meta(getattr(torch.autocast, name), own)
            patches.enter_context(patch.object(torch.autocast, name, method))
        yield


def _only_off_meta(method: Callable[..., Any], own: int) -> Callable[..., Any]:
    """Makes a method of autocast that does nothing for one on the meta device in the thread `own`."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if method.__name__ == "__init__":
            device = args[0] if args else kwargs.get("device_type")
            self.is_idle = device == "meta" and get_ident() == own
        if not getattr(self, "is_idle", False):
            return method(self, *args, **kwargs)
        return self if method.__name__ == "__enter__" else None

    return call


def forward_hooks_of(module: nn.Module) -> list[Any]:
    """Lists the hooks that run before and after the forward of a module."""
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


def has_hooks_of_all_modules() -> bool:
    """True if a hook runs with every module of the process, as of `register_module_forward_hook`."""
    return bool(nn_module._global_forward_hooks or nn_module._global_forward_pre_hooks)
