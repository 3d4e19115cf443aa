"""Expressions of what a head reads beside the hidden states: parameters, masks, numbers, and what is made of them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from headscope.core.trace.batch.probe_batch import ProbeBatch
from headscope.core.trace.formula.arguments import REVERSED, call_operands
from headscope.core.trace.formula.expression import Applied, Arithmetic, Expression, Number, Side, Sign, Withheld
from headscope.core.trace.record.base import ModelNames
from headscope.core.trace.record.execution import Execution
from headscope.core.trace.record.indexing import spell_index
from headscope.core.trace.record.recorder import Operation
from headscope.core.trace.replay.picks import TokenNames
from headscope.core.trace.replay.replay import mask_kind
from headscope.core.trace.slice.axes import TokenAxes
from headscope.core.trace.slice.head_slice import HeadSlice
from headscope.core.trace.slice.stages import Step, is_silent, single_step

LAYOUT = {
    "view", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "permute", "swapaxes", "swapdims", "expand",
    "movedim", "moveaxis", "unflatten", "contiguous", "broadcast_to", "view_as", "reshape_as", "t",
}  # fmt: skip
SIGNS = {"add": Sign.ADD, "sub": Sign.SUB, "div": Sign.DIV, "mul": Sign.MUL, "matmul": Sign.MATMUL}
_DEEPEST = 12


@dataclass(frozen=True, slots=True)
class Builder:
    """State while the expressions of a head are built; `nodes` are those of the tensors so far, by id."""

    execution: Execution
    head: HeadSlice
    axes: TokenAxes
    tokens: TokenNames
    names: ModelNames
    short: dict[str, str]
    weights: dict[int, str]
    alone: set[int]
    nodes: dict[int, Expression]


def turned(node: Expression) -> Expression:
    """Adds `.T` to a factor of a matrix product whose last two axes were swapped."""
    if isinstance(node, Applied) and not node.text and not node.rest and _swaps_last_axes(node.step.last):
        return replace(node, rest=".T")
    return node


def _swaps_last_axes(operation: Operation) -> bool:
    if operation.name in {"T", "mT", "t"}:
        return True
    axes = [item for item in (*operation.args[1:], *operation.kwargs.values()) if isinstance(item, int)]
    count = operation.args[0].dim() if operation.args else 0
    is_swap = operation.name in {"transpose", "swapaxes", "swapdims"} and count > 1
    return is_swap and {axis % count for axis in axes} == {count - 2, count - 1}


def operand(value: Any, operation: Operation, builder: Builder) -> Expression:
    """Returns the expression of one argument of an operation. Raises Withheld for one that has none."""
    if isinstance(value, torch.Tensor):
        if id(value) in builder.nodes and id(value) in builder.head.derived:
            return builder.nodes[id(value)]
        producer = next((made_by for tensor, made_by in operation.inputs if tensor is value), -1)
        return side(value, producer, builder)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Number(float(value), axis=_axis_of_size(value, builder.execution.probe))
    raise Withheld(f"{operation.name} has an operand of type {type(value).__name__}")


def side(tensor: torch.Tensor, producer: int, builder: Builder, depth: int = 0) -> Expression:
    """Makes the expression of a tensor beside the hidden states: a parameter, buffer, mask, number, or made of these.

    Raises Withheld for a value that has no name, or was written in place.
    """
    graph = builder.execution.graph
    if id(tensor) in builder.names.parameters:
        name = builder.names.parameters[id(tensor)]
        return Side(builder.weights.get(id(tensor), name), tensor, -1)
    inputs = {id(value): name for name, value in builder.execution.probe.inputs.items()}
    # What training changes is written as what makes it, not as the number that it is now.
    is_fixed = not tensor.is_meta and not any(
        id(item) in builder.names.parameters for item in _tensors_before(producer, builder)
    )
    mask = mask_kind(tensor, producer, builder.execution) if is_fixed else None
    if mask is not None:
        return Side(mask.value, tensor, producer, mask)
    if id(tensor) in inputs:
        return Side(inputs[id(tensor)], tensor, -1)
    if producer in graph.stale:
        raise Withheld("a value beside the hidden states was written in place through another tensor")
    # What is made from inputs is another value for other inputs.
    if is_fixed and tensor.numel() == 1 and not any(id(item) in inputs for item in _tensors_before(producer, builder)):
        is_count = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
        return Number(float(tensor), axis=_axis_of_size(int(tensor), builder.execution.probe) if is_count else "")
    if id(tensor) in builder.names.buffers and producer < 0:
        return Side(builder.names.buffers[id(tensor)], tensor, -1)
    if producer < 0 or depth > _DEEPEST:
        raise Withheld("the head reads values beside the hidden states that have no name")
    return _side_operation(single_step(graph.operations[producer]), tensor, builder, depth)


def _side_operation(step: Step, tensor: torch.Tensor, builder: Builder, depth: int) -> Expression:
    """Makes the expression over parameters and inputs for what an operation makes."""
    producers = {id(item): made_by for item, made_by in step.last.inputs}

    def node_of(item: torch.Tensor) -> Expression:
        return side(item, producers.get(id(item), -1), builder, depth + 1)

    if not step.last.inputs or all(item.is_meta and not item.numel() for item, _ in step.last.inputs):
        raise Withheld(f"the head reads what {step.name} makes from nothing")
    if step.name in SIGNS and not step.last.kwargs:
        arithmetic = _side_arithmetic(step, builder, depth)
        if arithmetic is not None:
            return arithmetic
    pairs = tuple((item, node_of(item)) for item, _ in step.last.inputs)
    if is_silent(step) or step.name in LAYOUT:
        return Applied("", (pairs[0][1],), step, pairs, tensor)
    if step.last.name == "__getitem__" and len(pairs) == 1:
        return Applied("", (pairs[0][1],), step, pairs, tensor, spell_index(step.last))
    operands = call_operands(step.last, node_of, builder.execution.probe)
    number = next((at for at, item in enumerate(step.last.outputs) if item is tensor), 0)
    text = f"{step.name}[{number}]" if number else step.name
    return Applied(text, operands, step, pairs, tensor)


def _side_arithmetic(step: Step, builder: Builder, depth: int) -> Expression | None:
    operands = step.last.args[:2]
    if len(operands) != 2 or not all(isinstance(item, torch.Tensor | int | float) for item in operands):
        return None
    producers = {id(item): made_by for item, made_by in step.last.inputs}
    nodes = [
        side(item, producers.get(id(item), -1), builder, depth + 1)
        if isinstance(item, torch.Tensor)
        else Number(float(item), axis=_axis_of_size(item, builder.execution.probe))
        for item in operands
    ]
    if step.last.name in REVERSED:
        nodes.reverse()
        operands = tuple(reversed(operands))
    if step.name == "matmul":
        nodes = list(map(turned, nodes))
    return Arithmetic(SIGNS[step.name], nodes[0], nodes[1], (operands[0], operands[1]))


def _tensors_before(producer: int, builder: Builder) -> Iterator[torch.Tensor]:
    """Yields every tensor that an operation, or one that it depends on, reads."""
    return (tensor for operation in builder.execution.graph.before(producer) for tensor, _ in operation.inputs)


def _axis_of_size(value: float, probe: ProbeBatch) -> str:
    """Names the axis that has this size in this run; "" if none has."""
    name = probe.shape((value,))[0] if isinstance(value, int) else value
    return name if isinstance(name, str) else ""
