"""Loss that a forward computed from the logits."""

from inspect import isfunction, signature, unwrap
from itertools import takewhile
from types import CodeType
from typing import Any

import torch
from torch import nn

from headscope.core.facts.heads.tasks import Loss
from headscope.core.trace.formula.arguments import REVERSED
from headscope.core.trace.record.execution import Execution
from headscope.core.trace.record.randomness import OwnRandomness
from headscope.core.trace.record.recorder import Graph, Operation, run_again
from headscope.core.trace.slice.stages import Step, is_silent, single_step

_LOSSES = {
    "cross_entropy": Loss.CROSS_ENTROPY,
    "nll_loss": Loss.CROSS_ENTROPY,
    "binary_cross_entropy_with_logits": Loss.BINARY_CROSS_ENTROPY,
    "mse_loss": Loss.SQUARED_ERROR,
    "l1_loss": Loss.ABSOLUTE_ERROR,
    "smooth_l1_loss": Loss.SMOOTH_ABSOLUTE_ERROR,
}
_SAME_NUMBERS = {
    "view", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "permute", "expand", "split", "chunk", "unbind",
    "select", "slice", "index", "index_select", "masked_select", "gather", "take_along_dim", "dropout",
}  # fmt: skip
"""Operations whose results are unchanged scores: in another layout, or some of them."""
_CUTS = {"detach", "data"}
"""Conversions that no gradient passes: a loss behind one trains nothing."""
_MAKES_PROBABILITIES = {"softmax", "sigmoid"}
_CHOSEN_BY_VALUE = {"nonzero", "argwhere"}
"""Functions that give the places where a mask holds."""


def observed_loss(execution: Execution) -> str:
    """Returns PyTorch's name of the loss that the forward ran on labels.

    Returns "none" if the forward takes no labels, and "" if it ran no known loss: any other function of the scores, or
    of a known loss, is another loss.
    """
    if execution.loss is None:
        arguments = signature(execution.model.forward).parameters
        is_named = any("label" in name or name == "start_positions" for name in arguments)  # Bros: initial_token_labels
        # A `**kwargs` takes labels too, unless the run with labels has seen it ignore them.
        has_rest = not execution.probe.labels and any(item.kind is item.VAR_KEYWORD for item in arguments.values())
        return "" if is_named or has_rest else Loss.NONE.value
    found = _loss_terms(execution.loss, execution.graph)
    if not found:
        return ""
    names = {_LOSSES[operation.name].value if _reads_scores(operation, execution) else "" for operation in found}
    return names.pop() if len(names) == 1 and _trains_these_scores(execution) else ""


def _trains_these_scores(execution: Execution) -> bool:
    """True unless the scores are probabilities, and a module that made them asks whether it is in training.

    Only evaluation mode is run: in training mode a model may write its parameters.
    """
    ends = ([*_way_back(scores, execution.graph).values()][-1][1] for scores in execution.logits)
    made = [item for item in ends if item is not None and single_step(item).name in _MAKES_PROBABILITIES]
    return not any(map(_asks_for_mode, {module for item in made for module in item.modules}))


def _asks_for_mode(module: nn.Module) -> bool:
    """True if the code of a module's own classes reads `training`."""
    of_libraries = ("torch.nn", "transformers.modeling_utils", "transformers.integrations")
    own = (cls for cls in type(module).__mro__ if not cls.__module__.startswith(of_libraries))
    waiting = [code for cls in own for item in vars(cls).values() for code in _codes_of(item)]
    while waiting:
        code = waiting.pop()
        if "training" in code.co_names:
            return True
        waiting += [part for part in code.co_consts if isinstance(part, CodeType)]  # of functions inside
    return False


def _codes_of(item: Any) -> list[CodeType]:
    """Gives the code of a method of any kind, below its decorators; none of another attribute."""
    functions = [item.fget] if isinstance(item, property) else [getattr(item, "__func__", item)]
    return [unwrap(function).__code__ for function in functions if isfunction(function)]


def _loss_terms(loss: torch.Tensor, graph: Graph) -> list[Operation]:
    """Lists the known losses that were added up or averaged to `loss`; empty if it is anything else."""
    operation = graph.maker(loss)
    if operation is None:
        return []
    if operation.name in _LOSSES:
        return [operation]
    step = single_step(operation)
    made = (tensor for tensor in operation.inputs if graph.maker(tensor) is not None)
    operands = [tensor for tensor in made if tensor.is_floating_point()]
    if step.name == "add" and len(operands) == len(operation.inputs) and not operation.kwargs:
        found = [_loss_terms(tensor, graph) for tensor in operands]
        return [item for terms in found for item in terms] if all(found) else []
    if not operands:
        return []
    is_division = step.name == "div" and operation.name not in REVERSED and not operation.kwargs
    divisor: Any = operation.args[1] if is_division and isinstance(operation.args[0], torch.Tensor) else None
    is_average = type(divisor) in {int, float} and divisor > 0
    if is_average or step.name in {"mean", "sum", "squeeze", "view"} or _keeps_gradient(step):
        return _loss_terms(operation.inputs[0], graph)
    return []


def _keeps_gradient(step: Step) -> bool:
    """True if a step only converts or copies, and gradients pass it."""
    return is_silent(step) and not any(operation.name in _CUTS for operation in step.operations)


def _reads_scores(operation: Operation, execution: Execution) -> bool:
    """True if a loss is computed from the scores themselves; `nll_loss` from their log-softmax over the classes."""
    read = operation.argument(0, "input")
    if operation.name == "nll_loss" and isinstance(read, torch.Tensor):
        read = _before_log_softmax(read, execution.graph)
    if not isinstance(read, torch.Tensor):
        return False
    # It compares the scores of one row with each other. Over another axis, such as the batch, it trains something else.
    by_classes = _LOSSES[operation.name] is Loss.CROSS_ENTROPY
    return any(_holds_scores(read, scores, execution.graph, by_classes=by_classes) for scores in execution.logits)


def _before_log_softmax(read: torch.Tensor, graph: Graph) -> torch.Tensor | None:
    """Returns what a log-softmax over the class axis of `nll_loss` was made from; None if `read` is anything else."""
    made = graph.maker(read)
    if made is None or single_step(made).name != "log_softmax":
        return None
    dim = made.argument(1, "dim")
    is_over_classes = isinstance(dim, int) and dim % read.dim() == _class_axis(read)
    return made.inputs[0] if is_over_classes else None


def _class_axis(read: torch.Tensor) -> int:
    """Returns the class axis of PyTorch's losses: [classes], [rows, classes] or [rows, classes, places]."""
    return min(1, read.dim() - 1)


def _holds_scores(read: torch.Tensor, scores: torch.Tensor, graph: Graph, *, by_classes: bool) -> bool:
    """True if `read` holds the numbers of `scores` in their order: all of them, or those that a mask keeps.

    With `by_classes`, the class axis of `read` must hold all scores of each row.
    """
    ways = _way_back(read, graph), _way_back(scores, graph)
    shared = ways[0].keys() & ways[1].keys()
    start = next((tensor for key, (tensor, _) in ways[0].items() if key in shared), None)
    if start is None or not scores.dim() or not read.dim():
        return False
    before = (takewhile(lambda item: item[0] is not start, way.values()) for way in ways)
    steps, to_scores = ([made for _, made in items if made is not None] for items in before)
    found, own = _number_places(read, start, steps, graph), _number_places(scores, start, to_scores, graph)
    if found is None or own is None:
        return False
    places = torch.full((start.numel(),), -1)
    places[own.flatten()] = torch.arange(own.numel())
    found = places[found]
    if by_classes:
        classes = scores.shape[-1]
        found = found.movedim(_class_axis(found), -1)
        if found.shape[-1] != classes:
            return False
        found = found.reshape(-1, classes)
        if not (found == found[:, :1] // classes * classes + torch.arange(classes)).all():
            return False
    found = found.flatten()
    if (found < 0).any() or not (found.diff() > 0).all():
        return False
    # A mask may leave out places without labels. Any other selection trains only a part of the scores.
    smaller = (made for made in steps if made.outputs[0].numel() < made.inputs[0].numel())
    return len(found) == own.numel() or all(_is_by_mask(made, graph) for made in smaller)


def _way_back(tensor: torch.Tensor, graph: Graph) -> dict[int, tuple[torch.Tensor, Operation | None]]:
    """Follows a tensor back through those that hand it their values, each with the operation that made it."""
    found: dict[int, tuple[torch.Tensor, Operation | None]] = {}
    while id(tensor) not in found:
        made = graph.maker(tensor)
        step = single_step(made) if made is not None else None
        hands_on = step is not None and (_keeps_gradient(step) or step.name in _SAME_NUMBERS)
        found[id(tensor)] = (tensor, made)
        if made is None or not hands_on or not made.inputs:
            break
        tensor = made.inputs[0]
    return found


def _number_places(
    tensor: torch.Tensor, start: torch.Tensor, steps: list[Operation], graph: Graph
) -> torch.Tensor | None:
    """Computes `tensor` by the operations `steps`, last first, from a `start` that holds the numbers of its places.

    So each entry of the result says which entry of `start` it is. None if the operations can't be run on numbers.
    """
    device = torch.device("cpu") if start.is_meta else start.device
    known = {id(start): torch.arange(start.numel(), device=device).reshape(start.shape)}

    def value(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        return known[id(item)] if id(item) in known else graph.memory.value(item)

    try:
        for made in reversed(steps):
            source = made.inputs[0]
            # A conversion to another dtype could round the numbers of the places.
            if is_silent(single_step(made)) and source.shape == made.outputs[0].shape:
                known[id(made.outputs[0])] = known[id(source)]
                continue
            with OwnRandomness():
                outputs = run_again(made, value)
            known.update((id(one), other) for one, other in zip(made.outputs, outputs, strict=True))
        return known[id(tensor)].cpu()
    except Exception:  # an operation on numbers of another kind, or on values that this run doesn't have
        return None


def _is_by_mask(operation: Operation, graph: Graph) -> bool:
    """True if an operation keeps what a mask marks: one of truth values, or the places where it holds any."""
    return any(
        tensor.dtype is torch.bool or any(item.name in _CHOSEN_BY_VALUE for item in graph.before(tensor))
        for tensor in operation.inputs[1:]
    )
