"""Expressions of what a head reads beside the hidden states: parameters, masks, numbers, and what is made of them."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from headscope.core.trace.batch.probe_batch import ProbeBatch
from headscope.core.trace.formula.arguments import REVERSED, call_operands
from headscope.core.trace.formula.expression import Applied, Arithmetic, Expression, Number, Side, Sign, Withheld
from headscope.core.trace.record.indexing import spell_index
from headscope.core.trace.record.recorder import Operation
from headscope.core.trace.replay.picks import HeadSteps
from headscope.core.trace.replay.replay import mask_kind
from headscope.core.trace.slice.stages import Step, is_silent, single_step

LAYOUT = {
    "view", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "permute", "swapaxes", "swapdims", "expand",
    "movedim", "moveaxis", "unflatten", "contiguous", "broadcast_to", "view_as", "reshape_as", "t",
}  # fmt: skip
SIGNS = {"add": Sign.ADD, "sub": Sign.SUB, "div": Sign.DIV, "mul": Sign.MUL, "matmul": Sign.MATMUL}
_DEEPEST = 12


@dataclass(frozen=True, slots=True)
class Builder(HeadSteps):
    """State while the expressions of a head are built; `nodes` are those of the tensors so far, by id."""

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


def arithmetic(step: Step, builder: Builder, depth: int = 0) -> Arithmetic:
    """Makes the node of a sign between two tensors or numbers. Raises Withheld for a tensor that has no expression."""
    operands = list(step.last.args)
    if step.last.name in REVERSED:
        operands.reverse()
    left, right = (operand(item, builder, depth) for item in operands)
    if step.name == "matmul":
        left, right = turned(left), turned(right)
    return Arithmetic(SIGNS[step.name], left, right, (operands[0], operands[1]))


def operand(value: Any, builder: Builder, depth: int = 0) -> Expression:
    """Returns the expression of a tensor or a number. Raises Withheld for a tensor that has none."""
    if not isinstance(value, torch.Tensor):
        return Number(float(value), axis=_axis_of_size(value, builder.execution.probe))
    if id(value) in builder.nodes and id(value) in builder.head.derived:
        return builder.nodes[id(value)]
    return side(value, builder, depth)


def side(tensor: torch.Tensor, builder: Builder, depth: int = 0) -> Expression:
    """Makes the expression of a tensor beside the hidden states: a parameter, buffer, mask, number, or made of these.

    Raises Withheld for a value that has no name, or was written in place.
    """
    execution, names = builder.execution, builder.execution.names
    if id(tensor) in names.parameters:
        name = names.parameters[id(tensor)]
        return Side(builder.weights.get(id(tensor), name), tensor)
    inputs = {id(value): name for name, value in execution.probe.inputs.items()}
    graph = execution.graph
    # What training changes is written as what makes it, not as the number that it is now.
    is_fixed = not tensor.is_meta and not any(id(item) in names.parameters for item in graph.behind(tensor))
    mask = mask_kind(tensor, execution) if is_fixed else None
    if mask is not None:
        return Side(mask.value, tensor, mask)
    if id(tensor) in inputs:
        return Side(inputs[id(tensor)], tensor)
    made = graph.maker(tensor)
    if made is not None and made.index in graph.stale:
        raise Withheld("a value beside the hidden states was written in place through another tensor")
    # What is made from inputs is another value for other inputs.
    if is_fixed and tensor.numel() == 1 and not any(id(item) in inputs for item in graph.behind(tensor)):
        is_count = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
        return Number(float(tensor), axis=_axis_of_size(int(tensor), execution.probe) if is_count else "")
    if id(tensor) in names.buffers and made is None:
        return Side(names.buffers[id(tensor)], tensor)
    if made is None or depth > _DEEPEST:
        raise Withheld("the head reads values beside the hidden states that have no name")
    return _side_operation(single_step(made), tensor, builder, depth + 1)


def _side_operation(step: Step, tensor: torch.Tensor, builder: Builder, depth: int) -> Expression:
    """Makes the expression over parameters and inputs for what an operation makes."""
    args, inputs = step.last.args, step.last.inputs
    if not inputs or all(item.is_meta and not item.numel() for item in inputs):
        raise Withheld(f"the head reads what {step.name} makes from nothing")
    is_plain = len(args) == 2 and all(isinstance(item, torch.Tensor | int | float) for item in args)
    if step.name in SIGNS and is_plain and not step.last.kwargs:
        return arithmetic(step, builder, depth)
    pairs = tuple((item, side(item, builder, depth)) for item in inputs)
    if is_silent(step) or step.name in LAYOUT:
        return Applied("", (pairs[0][1],), step, pairs, tensor)
    if step.last.name == "__getitem__" and len(pairs) == 1:
        return Applied("", (pairs[0][1],), step, pairs, tensor, spell_index(step.last))
    operands = call_operands(step.last, lambda item: side(item, builder, depth), builder.execution.probe)
    number = next((at for at, item in enumerate(step.last.outputs) if item is tensor), 0)
    text = f"{step.name}[{number}]" if number else step.name
    return Applied(text, operands, step, pairs, tensor)


def _axis_of_size(value: float, probe: ProbeBatch) -> str:
    """Names the axis that has this size in this run; "" if none has."""
    name = probe.shape((value,))[0] if isinstance(value, int) else value
    return name if isinstance(name, str) else ""
