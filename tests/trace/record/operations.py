"""The operations of a head as an independent tracer, TorchLens, saw them on real values."""

from typing import Any

import torch
import torchlens
from torch import nn
from torchlens.backends.torch.wrappers import unwrap_torch

from headscope.core.trace.record.base import base_module
from headscope.facts import Head, HeadTrace

SILENT = {
    "to", "float", "half", "bfloat16", "double", "type", "type_as", "contiguous", "clone", "detach", "expand_as", "cpu",
}  # fmt: skip
"""Operations that only convert or copy: neither tracer's path is told by them."""
SAME = {
    "__getitem__": "getitem", "select": "getitem", "index": "getitem", "slice": "getitem", "unsqueeze": "unsqueeze",
    "__add__": "add", "__radd__": "add", "__iadd__": "add", "__sub__": "sub", "__rsub__": "sub", "subtract": "sub",
    "__mul__": "mul", "__rmul__": "mul", "__imul__": "mul", "multiply": "mul", "__truediv__": "div", "divide": "div",
    "true_divide": "div", "__matmul__": "matmul", "concat": "cat", "concatenate": "cat", "amax": "max",
    "_softmax": "softmax", "__neg__": "neg", "__pow__": "pow", "__get__": "transpose", "masked_fill_": "masked_fill",
    "__setitem__": "index_put", "index_put_": "index_put",
}  # fmt: skip
"""One name for what Python's operators, the aliases of PyTorch and its indexing are called in either tracer."""

Step = tuple[str, str]
"""The module that ran it, and what it did: "module" for the one call of a leaf, else PyTorch's name."""


def ours(trace: HeadTrace | Head, model: nn.Module) -> list[Step]:
    """The stages of headscope."""
    return _collapsed([_step(stage.module, stage.operation, model) for stage in trace.stages])


def _step(module: str, operation: str, model: nn.Module) -> Step:
    """A leaf counts as one, however its lines are written; anything else by its operation."""
    if module and next(model.get_submodule(module).children(), None) is None:
        return module, "module"
    return module, SAME.get(operation, operation.rstrip("_"))


def _collapsed(steps: list[Step]) -> list[Step]:
    """Without repeats of one leaf that ran several operations in a row."""
    return [step for at, step in enumerate(steps) if step[1] != "module" or at == 0 or steps[at - 1] != step]


def theirs(model: nn.Module, inputs: dict[str, Any], hidden: tuple[int, ...], scores: tuple[int, ...]) -> list[Step]:
    """The operations between the hidden states and the scores, from TorchLens' graph.

    The hidden states are the last tensor of that shape that the base model makes; the path is all that comes from
    it and leads to the scores: the outputs of the scores' shape.
    """
    try:
        with torch.no_grad():
            log = torchlens.trace(model, [], input_kwargs=inputs, save=lambda context: False)  # the graph, no numbers
    finally:
        unwrap_torch()  # what TorchLens has put around PyTorch's functions would slow every later test
    operations = list(log.compute_ops)
    by_label = {operation.layer_label: operation for operation in operations}
    ends = [operation for operation in operations if operation.is_output_parent and tuple(operation.shape) == scores]
    before = set().union(*(_ancestors(end, by_label) for end in ends))
    base = base_module(model)
    prefix = next((name for name, module in model.named_modules() if module is base), "")
    start = next(
        operation
        for operation in reversed(operations)
        if operation.layer_label in before and tuple(operation.shape) == hidden and _path(operation).startswith(prefix)
    )
    after = {start.layer_label}
    path: list[Step] = []
    calls: set[int] = set()
    for operation in operations:
        if operation.layer_label in after or not (set(operation.parents) & after):
            continue
        after.add(operation.layer_label)
        if operation.func_call_id in calls:  # another output of one call
            continue
        if operation.layer_label in before and operation.func_name not in (*SILENT, "identity"):
            calls.add(operation.func_call_id)
            path.append(_step(_path(operation), operation.func_name, model))
    return _collapsed(path)


def _ancestors(operation: Any, by_label: dict[str, Any]) -> set[str]:
    found, waiting = {operation.layer_label}, [operation]
    while waiting:
        for parent in waiting.pop().parents:
            if parent in by_label and parent not in found:
                found.add(parent)
                waiting.append(by_label[parent])
    return found


def _path(operation: Any) -> str:
    module = operation.module
    return str(module).rpartition(":")[0] if module and module != "self" else ""


def bound(shape: tuple[int | str, ...], sizes: dict[str, int]) -> tuple[int, ...]:
    """A shape with its symbolic axes as numbers."""
    return tuple(sizes[axis] if isinstance(axis, str) else axis for axis in shape)
