"""Arguments of a recorded call as a reader would write them: all that change what it computes, in their order."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from headscope.core.trace.batch.probe_batch import ProbeBatch
from headscope.core.trace.formula.expression import Expression, Number, Withheld
from headscope.core.trace.record.indexing import spell_items
from headscope.core.trace.record.recorder import Operation
from headscope.core.upstream.torch import places_of_arguments

REVERSED = {"__rsub__", "__rdiv__", "__rtruediv__", "__rmatmul__", "__rpow__", "__rfloordiv__", "__rmod__", "rsub"}
"""Functions that get their right operand first."""
_SOFTMAX = {"softmax", "log_softmax", "_softmax"}
_QUIET = {
    "keepdim", "keepdims", "inplace", "training", "dtype", "device", "generator", "memory_format", "return_indices",
    "non_blocking", "copy", "requires_grad", "layout",
}  # fmt: skip
"""Arguments that change the layout, the number format or nothing at all."""
_ASSUMED: dict[str, Any] = {
    "approximate": "none", "ceil_mode": False, "is_causal": False, "enable_gqa": False, "descending": False,
    "stable": False,
}  # fmt: skip
"""Values that a reader takes for granted."""
_REDUCTIONS = {
    "mean", "sum", "max", "min", "amax", "amin", "argmax", "argmin", "logsumexp", "prod", "median", "any", "all",
    "norm",
}  # fmt: skip
_SILENT_TYPES = (torch.dtype, torch.device, torch.memory_format, torch.layout, torch.Generator)
_SMALL = 1e-3
_WRITTEN_NONE = object()
"""A None with an argument after it."""


def call_operands(
    operation: Operation, node_of: Callable[[torch.Tensor], Expression], probe: ProbeBatch
) -> tuple[Expression, ...]:
    """Lists the operands of a call in call order: tensors as their nodes, other arguments as text.

    Raises Withheld for an argument that cannot be written.
    """
    name, args = operation.name, operation.args
    if name.strip("_") in {item.strip("_") for item in _SOFTMAX}:
        return (node_of(operation.argument(0, "input")), *_softmax_axis(operation, probe))
    if name in REVERSED:
        args = (args[1], args[0], *args[2:])
    found: list[Expression] = []
    args, kwargs = _with_tensors_at_their_places(operation, args)
    for at, item in enumerate(args):
        is_index = at == 1 and name in {"__getitem__", "__setitem__"}
        # The third argument of a reduction is `keepdim`, which changes only the layout.
        if not (isinstance(item, bool) and at > 1 and name.rstrip("_") in _REDUCTIONS):
            found += _argument_nodes(item, node_of, is_index=is_index)
    for key, item in kwargs.items():
        found += _nodes_of_keyword(key, item, node_of)
    return tuple(found)


def _with_tensors_at_their_places(
    operation: Operation, args: tuple[Any, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Gives the arguments with what comes before a tensor as a text, so that `clamp(h, None, x)` isn't `clamp(h, x)`.

    Raises Withheld for a tensor that has no place.
    """
    kwargs, places = dict(operation.kwargs), places_of_arguments(operation.function)
    for key in [key for key, item in kwargs.items() if isinstance(item, torch.Tensor)]:
        if places.get(key, -1) < len(args):
            raise Withheld(f"{operation.name} gets a tensor by the name {key}")
        args = (*args, *[None] * (places[key] - len(args)), kwargs.pop(key))
    shown = (at for at, item in enumerate(args) if item is not None and not isinstance(item, _SILENT_TYPES))
    last = max(shown, default=0)
    return tuple(_WRITTEN_NONE if item is None and at < last else item for at, item in enumerate(args)), kwargs


def _argument_nodes(
    item: Any, node_of: Callable[[torch.Tensor], Expression], *, is_index: bool = False
) -> Iterator[Expression]:
    if item is _WRITTEN_NONE:
        yield _text_node("None")
    elif isinstance(item, torch.Tensor):
        yield node_of(item)
    elif isinstance(item, tuple | list) and any(isinstance(part, torch.Tensor) for part in item):
        for part in item:
            yield from _argument_nodes(part, node_of, is_index=is_index)
    elif is_index:
        yield _text_node(spell_items(item if isinstance(item, tuple) else (item,)))
    else:
        text = _literal_text(item)
        if text:
            yield _text_node(text)


def _nodes_of_keyword(key: str, item: Any, node_of: Callable[[torch.Tensor], Expression]) -> Iterator[Expression]:
    if isinstance(item, tuple | list) and any(isinstance(part, torch.Tensor) for part in item):
        yield from _argument_nodes(item, node_of)
    elif not (key.startswith("_") or key in _QUIET or (key in _ASSUMED and _ASSUMED[key] == item)):
        text = _literal_text(item)
        if text:
            yield _text_node(f"{key}={text}")


def _literal_text(item: Any) -> str:
    """Writes a value as the source does; "" for one that changes no number."""
    if item is None or isinstance(item, _SILENT_TYPES):
        return ""
    if isinstance(item, bool | str):
        return repr(item)
    if isinstance(item, int | float):
        return f"{item:g}"
    if isinstance(item, tuple | list):
        return f"({', '.join(_literal_text(part) or 'None' for part in item)})"
    raise Withheld(f"a function of the head has an argument of type {type(item).__name__}")


def _text_node(text: str) -> Number:
    return Number(0.0, text)


def _softmax_axis(operation: Operation, probe: ProbeBatch) -> Iterator[Expression]:
    """Yields the axis of a softmax, unless it is the one that a reader takes for granted.

    That is the last one, or the only other axis beside the batch where the last has size 1.
    """
    given = [*operation.args, *operation.kwargs.values()]
    tensor = next(item for item in given if isinstance(item, torch.Tensor))
    dim = operation.argument(1, "dim")
    if not isinstance(dim, int):
        raise Withheld(f"{operation.name} names no axis")
    long = [axis for axis, size in enumerate(tensor.shape) if size > 1 and (axis or size != probe.batch)]
    if not long or dim % tensor.dim() != long[-1]:
        yield _text_node(f"dim={dim}")


def norm_arguments(operation: Operation) -> str:
    """Writes the `eps` of a norm if it is large enough to matter."""
    values = [*operation.args[1:], *operation.kwargs.values()]
    large = [item for item in values if isinstance(item, float) and item > _SMALL]
    return f", eps={large[0]:g}" if large and "norm" in operation.name else ""
