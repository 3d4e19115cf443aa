"""Which loss a forward computed from the logits."""

from inspect import signature

import torch

from headscope.trace.arguments import REVERSED
from headscope.trace.execution import Execution
from headscope.trace.recorder import Graph, Operation
from headscope.trace.stages import is_silent, single_step

_LOSSES = {
    "cross_entropy": "CrossEntropyLoss",
    "nll_loss": "CrossEntropyLoss",
    "binary_cross_entropy_with_logits": "BCEWithLogitsLoss",
    "mse_loss": "MSELoss",
    "l1_loss": "L1Loss",
    "smooth_l1_loss": "SmoothL1Loss",
}
_SAME_NUMBERS = {
    "view", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "permute", "expand", "split", "chunk", "unbind",
    "select", "slice", "index", "index_select", "masked_select", "gather", "take_along_dim", "dropout", "clamp", "T",
}  # fmt: skip
"""Operations whose results are scores as they were: in another layout, or some of them."""


def observed_loss(execution: Execution) -> str:
    """PyTorch's name of the loss that the forward ran on labels.

    "none" where the forward takes no labels, "" where it ran no loss that is known: any other function of the scores,
    or of a known loss, is another loss.
    """
    if execution.loss is None:
        return "" if _may_take_labels(execution) else "none"
    found = _terms(execution.loss, execution.graph)
    if not found:
        return ""
    scores = {key for tensor in execution.logits for key in _chain(tensor, execution.graph)}
    names = {_LOSSES[operation.name] if _reads(operation, scores, execution.graph) else "" for operation in found}
    return names.pop() if len(names) == 1 else ""


def _may_take_labels(execution: Execution) -> bool:
    """Whether the forward names labels, or has a `**kwargs` that wasn't seen to ignore them."""
    arguments = signature(execution.model.forward).parameters
    if any("label" in name or name == "start_positions" for name in arguments):  # Bros has initial_token_labels
        return True
    return not execution.probe.labels and any(item.kind is item.VAR_KEYWORD for item in arguments.values())


def _terms(loss: torch.Tensor, graph: Graph) -> list[Operation]:
    """The known losses that were added up or averaged to `loss`; empty where it is anything else."""
    producer = graph.producer(loss)
    if producer < 0:
        return []
    operation = graph.operations[producer]
    if operation.name in _LOSSES:
        return [operation]
    step = single_step(operation)
    operands = [tensor for tensor, made_by in operation.inputs if made_by >= 0 and tensor.is_floating_point()]
    if step.name == "add" and len(operands) == len(operation.inputs):
        found = [_terms(tensor, graph) for tensor in operands]
        return [item for terms in found for item in terms] if all(found) else []
    if not operands:
        return []
    is_average = step.name == "div" and operation.name not in REVERSED and operation.args[0] is operation.inputs[0][0]
    if is_average or step.name in {"mean", "sum", "squeeze", "view"} or is_silent(step):
        return _terms(operation.inputs[0][0], graph)
    return []


def _reads(operation: Operation, scores: set[int], graph: Graph) -> bool:
    """Whether a loss is computed from the scores themselves; `nll_loss` from their log-softmax."""
    read = operation.args[0] if operation.args else operation.kwargs.get("input")
    if not isinstance(read, torch.Tensor):
        return False
    if operation.name == "nll_loss":
        producer = graph.producer(read)
        if producer < 0 or single_step(graph.operations[producer]).name != "log_softmax":
            return False
        read = graph.operations[producer].inputs[0][0]
    return bool(_chain(read, graph) & scores)


def _chain(tensor: torch.Tensor, graph: Graph) -> set[int]:
    """The ids of a tensor and of those that it hands on."""
    found = {id(tensor)}
    producer = graph.producer(tensor)
    while producer >= 0:
        operation = graph.operations[producer]
        step = single_step(operation)
        if not operation.inputs or not (is_silent(step) or step.name in _SAME_NUMBERS):
            break
        tensor, producer = operation.inputs[0]
        found.add(id(tensor))
    return found
