"""Indexing expressions: their spelling, their operation, and the positions that they pick in each row."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from headscope.core.trace.batch.probe_batch import ProbeBatch
from headscope.core.trace.record.recorder import Operation

_GATHERS = {"gather", "take_along_dim"}


class Axes(Protocol):
    """Finder of the token axis of each tensor: `axes.TokenAxes` implements it."""

    def first(self, tensor: torch.Tensor) -> int | None:
        """Returns the first token axis of a tensor, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Picked:
    """Positions read in each row of the probe; `index` is the integer written in the source, if it is one.

    `length` is the size of the axis: tokens of a text, or something else that is in a row (patches, entities).
    """

    positions: tuple[int, ...]
    index: int | None
    length: int = 0


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
    source = operation.args[0]
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
    axis = integers[0] % operation.args[0].dim() if integers else None
    match operation.name, integers:
        case "select", [_, index]:
            return axis, index
        case "narrow", [_, start, length]:
            return axis, slice(start, start + length)
        case "index_select", [_]:
            return axis, next((value for value in given if isinstance(value, torch.Tensor)), None)
    return None, None


def picked_positions(operation: Operation, name: str, probe: ProbeBatch, axes: Axes) -> Picked | None:
    """Returns the positions on the token axis that `operation` keeps, one per row; None if they are unknown."""
    if name in _GATHERS:
        return _picked_by_gather(operation, probe, axes)
    return _picked_by_items(operation, probe, axes) if name in {"select", "index", "slice"} else None


def _picked_by_items(operation: Operation, probe: ProbeBatch, axes: Axes) -> Picked | None:
    source = operation.args[0]
    items = index_items(operation)
    mask = next((item for item in items if isinstance(item, torch.Tensor) and item.dtype == torch.bool), None)
    if mask is not None:
        return _picked_by_mask(mask, probe)
    axis = axes.first(source)
    if axis is None:
        return None
    item, size = item_on_axis(operation, axis), source.shape[axis]
    if isinstance(item, slice):
        kept = range(size)[item]
        # Counted as the slice counts: `[-1:]` is -1.
        back = size if isinstance(item.start, int) and item.start < 0 else 0
        return _same_in_rows(kept[0] - back, size, probe) if len(kept) == 1 else None
    if isinstance(item, int):
        return _same_in_rows(item, size, probe)
    # Only where the batch axis is indexed by every row in order do the indices beside it go row by row:
    # `h[arange(batch), ends]`.
    is_by_row = bool(items) and _known_indices(items[0]) == list(range(probe.batch))
    return _picked_by_indices(_known_indices(item), size, is_by_row=is_by_row, probe=probe)


def _picked_by_indices(indices: list[int] | None, size: int, *, is_by_row: bool, probe: ProbeBatch) -> Picked | None:
    if indices is None:
        return None
    if len(indices) == 1:
        return _same_in_rows(indices[0], size, probe)
    if not is_by_row or len(indices) != probe.batch:
        return None
    return Picked(tuple((index + size) % size for index in indices), None, size)


def _known_indices(item: Any) -> list[int] | None:
    """Returns the numbers of a tensor or list of indices; None if their values are not known."""
    if isinstance(item, torch.Tensor):
        return None if item.is_meta else item.flatten().tolist()
    if isinstance(item, list) and all(isinstance(value, int) and not isinstance(value, bool) for value in item):
        return item
    return None


def _picked_by_mask(mask: torch.Tensor, probe: ProbeBatch) -> Picked | None:
    if mask.is_meta or mask.shape != (probe.batch, probe.length):
        return None
    found = [row.nonzero().flatten().tolist() for row in mask]
    return Picked(tuple(positions[-1] for positions in found), None, probe.length) if all(found) else None


def _picked_by_gather(operation: Operation, probe: ProbeBatch, axes: Axes) -> Picked | None:
    index = next((leaf for leaf, _ in operation.inputs[1:] if not leaf.is_floating_point()), None)
    if index is None or index.is_meta or index.shape[0] != probe.batch:
        return None
    rows = index.reshape(probe.batch, -1)
    if not bool((rows == rows[:, :1]).all()):
        return None
    axis = axes.first(operation.args[0])
    return None if axis is None else Picked(tuple(rows[:, 0].tolist()), None, operation.args[0].shape[axis])


def _same_in_rows(index: int, size: int, probe: ProbeBatch) -> Picked:
    return Picked(((index + size) % size,) * probe.batch, index, size)
