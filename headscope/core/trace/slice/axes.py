"""Axes of tensors that count tokens, patches or pixels."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from headscope.core.trace.record.engine import META, ShapeOnlyMode
from headscope.core.trace.record.execution import Execution
from headscope.core.trace.record.recorder import Operation, run_again
from headscope.core.trace.slice.head_slice import IMAGE_RANK, HeadSlice

_RESHAPING = {"view", "reshape", "flatten"}


@dataclass(slots=True)
class TokenAxes:
    """Token axes of the tensors of one head.

    Axes are recognized by their size, which the probe chose to occur nowhere else. If that is not possible (the number
    of patches follows from the image size and may equal the feature size, or be 1), the head ran a second time with
    more tokens, and `grown` has the axes that changed, by the tensor's id.
    """

    sizes: set[int]
    hidden: dict[int, tuple[int, ...]]
    grown: dict[int, tuple[int, ...]] | None = None

    def of(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """Lists the token axes of `tensor`, in order; empty if none is left."""
        if id(tensor) in self.hidden:
            return self.hidden[id(tensor)]
        if self.grown is not None:
            return self.grown.get(id(tensor), ())
        return tuple(axis for axis, size in enumerate(tensor.shape) if size in self.sizes)

    def first(self, tensor: torch.Tensor) -> int | None:
        """Returns the first token axis of `tensor`, or None."""
        return next(iter(self.of(tensor)), None)


def find_token_axes(head: HeadSlice) -> TokenAxes:
    """Finds the token axes of everything that a head computes."""
    execution = head.execution
    hidden = {id(tensor): _axes_of_hidden(execution, tensor) for tensor in head.hidden}
    sizes: set[int] = set()
    for tensor in head.hidden:
        sizes |= _sizes_of(execution, tensor, hidden[id(tensor)])
    # Too many other axes have these sizes.
    sizes -= {0, 1}
    # Only for inputs without tokens of text: the length of a text is chosen by the probe, the number of patches is not.
    if not execution.probe.length and _is_ambiguous(head, hidden):
        return TokenAxes(sizes, hidden, _grown_axes(head, hidden))
    return TokenAxes(sizes, hidden)


def has_ambiguous_batch(head: HeadSlice) -> bool:
    """True if another axis of the hidden states, or of the scores, has the size of the batch by chance.

    The number of patches or frames follows from the inputs, and is known only after a run.
    """
    return any(head.execution.probe.batch in tensor.shape[1:] for tensor in (*head.hidden, *head.execution.logits))


def _sizes_of(execution: Execution, tensor: torch.Tensor, axes: tuple[int, ...]) -> set[int]:
    """Collects the sizes that token axes have here, flattened ones included."""
    probe = execution.probe
    if probe.length in tensor.shape or probe.batch * probe.length in tensor.shape:
        return {probe.length, probe.batch * probe.length}
    sizes = [tensor.shape[axis] for axis in axes]
    return {*sizes, math.prod(sizes)}


def _axes_of_hidden(execution: Execution, tensor: torch.Tensor) -> tuple[int, ...]:
    """Lists all axes except the batch and the features (the second axis of an image, otherwise the last)."""
    probe = execution.probe
    by_length = {probe.length, probe.batch * probe.length} - {0}
    found = tuple(axis for axis, size in enumerate(tensor.shape) if size in by_length)
    if found:
        return found
    feature_axis = 1 if tensor.dim() == IMAGE_RANK else tensor.dim() - 1
    return tuple(axis for axis in range(tensor.dim()) if axis not in (0, feature_axis))


def _is_ambiguous(head: HeadSlice, hidden: dict[int, tuple[int, ...]]) -> bool:
    """True if the size of a token axis is also the size of something else, or 1."""
    tokens = {tensor.shape[axis] for tensor in head.hidden for axis in hidden[id(tensor)]}
    tokens |= {math.prod(tensor.shape[axis] for axis in hidden[id(tensor)]) for tensor in head.hidden}
    others = {head.execution.probe.batch, 1}
    for tensor in head.hidden:
        others |= {size for axis, size in enumerate(tensor.shape) if axis not in hidden[id(tensor)]}
    for operation in head.operations:
        for tensor in operation.inputs:
            if head.execution.graph.maker(tensor) is None and id(tensor) not in hidden:
                others |= set(tensor.shape)
    return bool(tokens & others)


def _grown_axes(head: HeadSlice, hidden: dict[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]] | None:
    """Finds the axes that change when the hidden states have more tokens; None if the head fails on them."""
    values = {}
    for tensor in head.hidden:
        # Twice as many tokens and one more, so that a stride cannot hide the difference.
        sizes = [2 * size + 1 if axis in hidden[id(tensor)] else size for axis, size in enumerate(tensor.shape)]
        values[id(tensor)] = torch.empty(sizes, dtype=tensor.dtype, device=META)
    found: dict[int, tuple[int, ...]] = {}
    try:
        with torch.no_grad(), ShapeOnlyMode(lambda is_branch: None):
            for operation in head.operations:
                before = _token_sizes_before(operation, hidden | found, head.execution.probe.batch)
                for recorded, output in zip(operation.outputs, _run_with_values(operation, values), strict=True):
                    pairs = enumerate(zip(recorded.shape, output.shape, strict=True))
                    changed = tuple(axis for axis, (one, other) in pairs if one != other)
                    # A reshape that merges tokens with features leaves no token axis. From there on, the recorded shape
                    # is used.
                    merged = operation.name in _RESHAPING and any(
                        recorded.shape[axis] not in before for axis in changed
                    )
                    values[id(recorded)] = recorded.detach().to(META) if merged else output
                    found[id(recorded)] = () if merged else changed
    except Exception:  # a shape written into the head: then sizes have to do
        return None
    return found


def _token_sizes_before(operation: Operation, axes: dict[int, tuple[int, ...]], batch: int) -> set[int]:
    """Collects the sizes that an axis of tokens alone can have after a reshape: one token axis, all, all with the
    batch.

    Any other axis that grows merges tokens with features.
    """
    found: set[int] = set()
    for tensor in operation.inputs:
        sizes = [tensor.shape[axis] for axis in axes.get(id(tensor), ())]
        if sizes:
            found |= {*sizes, math.prod(sizes), batch * math.prod(sizes)}
    return found


def _run_with_values(operation: Operation, values: dict[int, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    def known(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in values:
            return values[id(value)]
        return value.detach().to(META) if value.is_floating_point() else value

    return run_again(operation, known)
