"""The shapes that PyTorch's operators give on the meta device, each found once.

On meta, most operators run as Python code that works out a shape. A model repeats its layers, and one process traces
many models of a family: with the shapes kept, an operator on operands of the same shapes only makes an empty tensor.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from headscope.trace.record.trees import tensors_in
from headscope.upstream.torch import is_functional, storage_id

_MOST = 20_000
_PLAIN = {torch.Tensor, torch.nn.Parameter}
_SCALARS = {int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}

Shape = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Sizes, strides and dtype of a result."""


class _NoKey(Exception):
    """The operands hold something that the key can't describe."""


_known: dict[Any, tuple[type, tuple[Shape, ...]]] = {}


def run_by_shape(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an operator whose tensors are all on meta: from its shapes if they are known, otherwise by running
    it.
    """
    if not _depends_on_shapes_only(func):
        return func(*args, **kwargs)
    try:
        key = (func, torch.get_default_dtype(), _key(args), _key(tuple(kwargs.items())))
    except _NoKey:
        return func(*args, **kwargs)
    known = _known.get(key)
    if known is not None:
        kind, shapes = known
        made = [_empty(shape) for shape in shapes]
        return made[0] if kind is torch.Tensor else kind(made)
    result = func(*args, **kwargs)
    _keep(key, result, tensors_in((args, kwargs)))
    return result


@cache
def _depends_on_shapes_only(func: Any) -> bool:
    return is_functional(func)


def _key(value: Any) -> Any:
    """What an operator on meta can see of its arguments. Types are part of it: 1, 1.0 and True are equal in Python."""
    kind = type(value)
    if kind in _PLAIN:
        if value.layout is not torch.strided or value.is_nested or value.is_quantized:
            raise _NoKey
        return (value.shape, value.stride(), value.dtype, value.is_conj(), value.is_neg())
    if kind is tuple or kind is list:
        return (kind, *map(_key, value))
    if kind in _SCALARS:
        return (kind, value)
    raise _NoKey


def _keep(key: Any, result: Any, operands: list[torch.Tensor]) -> None:
    """Keeps the shapes of a result with separate memory: some operators share memory and don't declare it."""
    kind = type(result)
    made = [result] if kind is torch.Tensor else result if kind is tuple or kind is list else []
    if not made or not all(type(item) is torch.Tensor and item.is_meta and not item.storage_offset() for item in made):
        return
    places = {storage_id(item) for item in made}
    if len(places) < len(made) or any(storage_id(item) in places for item in operands):
        return
    if len(_known) >= _MOST:
        _known.clear()
    _known[key] = (kind, tuple((tuple(item.shape), item.stride(), item.dtype) for item in made))


def _empty(shape: Shape) -> torch.Tensor:
    sizes, strides, dtype = shape
    return torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
