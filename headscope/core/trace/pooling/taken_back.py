"""Changes that a head makes before it pools and reverses after it: the root of a mean of powers is not a mean."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from headscope.core.facts import PoolingKind
from headscope.core.trace.pooling.collapse import Part
from headscope.core.trace.pooling.pooling import PoolingRead
from headscope.core.trace.record.recorder import Operation
from headscope.core.trace.replay.changed_inputs import EVEN, ChangedInputs
from headscope.core.trace.replay.picks import kept_positions
from headscope.core.trace.replay.replay import Replay
from headscope.core.trace.slice.stages import single_step
from headscope.errors import Unsupported

_CLOSE = 1e-3
_Vectors = list[torch.Tensor]


def with_changes_taken_back(read: PoolingRead, runs: ChangedInputs | None) -> PoolingRead:
    """Corrects a pooling that is called a mean or a maximum, but pools changed values that are changed back later.

    If every position holds the same vector, a value from after such a pooling equals one from before it.
    """
    return read if runs is None else replace(read, parts=tuple(_true_part(part, runs) for part in read.parts))


def _true_part(part: Part, runs: ChangedInputs) -> Part:
    if not part.tensors or part.kind not in EVEN:
        return part
    try:
        return _rename_part(part, runs)
    except Unsupported:  # it cannot be run again, and what was read is not proven either
        return part


def _tensors_before(made: torch.Tensor, runs: ChangedInputs) -> Iterator[torch.Tensor]:
    """Yields the tensors with tokens from which a tensor of a head is made, the nearest first."""
    indices = {item.index for item in runs.head.operations}
    makers = [item for item in runs.head.execution.graph.before(made) if item.index in indices]
    makers.sort(key=lambda item: item.index, reverse=True)
    outputs = (output for item in makers for output in item.outputs)
    for tensor in (*outputs, *runs.head.hidden):
        if tensor is not made and tensor.is_floating_point() and runs.axes.of(tensor):
            yield tensor


def _tensors_after(read: torch.Tensor, runs: ChangedInputs) -> Iterator[tuple[Operation, torch.Tensor]]:
    """Yields the tensors as large as another one that are made from it, the nearest first, each with what made it."""
    following = runs.head.execution.graph.after(read)
    for operation in runs.head.operations:
        if operation.index in following:
            for output in operation.outputs:
                if output.numel() == read.numel() and output.is_floating_point():
                    yield operation, output


def _rename_part(part: Part, runs: ChangedInputs) -> Part:
    """Returns the part with its true rule if a later value is one from before the pooling."""
    before, after = part.tensors
    later, earlier = tuple(_tensors_after(after, runs)), tuple(_tensors_before(before, runs))
    if not later or not earlier:
        return part
    usual, constant = runs.usual, runs.constant
    plain = _flat_rows(constant, after)
    for operation, changed_back in later:
        back = _flat_rows(constant, changed_back)
        # The same value, or the same number for every feature, says nothing about a change.
        if _is_close(back, plain) or _is_close(back, back[:, :1].expand_as(back)):
            continue
        for tensor in earlier:
            held = _vectors_of_part(tensor, part, runs, constant)
            if held is None or not _is_close(_largest_of_rows(held), _smallest_of_rows(held)):
                continue
            if _is_close(back, _largest_of_rows(held)) or _is_close(back, _largest_of_rows(held).abs()):
                vectors = _vectors_of_part(tensor, part, runs, usual)
                found = _with_true_rule(part, vectors, _flat_rows(usual, changed_back), operation)
                if found is not part:
                    return found
    return part


def _with_true_rule(part: Part, held: _Vectors | None, back: torch.Tensor, operation: Operation) -> Part:
    """Returns the part with a rule that holds for the vectors before the changes, of which `back` is what comes out."""
    if held is None:
        return part
    is_largest = part.kind is PoolingKind.MAX
    if is_largest and _is_close(back, _smallest_of_rows(held)):
        return replace(part.as_other("", "smallest"), rule=part.smallest)
    if _is_close(back, _largest_of_rows(held) if is_largest else torch.stack([row.mean(0) for row in held])):
        return part
    name = single_step(operation).name
    return part.as_other(f", of transformed values, then transformed back by {name}", "transformed", name)


def _flat_rows(replay: Replay, tensor: torch.Tensor) -> torch.Tensor:
    """Returns the values of a tensor in a run, as [rows, features]."""
    return replay.differentiable(tensor).detach().flatten(1)


def _vectors_of_part(tensor: torch.Tensor, part: Part, runs: ChangedInputs, replay: Replay) -> _Vectors | None:
    """Returns what a tensor holds at the positions of a part, [positions, features] for each row.

    None if it has other features than the result of the pooling, or if its positions are unknown.
    """
    value = replay.differentiable(tensor).detach()
    where = runs.axes.of(tensor)
    count = math.prod(tensor.shape[axis] for axis in where)
    try:
        claimed = kept_positions(part.positions, runs.probe, count)
    except ValueError:
        return None
    if 0 in where or len(claimed) != len(value) or value.numel() != part.tensors[1].numel() * count or not all(claimed):
        return None
    flat = value.movedim(where, tuple(range(1, len(where) + 1))).flatten(1, len(where)).flatten(2)
    return [row[positions] for row, positions in zip(flat, claimed, strict=True)]


def _largest_of_rows(held: _Vectors) -> torch.Tensor:
    return torch.stack([row.amax(0) for row in held])


def _smallest_of_rows(held: _Vectors) -> torch.Tensor:
    return torch.stack([row.amin(0) for row in held])


def _is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=_CLOSE, atol=_CLOSE)
