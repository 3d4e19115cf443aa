"""Indexing expressions: their spelling, their operation, and what they take along an axis."""

from typing import Any

import torch

from headscope.core.trace.record.recorder import Operation


def index_items(operation: Operation) -> tuple[Any, ...]:
    """Returns the items of a `tensor[...]` expression, with full slices for the ellipsis; none of another operation."""
    if operation.name != "__getitem__":
        return ()
    items = operation.args[1]
    items = items if isinstance(items, tuple) else (items,)
    consumed = sum(_axes_consumed(item) for item in items)
    missing = operation.args[0].dim() - consumed
    spelled: list[Any] = []
    for item in items:
        spelled.extend([slice(None)] * missing if item is Ellipsis else [item])
    return tuple(spelled)


def _axes_consumed(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    # A mask indexes as many axes as it has; every other item indexes one.
    if isinstance(item, torch.Tensor) and item.dtype == torch.bool:
        return item.dim()
    return 1


INDEX_OPERATIONS = ("index", "select", "slice", "unsqueeze")


def index_operation(operation: Operation) -> str:
    """Names what a `tensor[...]` does: `index`, `select`, `slice` or `unsqueeze`."""
    items = index_items(operation)
    if any(isinstance(item, torch.Tensor | list) for item in items):
        return "index"
    if any(isinstance(item, int) for item in items):
        return "select"
    return "slice" if any(isinstance(item, slice) and item != slice(None) for item in items) else "unsqueeze"


def spell_index(operation: Operation) -> str:
    """Writes the expression as a reader would: `[:, 0]`, `[rows, positions]`."""
    items = operation.args[1]
    return spell_items(items if isinstance(items, tuple) else (items,))


def spell_items(items: tuple[Any, ...]) -> str:
    """Writes the items of an index in brackets: `[:, 0]`."""
    return "[" + ", ".join(_spell_item(item) for item in items) + "]"


def _spell_item(item: Any) -> str:
    match item:
        case slice():
            bounds = ["" if bound is None else str(bound) for bound in (item.start, item.stop)]
            return ":".join(bounds) + ("" if item.step is None else f":{item.step}")
        case torch.Tensor():
            return "mask" if item.dtype == torch.bool else "indices"
        case None:
            return "None"
        case _ if item is Ellipsis:
            return "..."
    return str(item)


def item_on_axis(operation: Operation, axis: int) -> Any:
    """Returns what `operation` takes along `axis` of its first tensor: an integer, a slice, or a tensor or list of
    indices.

    Reads `tensor[...]`, `select`, `narrow` and `index_select`; None where the axis is left whole.
    """
    if operation.name == "__getitem__":
        kept = [item for item in index_items(operation) if item is not None]
        item = kept[axis] if axis < len(kept) else None
        return None if item == slice(None) else item
    dimension, taken = _along_one_axis(operation)
    return taken if dimension == axis else None


def rows_on_last_axis(operation: Operation) -> tuple[int, ...] | None:
    """Returns the entries that an operation takes of the last axis of its first tensor; None if none are fixed."""
    source = operation.argument(0, "input")
    item = item_on_axis(operation, source.dim() - 1)
    if isinstance(item, torch.Tensor) and not item.is_meta and not item.is_floating_point() and item.dim() <= 1:
        item = item.tolist() if item.dtype is not torch.bool else None
    items = item if isinstance(item, list) else [item]
    if not items or not all(type(entry) is int for entry in items):
        return None
    size = source.shape[-1]
    return tuple(entry % size for entry in items)


def _along_one_axis(operation: Operation) -> tuple[int | None, Any]:
    """Returns the axis that `select`, `narrow` or `index_select` works on, and what it takes there."""
    given = [*operation.args[1:], *operation.kwargs.values()]
    # Each argument may be given by position or by name; in both cases the axis is the first integer.
    integers = [value for value in given if isinstance(value, int)]
    axis = integers[0] % operation.argument(0, "input").dim() if integers else None
    match operation.name, integers:
        case "select", [_, index]:
            return axis, index
        case "narrow", [_, start, length]:
            return axis, slice(start, start + length)
        case "index_select", [_]:
            return axis, operation.argument(2, "index")
    return None, None
