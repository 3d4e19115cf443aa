"""Vectors that a model itself puts at the first positions of a sequence, before its layers: `cls_token` of ViT."""

import torch

from headscope.core.trace.record.execution import Execution
from headscope.core.trace.record.indexing import item_on_axis
from headscope.core.trace.record.recorder import Operation
from headscope.core.trace.slice.head_slice import HeadSlice
from headscope.core.trace.slice.stages import single_step

_RANK = 3
"""The axes [batch, positions, width] of a sequence."""
_COPIES = {"expand", "expand_as", "repeat"}
_KEEPS_POSITIONS = {
    "add", "mul", "div", "dropout", "layer_norm", "rms_norm", "to", "float", "type_as", "contiguous", "clone",
}  # fmt: skip

_Position = tuple[torch.Tensor, int, bool]
"""A tensor [batch, positions, width], an index on its second axis, and whether sequences were joined behind it."""


def learned_tokens(head: HeadSlice) -> tuple[str, ...]:
    """Names the parameters that the model puts at the first positions of its hidden states, in order.

    Each is found by a walk back along the residual stream, through operations that leave every position in its place,
    to where the sequence is joined. What attention mixes in is not followed: it is computed from the parameter itself,
    and TimeSformer joins it again in every layer. Nor are positions of texts looked at, which a tokenizer fills. Ends
    at the first index where the walk leads to several parameters or to anything else.
    """
    if len(head.hidden) != 1 or head.hidden[0].dim() != _RANK or head.execution.probe.length in head.hidden[0].shape:
        return ()
    found: list[str] = []
    for index in range(head.hidden[0].shape[1]):
        sources = _sources_at(index, head.hidden[0], head.execution)
        if len(sources) != 1 or "" in sources:
            break
        found.append(sources.pop())
    return tuple(found)


def _sources_at(index: int, hidden: torch.Tensor, execution: Execution) -> set[str]:
    """Names the parameters, of one vector each, that are joined into the sequence at an index; "" is anything else."""
    waiting: list[_Position] = [(hidden, index, False)]
    seen, found, others = set[tuple[int, int]](), dict[str, int](), list[torch.Tensor]()
    while waiting:
        tensor, at, is_joined = waiting.pop()
        if (id(tensor), at) in seen:
            continue
        seen.add((id(tensor), at))
        operation = execution.graph.maker(tensor)
        before = _places_before(operation, tensor, at, is_joined=is_joined) if operation is not None else []
        waiting += before
        if not is_joined or before:
            continue
        name = execution.names.parameters.get(id(tensor), "") if operation is None else ""
        if not name:
            others.append(tensor)
        elif tensor.numel() == hidden.shape[-1]:  # a larger parameter has a vector for each position
            found[name] = id(tensor)
    behind = map(execution.graph.before, others)
    # The only parameter is read by an operation behind each of the others.
    is_mixed_in = len(found) == 1 and all(
        any(id(tensor) in found.values() for operation in operations for tensor in operation.inputs)
        for operations in behind
    )
    return {*found} | ({""} if others and not is_mixed_in else set())


def _places_before(operation: Operation, made: torch.Tensor, at: int, *, is_joined: bool) -> list[_Position]:
    """Lists the places whose values an operation keeps at an index of a sequence that it made."""
    name = single_step(operation).name
    item = item_on_axis(operation, 1) if name in {"index", "slice", "select"} else None
    if (name == "unsqueeze" and made.shape[1] == 1) or isinstance(item, int):  # `h[:, 0].unsqueeze(1)`
        rank = _RANK - 1 if item is None else _RANK
        taken = [tensor for tensor in operation.inputs if tensor.dim() == rank != made.dim()]
        return [(tensor, (item or 0) % tensor.shape[1], is_joined) for tensor in taken[:1]]
    operands = [tensor for tensor in operation.inputs if tensor.dim() == made.dim() == _RANK]
    if name == "cat":
        return _place_in_joined(operands, made, at)
    if name in {"index", "slice"} and isinstance(item, slice) and item.step in {None, 1}:
        return [(tensor, at + item.indices(tensor.shape[1])[0], is_joined) for tensor in operands[:1]]
    if name in _COPIES:
        return [(tensor, at % tensor.shape[1], is_joined) for tensor in operands[:1]]
    if name in _KEEPS_POSITIONS:
        return [(tensor, at, is_joined) for tensor in operands if tensor.shape[1:] == made.shape[1:]]
    return []


def _place_in_joined(operands: list[torch.Tensor], made: torch.Tensor, at: int) -> list[_Position]:
    """Finds the operand of a concatenation that holds an index; none if another axis than that of positions grew."""
    if sum(tensor.shape[1] for tensor in operands) != made.shape[1]:
        return []
    for tensor in operands:
        if at < tensor.shape[1]:
            return [(tensor, at, True)]
        at -= tensor.shape[1]
    return []
