"""Tree of a head's formula, built from the recorded operations, one node for each step."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from operator import mul
from types import NoneType

import torch
from torch import nn

from headscope.core.facts import Positions, Where
from headscope.core.trace.formula.arguments import call_operands, norm_arguments
from headscope.core.trace.formula.expression import (
    Applied,
    Arithmetic,
    Cut,
    Expression,
    Hidden,
    Joined,
    Pick,
    Pooled,
    Withheld,
)
from headscope.core.trace.formula.side_values import LAYOUT, SIGNS, Builder, arithmetic, operand, side
from headscope.core.trace.pooling.collapse import ALL
from headscope.core.trace.record.base import ModelNames
from headscope.core.trace.record.execution import Execution
from headscope.core.trace.record.indexing import index_items, spell_index
from headscope.core.trace.record.recorder import DROPOUTS, Operation
from headscope.core.trace.replay.picks import HeadSteps, read_pick, sliced_positions
from headscope.core.trace.slice.head_slice import HeadSlice
from headscope.core.trace.slice.stages import SPLITS, Step, entering_tensors, is_silent, single_step

_RESHAPES = {"view", "reshape", "unflatten", "view_as", "reshape_as"}
_WEIGHTED = {"linear", "layer_norm", "batch_norm", "group_norm", "rms_norm"}
_PICKS = {"select", "index", "gather", "take_along_dim"}
_POOLS = {
    "mean": "mean", "adaptive_avg_pool1d": "mean", "adaptive_avg_pool2d": "mean", "adaptive_avg_pool3d": "mean",
    "avg_pool1d": "mean", "avg_pool2d": "mean", "avg_pool3d": "mean", "sum": "sum", "max": "max",
    "adaptive_max_pool1d": "max", "adaptive_max_pool2d": "max", "max_pool1d": "max", "max_pool2d": "max",
}  # fmt: skip


def build_tree(known: HeadSteps) -> tuple[Expression, ...]:
    """Builds the tree of each of the logits. Raises Withheld if they are not made from the hidden states alone."""
    head, steps, execution = known.head, known.steps, known.execution
    nodes: dict[int, Expression] = {
        id(tensor): Hidden(number, source)
        for number, (tensor, source) in enumerate(zip(head.hidden, known.sources, strict=True))
    }
    users = Counter(step.last.call for step in steps if _uses_parameters(step, execution))
    alone = {call for call, count in users.items() if count == 1}
    short = _short_names(steps, execution.names)
    weights = _weight_names(head, {*short.values(), *execution.probe.inputs})
    builder = Builder(head, steps, known.axes, known.tokens, known.sources, short, weights, alone, nodes)
    for step in steps:
        _add_nodes(step, builder)
    if not all(id(tensor) in nodes for tensor in execution.logits):
        raise Withheld("the scores are not made from the hidden states alone")
    return tuple(nodes[id(tensor)] for tensor in execution.logits)


def _short_names(steps: tuple[Step, ...], names: ModelNames) -> dict[str, str]:
    """Shortens module paths to their last component, unless two of them end alike or in a number.

    A module with the name of another operation is written as an attribute: `self.tanh`.
    """
    classes = {names.path(step.last): type(step.last.modules[-1]).__name__ for step in steps if step.last.modules}
    ends = Counter(path.rpartition(".")[2] for path in classes)
    found = {}
    for path, called in classes.items():
        end = path.rpartition(".")[2]
        name = end if ends[end] == 1 and not end.isdigit() else path
        is_apt = name.replace("_", "").lower() in called.lower()  # a module `tanh` of the class Tanh
        # What a reader takes for a function of PyTorch, or for a fixed word of formulas.
        spaces = (torch, nn.functional, torch.Tensor)
        is_taken = name in {"h", "mask"} or any(callable(getattr(space, name, None)) for space in spaces)
        found[path] = f"self.{path}" if is_taken and not is_apt else name
    return found


def _weight_names(head: HeadSlice, taken: set[str]) -> dict[int, str]:
    """Names each parameter that the head reads: short, or in full if another thing has the short name."""
    parameters = head.execution.names.parameters
    beside = (item for operation in head.operations for item in operation.inputs if id(item) not in head.derived)
    read = map(id, head.execution.graph.behind(*beside))
    used = {key: parameters[key] for key in read if key in parameters}
    count = Counter(map(_last_name, used.values()))
    return {
        key: _last_name(name)
        if count[_last_name(name)] == 1 and _last_name(name) not in {*taken, "h", "mask"}
        else name
        for key, name in used.items()
    }


def _uses_parameters(step: Step, execution: Execution) -> bool:
    return any(id(tensor) in execution.names.parameters for item in step.operations for tensor in item.inputs)


def _add_nodes(step: Step, builder: Builder) -> None:
    """Adds the node of each output of a step."""
    made = [(output, _node_of_output(step, output, builder)) for output in step.last.outputs]
    for operation in step.operations[:-1]:
        for output in operation.outputs:
            builder.nodes.setdefault(id(output), made[0][1])
    builder.nodes.update((id(output), node) for output, node in made)


def _node_of_output(step: Step, output: torch.Tensor, builder: Builder) -> Expression:  # noqa: PLR0911 - one line for each kind
    entering = entering_tensors(step, builder.head)
    first = builder.nodes[id(entering[0])]
    name = step.name
    if (is_silent(step) or name in DROPOUTS) and len(entering) == 1:
        return first
    if name in _RESHAPES and builder.axes.of(entering[0]) and _regroups_axes(entering[0].shape, output.shape):
        raise Withheld("a reshape cuts the vectors of the positions apart")
    if name in LAYOUT and _repeats_rows(entering[0], output):
        raise Withheld("a reshape repeats the rows of the batch")
    if name == "unsqueeze" or (name in LAYOUT and not _merges_tokens(entering[0], output, builder)):
        return _applied_node("", (first,), step, output, builder)
    if name in _PICKS or name == "slice":
        return _index_node(step, output, builder)
    if name in SPLITS:
        return _split_piece(step, output, builder)
    # With other arguments, such as `alpha`, it is written as a call.
    if name in SIGNS and len(step.operations) == 1 and len(step.last.args) == 2 and not step.last.kwargs:
        return _arithmetic_node(step, builder)
    if name in {"cat", "stack"}:
        return _joined_node(step, builder)
    if name in _POOLS and not _uses_parameters(step, builder.execution):
        return _pooled_node(step, output, builder)
    return _call_node(step, output, builder)


def _regroups_axes(before: Sequence[int], after: Sequence[int]) -> bool:
    """True if a reshape neither only merges axes nor only splits them, so that its axes are others than before."""
    # Running products are the places where an axis ends in memory. Merging axes only removes places.
    first, second = set(accumulate(before, mul)), set(accumulate(after, mul))
    return not (first <= second or second <= first)


def _repeats_rows(entering: torch.Tensor, output: torch.Tensor) -> bool:
    """True if a reshape merges the batch with an axis along which `expand` has repeated one value."""
    is_expanded = any(size > 1 and stride == 0 for size, stride in zip(entering.shape, entering.stride(), strict=True))
    return is_expanded and output.shape[0] > entering.shape[0]


def _merges_tokens(entering: torch.Tensor, output: torch.Tensor, builder: Builder) -> bool:
    """True if a reshape puts the vectors of all positions side by side."""
    token_axes = builder.axes.of(entering)
    is_several = prod(entering.shape[axis] for axis in token_axes) > 1
    return bool(token_axes) and not builder.axes.of(output) and is_several


def _applied_node(  # noqa: PLR0917
    text: str, operands: tuple[Expression, ...], step: Step, output: torch.Tensor, builder: Builder, rest: str = ""
) -> Applied:
    inputs = tuple((tensor, builder.nodes[id(tensor)]) for tensor in entering_tensors(step, builder.head))
    return Applied(text, operands, step, inputs, output, rest)


def _index_node(step: Step, output: torch.Tensor, builder: Builder) -> Expression:  # noqa: PLR0911 - one line for each kind
    operation = step.last
    source = operation.args[0]
    inner = builder.nodes.get(id(source))
    if inner is None:
        raise Withheld(f"{step.name} reads another tensor than the hidden states")
    axis = builder.axes.first(source)
    positions = read_pick(step, builder)
    if positions is not None and axis is not None and positions.where is not Where.BY_ROW:
        return Pick(inner, positions, axis)
    if step.name == "slice":
        kept = None if axis is None else sliced_positions(operation, builder.axes, ALL)
        if axis is not None and kept not in (None, ALL):
            return Cut(inner, kept, axis) if kept else inner
        if output.shape == source.shape:
            return inner
        if operation.name == "__getitem__":
            return _applied_node("", (inner,), step, output, builder, rest=spell_index(operation))
        return _call_node(step, output, builder)
    items = index_items(operation)
    # A list or a tensor of indices may bring the values into another order, whatever the shapes.
    is_in_order = operation.name in {"select", "__getitem__"} and all(isinstance(item, _IN_ORDER) for item in items)
    if is_in_order and _units_dropped(source) == _units_dropped(output):  # only axes of size 1 are gone
        return _applied_node("", (inner,), step, output, builder)
    if operation.name == "__getitem__" and not any(isinstance(item, torch.Tensor) for item in items):
        return _applied_node("", (inner,), step, output, builder, rest=spell_index(operation))
    return _call_node(step, output, builder)


_IN_ORDER = (int, slice, NoneType)


def _units_dropped(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(size for size in tensor.shape if size != 1)


def _split_piece(step: Step, output: torch.Tensor, builder: Builder) -> Expression:
    entering = entering_tensors(step, builder.head)[0]
    inner = builder.nodes[id(entering)]
    number = next(at for at, item in enumerate(step.last.outputs) if item is output)
    axis = builder.axes.first(entering)
    if output.dim() != entering.dim() and axis is not None and _unbound_axis(step.last, entering) == axis:
        return _token_piece(inner, output, axis, step, builder)
    if axis is not None and output.dim() == entering.dim() and output.shape[axis] != entering.shape[axis]:
        return _token_piece(inner, output, axis, step, builder)
    if step.last.outputs and _is_handed_out(step.last, builder):
        return replace(_applied_node("", (inner,), step, output, builder, rest=f"[part {number}]"), is_score=True)
    return _applied_node("", (inner,), step, output, builder, rest=_spell_piece(step.last, entering, number))


def _is_handed_out(split: Operation, builder: Builder) -> bool:
    """True if all outputs of a split are scores, at most in another layout: the start and end of a span."""
    made: set[int] = set()
    for tensor in builder.execution.logits:
        current = tensor
        while id(current) not in {id(output) for output in split.outputs}:
            operation = builder.execution.graph.maker(current)
            if operation is None or len(operation.inputs) != 1:
                break
            step = single_step(operation)
            if not (is_silent(step) or step.name in LAYOUT):
                break
            current = operation.inputs[0]
        made.add(id(current))
    return all(id(output) in made for output in split.outputs)


def _spell_piece(split: Operation, entering: torch.Tensor, number: int) -> str:
    """Writes one output of a split as an index: `[:, :2]`, of the axis along which the outputs are side by side."""
    outputs = split.outputs
    if any(output.dim() != entering.dim() for output in outputs):
        axis = _unbound_axis(split, entering)
        return f"[{':, ' * axis}{number}]"
    differing = [at for at, size in enumerate(entering.shape) if outputs[number].shape[at] != size]
    if len(differing) != 1:
        return ""
    start = sum(output.shape[differing[0]] for output in outputs[:number])
    stop = start + outputs[number].shape[differing[0]]
    end = "" if stop == entering.shape[differing[0]] else str(stop)
    return f"[{':, ' * differing[0]}{start or ''}:{end}]"


def _unbound_axis(split: Operation, entering: torch.Tensor) -> int:
    dim = split.argument(1, "dim")
    return dim % entering.dim() if isinstance(dim, int) else 0


def _token_piece(inner: Expression, output: torch.Tensor, axis: int, step: Step, builder: Builder) -> Expression:
    """Makes the node of one of the pieces that a split along the token axis makes."""
    start, entering = 0, entering_tensors(step, builder.head)[0]
    for item in step.last.outputs:
        size = item.shape[axis] if item.dim() == entering.dim() else 1
        if item is output:
            break
        start += size
    if size == 1:
        return Pick(inner, Positions(Where.INDEX, start, parameter=builder.tokens.parameter_at(start)), axis)
    stop = None if start + size == entering.shape[axis] else start + size
    return Cut(inner, Positions(Where.RANGE, start, stop), axis)


def _arithmetic_node(step: Step, builder: Builder) -> Arithmetic:
    for item in step.last.args:
        if isinstance(item, bool) or not isinstance(item, torch.Tensor | int | float):
            raise Withheld(f"{step.last.name} has an operand of type {type(item).__name__}")
    return arithmetic(step, builder)


def _last_name(name: str) -> str:
    """Returns the last component of a parameter's name; for `weight` and `bias` the last two."""
    parts = name.split(".")
    return ".".join(parts[-2:]) if parts[-1] in {"weight", "bias"} else parts[-1]


def _joined_node(step: Step, builder: Builder) -> Expression:
    operation = step.last
    tensors = operation.argument(0, "tensors")
    parts = tuple(operand(item, builder) for item in tensors)
    if len(parts) == 1 and step.name == "cat":
        return parts[0]
    axis = operation.argument(1, "dim") or 0
    count = tensors[0].dim()
    at = axis % count if step.name == "cat" else axis % (count + 1)
    along_features = step.name == "cat" and at == count - 1
    return Joined(step.name, parts, at, tuple(tensors), along_features)


def _pooled_node(step: Step, output: torch.Tensor, builder: Builder) -> Expression:
    """Makes the node of a reduction over the token axes; over axes of size 1 it changes only the layout."""
    entering = entering_tensors(step, builder.head)[0]
    inner = builder.nodes[id(entering)]
    axes = builder.axes.of(entering)
    reduced = _reduced_axes(step.last, entering, output)
    if reduced and all(entering.shape[axis] == 1 for axis in reduced) and not set(reduced) & set(axes):
        return _applied_node("", (inner,), step, output, builder)
    probe = builder.execution.probe
    if probe.length and any(entering.shape[axis] == probe.batch * probe.length for axis in reduced):
        raise Withheld(f"{step.name} joins the rows of the batch")
    if reduced and set(reduced) == set(axes):
        return Pooled(_POOLS[step.name], inner, ALL, axes)
    return _call_node(step, output, builder)


def _reduced_axes(operation: Operation, entering: torch.Tensor, output: torch.Tensor) -> tuple[int, ...]:
    """Lists the axes that a reduction removes or shrinks to 1; empty if that is not clear."""
    name = operation.name.rstrip("_")
    if "pool" in name:
        return tuple(
            axis
            for axis, (one, other) in enumerate(zip(entering.shape, output.shape, strict=False))
            if axis > 1 and other == 1
        )
    dim = operation.argument(1, "dim")
    if dim is None:
        dim = operation.kwargs.get("axis")
    if isinstance(dim, int) and not isinstance(dim, bool):
        return (dim % entering.dim(),)
    if isinstance(dim, tuple | list) and all(isinstance(item, int) for item in dim):
        return tuple(sorted(item % entering.dim() for item in dim))
    return ()


def _call_node(step: Step, output: torch.Tensor, builder: Builder) -> Expression:
    """Makes a node named after a module with parameters, or after PyTorch's name of the operation."""
    entering = entering_tensors(step, builder.head)
    operands: list[Expression] = [builder.nodes[id(tensor)] for tensor in entering]
    path = builder.execution.names.path(step.last)
    parameters = _uses_parameters(step, builder.execution)
    number = next((at for at, item in enumerate(step.last.outputs) if item is output), 0)
    if parameters and path and step.last.call in builder.alone:
        module = step.last.modules[-1]
        is_container = any(child in builder.execution.graph.executed for child in module.children())
        # A module that computes with its own weights: then its name is enough.
        if not is_container and not _has_other_weights(step, module, builder):
            text = f"{builder.short[path]}[{number}]" if number else builder.short[path]
            return _applied_node(text, tuple(operands), step, output, builder)
    rest = ""
    if step.name in _WEIGHTED:
        operands += _weights_of(step, builder)
        rest = norm_arguments(step.last)
    elif len(step.operations) > 1:
        operands += _other_tensors(step, builder)
    elif step.name not in LAYOUT:
        operands = list(call_operands(step.last, lambda tensor: operand(tensor, builder), builder.execution.probe))
    rest_of_many = f"[{number}]" if len(step.last.outputs) > 1 and step.name not in {"max", "min"} else ""
    made = _applied_node(step.name, tuple(operands), step, output, builder, rest)
    return made if not rest_of_many else replace(made, text=f"{step.name}{rest_of_many}")


def _weights_of(step: Step, builder: Builder) -> Iterator[Expression]:
    """Yields the weights of a linear map or a norm: parameters by name, computed ones as what makes them.

    Running statistics of a norm are left out: formulas don't show them.
    """
    execution = builder.execution
    for tensor in step.last.inputs:
        if id(tensor) in builder.head.derived:
            continue
        is_made = execution.graph.maker(tensor) is not None
        if id(tensor) in execution.names.parameters or is_made or step.name == "linear":
            yield side(tensor, builder)


def _has_other_weights(step: Step, module: nn.Module, builder: Builder) -> bool:
    """True if a linear map or a norm has weights that its module does not own, as in `torch.func.functional_call`."""
    if step.name not in _WEIGHTED:
        return False
    own = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    beside = [tensor for tensor in step.last.inputs if id(tensor) not in {*builder.head.derived, *own}]
    makers = map(builder.execution.graph.maker, beside)
    return any(made is None or made.call != step.last.call for made in makers)


def _other_tensors(step: Step, builder: Builder) -> Iterator[Expression]:
    made = {id(output) for operation in step.operations for output in operation.outputs}
    read = {id(tensor): tensor for operation in step.operations for tensor in operation.inputs}
    for key, tensor in read.items():
        if key not in builder.head.derived and key not in made:
            yield side(tensor, builder)
