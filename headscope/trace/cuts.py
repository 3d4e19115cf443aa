"""Limits of a head that no traced text reaches: a slice of 128 positions reads all of a shorter text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from headscope.facts import Unavailable
from headscope.trace.agreement import Look
from headscope.trace.probe import longest_text
from headscope.trace.recorder import Operation
from headscope.trace.stages import place_of, single_step

_PICKS = {"__getitem__", "gather", "take_along_dim", "index_select"}


def unreached_cuts(seen: Sequence[Look]) -> Iterator[Unavailable]:
    """The limits on the positions that are read, where they lie beyond the longest of the traced texts.

    A limit that no text of the model can reach is none.
    """
    look = max(seen, key=lambda item: item.execution.probe.length)
    length = look.execution.probe.length
    most = _longest(look)
    found = (limit for operation in look.head.operations for limit in _limits(look, operation) if length)
    told = {f"{where} {what} {most_read} positions": None for where, what, most_read in found if most_read < most}
    for sentence in told:
        yield Unavailable("pooling of long texts", f"{sentence}; headscope traced texts of at most {length}")


def _longest(look: Look) -> float:
    """The most tokens that a text may have; infinite where nothing says."""
    configs = (getattr(module, "config", None) for module in (look.execution.model, look.head.base))
    found = [longest_text(config) for config in configs]
    return min((item for item in found if item is not None), default=float("inf"))


def _limits(look: Look, operation: Operation) -> Iterator[tuple[str, str, int]]:
    """Where an operation cuts, how, and at how many positions, for limits beyond the text."""
    for axis, bounds in _slices(operation):
        source = operation.args[0]
        if axis in look.axes.of(source):
            stop = bounds.stop if type(bounds.stop) is int else 0
            start = -bounds.start if type(bounds.start) is int else 0
            if max(stop, start) > source.shape[axis]:
                yield place_of(operation), "keeps at most", max(stop, start)
    if operation.name in _PICKS:
        graph = look.execution.graph
        indices = [made_by for tensor, made_by in operation.inputs if id(tensor) not in look.head.derived]
        for made in graph.before(*indices):
            largest = _largest_index(made)
            if largest is not None and largest >= look.execution.probe.length:
                yield place_of(made), "reads only the first", largest + 1


def _slices(operation: Operation) -> Iterator[tuple[int, slice[Any, Any, Any]]]:
    """The slices of an index, each with the axis of the tensor that it cuts."""
    if operation.name != "__getitem__" or not isinstance(operation.args[0], torch.Tensor):
        return
    items = operation.args[1] if isinstance(operation.args[1], tuple) else (operation.args[1],)
    rank, axis = operation.args[0].dim(), 0
    for at, item in enumerate(items):
        if item is Ellipsis:
            axis = rank - sum(map(_width, items[at + 1 :]))
            continue
        if isinstance(item, slice):
            yield axis, item
        axis += _width(item)


def _width(item: Any) -> int:
    """How many axes of a tensor one item of an index takes."""
    if item is None or isinstance(item, bool):
        return 0
    return item.dim() if isinstance(item, torch.Tensor) and item.dtype is torch.bool else 1


def _largest_index(operation: Operation) -> int | None:
    """The upper bound of whole numbers that an operation clamps; None for any other."""
    if single_step(operation).name not in {"clamp", "clip"} or operation.outputs[0].is_floating_point():
        return None
    bound = operation.kwargs.get("max", operation.args[2] if len(operation.args) > 2 else None)  # noqa: PLR2004
    return bound if type(bound) is int else None
