"""Which loss a forward computed from the logits."""

from inspect import signature

from headscope.trace.execution import Execution

_LOSSES = {
    "cross_entropy": "CrossEntropyLoss",
    "nll_loss": "CrossEntropyLoss",
    "binary_cross_entropy_with_logits": "BCEWithLogitsLoss",
    "mse_loss": "MSELoss",
    "l1_loss": "L1Loss",
    "smooth_l1_loss": "SmoothL1Loss",
}


def observed_loss(execution: Execution) -> str:
    """PyTorch's name of the loss that the forward ran on labels.

    "none" where the forward takes no labels, "" where it ran no loss that is known.
    """
    if not any(name in signature(execution.model.forward).parameters for name in ("labels", "start_positions")):
        return "none"
    if execution.loss is None:
        return ""
    graph = execution.graph
    waiting, seen = [graph.producer(execution.loss)], set[int]()
    while waiting:
        index = waiting.pop(0)
        if index < 0 or index in seen:
            continue
        seen.add(index)
        operation = graph.operations[index]
        if operation.name in _LOSSES:
            return _LOSSES[operation.name]
        waiting.extend(producer for _, producer in operation.inputs)
    return ""
