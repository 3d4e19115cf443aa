"""Which hidden states a head reads: the layers of its base model, or the outputs of several encoders."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from headscope.facts import HiddenSource
from headscope.trace.record.execution import Execution
from headscope.trace.record.names import ModelNames
from headscope.trace.slice.head_slice import HeadSlice, last_hidden_state


def read_sources(execution: Execution, head: HeadSlice, names: ModelNames) -> tuple[HiddenSource, ...]:
    """One source for each of the head's hidden states, in their order."""
    layers = [_layer_of(execution, head, tensor) for tensor in head.hidden]
    modules = [_maker(execution, tensor, names) for tensor in head.hidden]
    if len(head.hidden) == 1:
        layer = layers[0]
        text = "h" if layer in (None, -1) else f"h[{layer}]"
        return (HiddenSource(text, layer, modules[0]),)
    if None not in layers and len(set(layers)) == len(layers):
        return tuple(HiddenSource(f"h[{layer}]", layer, module) for layer, module in zip(layers, modules, strict=True))
    order = sorted(range(len(head.hidden)), key=lambda at: execution.graph.producer(head.hidden[at]))
    numbers = {at: number for number, at in enumerate(order, 1)}
    return tuple(HiddenSource(f"h{numbers[at]}", None, module) for at, module in enumerate(modules))


def _maker(execution: Execution, tensor: torch.Tensor, names: ModelNames) -> str:
    producer = execution.graph.producer(tensor)
    return names.path(execution.graph.operations[producer]) if producer >= 0 else ""


def _layer_of(execution: Execution, head: HeadSlice, tensor: torch.Tensor) -> int | None:
    """The place of `tensor` among the layers that the base model returned, from the end; None where it is not there."""
    if tensor is last_hidden_state(execution, head.base):
        return -1
    returned = execution.graph.returned.get(head.base) if head.base is not None else None
    for layers in _sequences(returned):
        for at, item in enumerate(layers):
            if item is tensor:
                return at - len(layers)
    return None


def _sequences(value: Any) -> Iterator[tuple[Any, ...]]:
    """Every sequence of tensors of one shape inside what a module returned: its layers."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _sequences(item)
    elif isinstance(value, tuple | list):
        tensors = [item for item in value if isinstance(item, torch.Tensor)]
        if len(tensors) > 1 and len(tensors) == len(value) and len({item.shape for item in tensors}) == 1:
            yield tuple(tensors)
        for item in value:
            yield from _sequences(item)
