"""What an indexing expression reads: its spelling, its operation, and the positions it picks in each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from headscope.trace.probe import Probe
from headscope.trace.recorder import Operation

if TYPE_CHECKING:
    from headscope.trace.axes import TokenAxes

_GATHERS = {"gather", "take_along_dim"}


@dataclass(frozen=True, slots=True)
class Picked:
    """The position read in each row of the probe; `index` is the integer written in the source, if it is one.

    `length` is the size of the axis: tokens of a text, or something else that stands in a row (patches, entities).
    """

    positions: tuple[int, ...]
    index: int | None
    length: int = 0


def index_items(operation: Operation) -> tuple[Any, ...]:
    """The items of a `tensor[...]` expression, with the ellipsis spelled out."""
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
    if isinstance(item, torch.Tensor) and item.dtype == torch.bool:
        return item.dim()
    return 1


def index_operation(operation: Operation) -> str:
    """The name of what a `tensor[...]` does: `index`, `select`, `slice` or `unsqueeze`."""
    items = index_items(operation)
    if any(isinstance(item, torch.Tensor | list) for item in items):
        return "index"
    if any(isinstance(item, int) for item in items):
        return "select"
    return "slice" if any(isinstance(item, slice) and item != slice(None) for item in items) else "unsqueeze"


def spell_index(operation: Operation) -> str:
    """The expression as a reader would write it: `[:, 0]`, `[rows, positions]`."""
    items = operation.args[1]
    items = items if isinstance(items, tuple) else (items,)
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


def picked_positions(operation: Operation, name: str, probe: Probe, axes: TokenAxes) -> Picked | None:
    """The positions on the token axis that `operation` keeps, one per row; None where it cannot be told."""
    if name in {"select", "index"} and operation.name == "__getitem__":
        return _picked_by_items(operation, probe, axes)
    if name == "select":
        return _picked_by_select(operation, probe, axes)
    if name in _GATHERS:
        return _picked_by_gather(operation, probe, axes)
    return None


def _picked_by_items(operation: Operation, probe: Probe, axes: TokenAxes) -> Picked | None:
    source = operation.args[0]
    items = index_items(operation)
    mask = next((item for item in items if isinstance(item, torch.Tensor) and item.dtype == torch.bool), None)
    if mask is not None:
        return _picked_by_mask(mask, probe)
    kept = [item for item in items if item is not None]
    axis = axes.first(source)
    if axis is None or axis >= len(kept):
        return None
    item = kept[axis]
    if isinstance(item, int):
        return _constant(item, source.shape[axis], probe)
    if isinstance(item, torch.Tensor) and not item.is_meta:
        return _per_row(item.flatten().tolist(), source.shape[axis], probe)
    return None


def _picked_by_mask(mask: torch.Tensor, probe: Probe) -> Picked | None:
    if mask.is_meta or mask.shape != (probe.batch, probe.length):
        return None
    found = [row.nonzero().flatten().tolist() for row in mask]
    return Picked(tuple(positions[-1] for positions in found), None, probe.length) if all(found) else None


def _picked_by_select(operation: Operation, probe: Probe, axes: TokenAxes) -> Picked | None:
    arguments = [*operation.args[1:], *operation.kwargs.values()]
    integers = [argument for argument in arguments if isinstance(argument, int)]
    if len(integers) != 2:  # noqa: PLR2004  select takes a dimension and an index
        return None
    dimension, index = integers
    if dimension % operation.args[0].dim() not in axes.of(operation.args[0]):
        return None
    return _constant(index, operation.args[0].shape[dimension], probe)


def _picked_by_gather(operation: Operation, probe: Probe, axes: TokenAxes) -> Picked | None:
    index = next((leaf for leaf, _ in operation.inputs[1:] if not leaf.is_floating_point()), None)
    if index is None or index.is_meta or index.shape[0] != probe.batch:
        return None
    rows = index.reshape(probe.batch, -1)
    if not bool((rows == rows[:, :1]).all()):
        return None
    axis = axes.first(operation.args[0])
    return None if axis is None else Picked(tuple(rows[:, 0].tolist()), None, operation.args[0].shape[axis])


def _constant(index: int, size: int, probe: Probe) -> Picked:
    return Picked(((index + size) % size,) * probe.batch, index, size)


def _per_row(positions: list[int], size: int, probe: Probe) -> Picked | None:
    if len(positions) == 1:
        return _constant(positions[0], size, probe)
    if len(positions) != probe.batch:
        return None
    return Picked(tuple((position + size) % size for position in positions), None, size)
