"""The few calls in the pickle of a state dict, described: what PyTorch would build from the arguments."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headscope.core.checkpoints.formats.pickle.machine import SLOT, Machine
from headscope.core.checkpoints.formats.pickle.values import Global, Opaque, PickledStorage, PickledTensor, is_dtype

_LARGEST_SIZE = 2**63
_MOST_AXES = 64


def _rebuild_dict(machine: Machine, arguments: tuple[Any, ...]) -> Any:
    match arguments:
        case ():
            return {}
        case (list() as pairs,):
            # One operation of the pickle does the work of many here.
            machine.spend(len(pairs))
            found: dict[Any, Any] = {}
            for pair in pairs:
                if not isinstance(pair, list | tuple) or len(pair) != 2:
                    break
                machine.set_entry(found, pair[0], pair[1])
            else:
                return found
    raise machine.bad("an ordered dict is made from something that is not a list of pairs")


def _rebuild_tensor(machine: Machine, arguments: tuple[Any, ...]) -> PickledTensor:
    match arguments:
        case (PickledStorage() as storage, int() as offset, tuple() as shape, tuple() as strides, *_) if len(
            shape
        ) == len(strides) <= _MOST_AXES and all(map(is_size, (offset, *shape, *strides))):
            begin = offset if _is_contiguous(shape, strides) else None
            # The elements of the storage that the view needs.
            last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
            extent = 0 if 0 in shape else last + 1
            return PickledTensor(storage, shape, storage.dtype, extent, begin, offset, strides)
    raise machine.bad("a tensor is made from something that is not a storage and a shape")


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        # The stride of an axis of one element is never used, so PyTorch writes any number there.
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _rebuild_tensor_v3(machine: Machine, arguments: tuple[Any, ...]) -> PickledTensor:
    """Rebuilds a tensor like `_rebuild_tensor_v2`; its storage has no dtype, so an argument gives it."""
    tensor = _rebuild_tensor(machine, arguments)
    dtype = next((item for item in arguments[4:] if is_dtype(item)), None)
    return tensor if dtype is None else replace(tensor, dtype=dtype.name)


def is_size(value: Any) -> bool:
    """True if a value may be the size of an axis, an offset or a stride."""
    return type(value) is int and 0 <= value < _LARGEST_SIZE


def _rebuild_parameter(machine: Machine, arguments: tuple[Any, ...]) -> Any:
    if not arguments or not isinstance(arguments[0], PickledTensor):
        raise machine.bad("a parameter is made from something that is not a tensor")
    return arguments[0]


def _rebuild_from_type(machine: Machine, arguments: tuple[Any, ...]) -> Any:
    match arguments:
        case (Global() as function, _, tuple() as inner, _) if function in _TENSOR_REBUILDERS:
            machine.spend(len(inner))
            return _TENSOR_REBUILDERS[function](machine, inner)
    raise machine.bad("a tensor subclass is made in an unknown way")


def _rebuild_size(machine: Machine, arguments: tuple[Any, ...]) -> Any:
    match arguments:
        case (tuple() | list() as sizes,):
            machine.spend(len(sizes), len(sizes) * SLOT)
            return tuple(sizes)
    raise machine.bad("a size is made from something that is not a tuple")


def _rebuild_opaque(machine: Machine, arguments: tuple[Any, ...]) -> Any:
    return Opaque()


_TENSOR_REBUILDERS: dict[Global, Callable[[Machine, tuple[Any, ...]], Any]] = {
    Global("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    Global("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    Global("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor_v3,
    Global("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    Global("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
}
REBUILDERS: dict[Global, Callable[[Machine, tuple[Any, ...]], Any]] = _TENSOR_REBUILDERS | {
    Global("collections", "OrderedDict"): _rebuild_dict,
    Global("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
    Global("torch", "Size"): _rebuild_size,
    Global("torch", "Tensor"): _rebuild_opaque,
    Global("torch.nn.parameter", "Parameter"): _rebuild_opaque,
}
