"""Limits of a head that no traced text reaches: a slice of 128 positions reads all of a shorter text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from headscope.errors import Unsupported
from headscope.facts import Pooling, Unavailable
from headscope.facts.counting import verb
from headscope.trace.agreement import Look
from headscope.trace.indexing import item_on_axis
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


def cuts_of_longer_texts(
    seen: Sequence[Look], pooling: Pooling, again: Callable[[], Look] | None
) -> Iterator[Unavailable]:
    """The slices that end where the traced texts end, if a longer text shows that they cut it.

    `h[:, :min(length, 128)]` is recorded as a slice up to the length. `again` runs the head on the longest text; it is
    called only for such slices. None means that this would cost too much. A pooling without a claim is skipped.
    """
    places = list(dict.fromkeys(place for look in seen for place in _ends_with_text(look)))
    if not places or not pooling.parts:
        return
    length = max(look.execution.probe.length for look in seen)
    where = f"{', '.join(places)} {verb(len(places), 'keeps', 'keep')} all of a text of {length} positions"
    if again is None:
        yield Unavailable("pooling of long texts", f"{where}; headscope traced no longer one")
        return
    try:
        look = again()
    except Unsupported as err:
        yield Unavailable("pooling of long texts", f"{where}; a run on a longer one fails ({err.message})")
        return
    longer = look.execution.probe.length
    if (look.pooling.kind, look.pooling.rule) != (pooling.kind, pooling.rule):
        yield Unavailable("pooling of long texts", f"{where}; of {longer} positions it reads: {look.pooling.rule}")
    elif longer > length and not set(places) <= set(_ends_with_text(look)):
        yield Unavailable("pooling of long texts", f"{where}, but not of {longer}")


def _ends_with_text(look: Look) -> Iterator[str]:
    """The places of slices whose bound is a number, and the length of the axis that they cut."""
    for operation in look.head.operations:
        for axis, bounds in _slices(operation):
            length = operation.args[0].shape[axis]
            if axis in look.axes.of(operation.args[0]) and (bounds.stop == length or bounds.start == -length):
                yield place_of(operation)


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
    """The slices of an index or a `narrow`, each with the axis of the tensor that it cuts."""
    if operation.name == "narrow":
        taken = ((axis, item_on_axis(operation, axis)) for axis in range(operation.args[0].dim()))
        yield from ((axis, item) for axis, item in taken if isinstance(item, slice))
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
