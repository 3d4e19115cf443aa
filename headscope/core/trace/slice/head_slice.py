"""Slice of the graph that is the head: from the hidden states that the base model hands over to the logits."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from headscope.core.facts import HiddenSource
from headscope.core.trace.record.base import ModelNames, composite_children, declared_base, names_of_buffers
from headscope.core.trace.record.execution import Execution
from headscope.core.trace.record.indexing import rows_on_last_axis
from headscope.core.trace.record.recorder import Exit, Operation


@dataclass(frozen=True, slots=True)
class HeadSlice:
    """Operations of the head in execution order.

    `hidden` are the tensors at which the slice begins; `derived` are the ids of all tensors on the way from
    there to the logits; `live` are the names of the parameters and persistent buffers with a path to the logits.
    `beside` are the indices of the operations of other encoders, which reach the head without the hidden states.
    """

    operations: tuple[Operation, ...]
    hidden: tuple[torch.Tensor, ...]
    derived: frozenset[int]
    live: frozenset[str]
    base: nn.Module | None
    beside: frozenset[int] = frozenset()


def locate_head(execution: Execution, base: nn.Module | None) -> HeadSlice:
    """Finds the head slice: backward from the logits to where the path leaves the base model or the token axis
    collapses, whichever is earlier; forward again over what depends on the hidden states.
    """
    names = _names_of_leaves(execution.model)
    # What the logits depend on, or may depend on through values that left PyTorch.
    left = [item.tensor for item in exits_from(execution, base)]
    producers = map(execution.graph.producer, (*execution.logits, *left))
    read = {id(tensor) for operation in execution.graph.before(*producers) for tensor, _ in operation.inputs}
    reached = read | {id(tensor) for tensor in left}
    weighted = _made_from_parameters(execution, names)
    candidates, hidden = _find_boundary(execution, base, weighted)
    named = names_of_buffers(execution.model) | names
    operations, derived = _depending_on_hidden(execution, candidates, hidden)
    return HeadSlice(
        operations=operations,
        hidden=tuple(hidden.values()),
        derived=frozenset(derived),
        live=frozenset(name for key, name in named.items() if key in reached),
        base=base,
        beside=_operations_of_other_encoders(execution, operations, derived, base),
    )


def same_head(
    head: HeadSlice, execution: Execution, hidden: tuple[torch.Tensor, ...], base: nn.Module | None
) -> HeadSlice:
    """Finds the slice of `head` in another run of it, which begins at other tensors."""
    boundary = {id(tensor): tensor for tensor in hidden}
    candidates, _ = _walk_back(execution, lambda tensor, producer: id(tensor) in boundary)
    operations, derived = _depending_on_hidden(execution, candidates, boundary)
    return replace(head, operations=operations, hidden=hidden, derived=frozenset(derived), base=base)


def _operations_of_other_encoders(
    execution: Execution, operations: tuple[Operation, ...], derived: set[int], base: nn.Module | None
) -> frozenset[int]:
    """Finds the operations of composite modules that make hidden states from the inputs, beside an undeclared base."""
    # A class that names its base model says where the hidden states are; only a guessed base may be one encoder of two.
    if base is None or declared_base(execution.model) is not None:
        return frozenset()
    others = set(composite_children(execution.model)) - {base}
    side = (made_by for operation in operations for tensor, made_by in operation.inputs if id(tensor) not in derived)
    found = [
        (operation, made_in)
        for operation in execution.graph.before(*side)
        if (made_in := next((item for item in operation.modules if item in others), None)) is not None
    ]
    encoders = {made_in for item, made_in in found if any(has_token_axis(execution, output) for output in item.outputs)}
    return frozenset(operation.index for operation, made_in in found if made_in in encoders)


def _names_of_leaves(model: nn.Module) -> dict[int, str]:
    return {id(parameter): name for name, parameter in model.named_parameters()}


def exits_from(execution: Execution, base: nn.Module | None) -> Iterator[Exit]:
    """Yields the places where values made from parameters leave PyTorch on the way to the scores, so that their path is
    not recorded.

    What a base model does inside comes before its hidden states; what is made from the scores comes after them.
    """
    graph = execution.graph
    if not graph.exits:
        return
    names = _names_of_leaves(execution.model)
    weighted = _made_from_parameters(execution, names)
    after = {id(tensor) for tensor in execution.logits}
    for operation in graph.operations:
        if any(id(tensor) in after for tensor, _ in operation.inputs):
            after.update(id(output) for output in operation.outputs)
    for item in graph.exits:
        is_outside = base is None or base not in item.modules
        is_weighted = id(item.tensor) in names or graph.producer(item.tensor) in weighted
        if is_outside and is_weighted and id(item.tensor) not in after:
            yield item


def _made_from_parameters(execution: Execution, names: dict[int, str]) -> set[int]:
    """Collects the indices of the operations whose result depends on a parameter: masks and positions do not."""
    found: set[int] = set()
    for operation in execution.graph.operations:
        if any(id(tensor) in names or producer in found for tensor, producer in operation.inputs):
            found.add(operation.index)
    return found


def _find_boundary(
    execution: Execution, base: nn.Module | None, weighted: set[int]
) -> tuple[set[int], dict[int, torch.Tensor]]:
    """Finds the operations between the boundary and the logits, and the boundary tensors by id.

    The boundary is where the path leaves the base model; without such a place, where the token axis collapses.
    """
    operations = execution.graph.operations
    # What the base model makes after its last hidden states (BERT's pooler) belongs to the head: it reads tokens, and a
    # checkpoint may lack its weights.
    last = last_hidden_state(execution, base)
    after = set[int]() if last is None else execution.graph.after(last)

    outer = _outputs_picked_from(execution)

    def leaves_base(tensor: torch.Tensor, producer: int) -> bool:
        if id(tensor) in outer:
            return False
        if tensor is last:
            return True
        in_time = producer in weighted and producer not in after
        return in_time and base in operations[producer].modules and has_token_axis(execution, tensor)

    seen, hidden = _walk_back(execution, leaves_base)
    if hidden:
        return seen, hidden
    boundary = {outer.get(item, item) for item in _collapsing_tensors(execution, seen, weighted)}
    return _walk_back(execution, lambda tensor, producer: id(tensor) in boundary)


def _outputs_picked_from(execution: Execution) -> dict[int, int]:
    """Finds linear maps of whose columns only some are scores: maps the id of each output to that of the map's input.

    Such a map belongs to the head, even inside of what counts as the base model: a language model's last layer.
    """
    graph = execution.graph
    picked: set[int] = set()
    found: dict[int, int] = {}
    waiting = [graph.producer(tensor) for tensor in execution.logits]
    seen = set[int]()
    while waiting:
        index = waiting.pop()
        if index < 0 or index in seen:
            continue
        seen.add(index)
        operation = graph.operations[index]
        if any(isinstance(tensor, nn.Parameter) for tensor, _ in operation.inputs):
            if operation.name == "linear" and operation.outputs[0].shape[-1] in picked:
                found.update((id(output), id(operation.args[0])) for output in operation.outputs)
            continue
        if operation.name in _PICKING and rows_on_last_axis(operation) is not None:
            picked.add(operation.args[0].shape[-1])
        waiting += [producer for _, producer in operation.inputs]
    if not found:
        return {}
    through = {
        id(output): next(iter(found.values()))
        for index in seen
        for output in graph.operations[index].outputs
        if output.dim() and output.shape[-1] in picked
    }
    return through | found


_PICKING = {"__getitem__", "select", "index_select"}


def last_hidden_state(execution: Execution, base: nn.Module | None) -> torch.Tensor | None:
    """Returns what the base model returned first, or as `last_hidden_state`, if it still has its token axis.

    A tensor of three or more axes has one, even if this input has a single token.
    """
    returned = execution.graph.returned.get(base) if base is not None else None
    if isinstance(returned, Mapping):
        returned = returned.get("last_hidden_state")
    elif isinstance(returned, tuple | list) and returned:
        returned = returned[0]
    if not isinstance(returned, torch.Tensor) or not returned.is_floating_point():
        return None
    is_ranked = returned.dim() >= 3 and returned.shape[0] == execution.probe.batch
    return returned if is_ranked or has_token_axis(execution, returned) else None


def _walk_back(
    execution: Execution, is_boundary: Callable[[torch.Tensor, int], bool]
) -> tuple[set[int], dict[int, torch.Tensor]]:
    """Collects the operations from the logits back to the boundary, and the boundary tensors by id."""
    hidden: dict[int, torch.Tensor] = {}

    def is_inside(tensor: torch.Tensor, producer: int) -> bool:
        if producer < 0 or not is_boundary(tensor, producer):
            return True
        hidden[id(tensor)] = tensor
        return False

    ends = map(execution.graph.producer, execution.logits)
    return {operation.index for operation in execution.graph.before(*ends, through=is_inside)}, hidden


def _collapsing_tensors(execution: Execution, path: set[int], weighted: set[int]) -> set[int]:
    """Collects the ids of the tensors whose token axis the next operation removes, or that feed the class scores."""
    found: set[int] = set()
    for index in path:
        operation = execution.graph.operations[index]
        if any(has_token_axis(execution, output) for output in operation.outputs):
            continue
        for tensor, producer in operation.inputs:
            if producer in weighted and has_token_axis(execution, tensor):
                found.add(_before_class_axis(execution, _before_mask(execution, tensor, weighted)))
    # No operation removes the token axis where each token has a score.
    return found or {_before_class_axis(execution, tensor) for tensor in execution.logits}


def _before_mask(execution: Execution, tensor: torch.Tensor, weighted: set[int]) -> torch.Tensor:
    """Returns the tensor that was multiplied by a mask (what depends on no parameter) or filled by it; otherwise
    the same.
    """
    producer = execution.graph.producer(tensor)
    while execution.graph.operations[producer].name in _MASKING:
        inputs = execution.graph.operations[producer].inputs
        masked = [item for item, made_by in inputs if made_by in weighted and item.shape == tensor.shape]
        if len(masked) != 1 or len({made_by for _, made_by in inputs if made_by in weighted}) != 1:
            break
        if any(isinstance(item, nn.Parameter) for item, _ in inputs):  # a learned scale is not a mask
            break
        # The mask is part of the pooling: hidden states that begin behind it would have no token rule to show.
        tensor = masked[0]
        producer = execution.graph.producer(tensor)
    return tensor


def _before_class_axis(execution: Execution, tensor: torch.Tensor) -> int:
    """Returns the id of the tensor that a projection to the classes reads; of `tensor` itself if it isn't scores."""
    classes = execution.logits[0].shape[-1]
    while tensor.shape[-1] == classes and execution.graph.producer(tensor) >= 0:
        inputs = execution.graph.operations[execution.graph.producer(tensor)].inputs
        before = next((item for item, _ in inputs if has_token_axis(execution, item)), None)
        if before is None:
            break
        tensor = before
    return id(tensor)


def has_token_axis(execution: Execution, tensor: torch.Tensor) -> bool:
    """True if `tensor` still holds one entry per token (or patch, or pixel): two axes beside the batch."""
    probe = execution.probe
    if not tensor.is_floating_point():
        return False
    if probe.length and any(size in (probe.length, probe.batch * probe.length) for size in tensor.shape):
        return True
    return sum(size > 1 for size in tensor.shape[1:]) > 1


IMAGE_RANK = 4
_MASKING = {"mul", "masked_fill", "where"}


def _depending_on_hidden(
    execution: Execution, candidates: set[int], hidden: dict[int, torch.Tensor]
) -> tuple[tuple[Operation, ...], set[int]]:
    """Selects the candidates that depend on the hidden states, and collects the ids of all tensors on the way."""
    derived = set(hidden)
    operations = []
    for index in sorted(candidates):
        operation = execution.graph.operations[index]
        if any(id(tensor) in derived for tensor, _ in operation.inputs):
            operations.append(operation)
            derived.update(id(output) for output in operation.outputs)
    return tuple(operations), derived


def read_sources(execution: Execution, head: HeadSlice, names: ModelNames) -> tuple[HiddenSource, ...]:
    """Names one source for each of the head's hidden states, in their order."""
    layers = [_layer_of(execution, head, tensor) for tensor in head.hidden]
    producers = [execution.graph.producer(tensor) for tensor in head.hidden]
    modules = [names.path(execution.graph.operations[index]) if index >= 0 else "" for index in producers]
    if len(head.hidden) == 1:
        layer = layers[0]
        text = "h" if layer in (None, -1) else f"h[{layer}]"
        return (HiddenSource(text, layer, modules[0]),)
    if None not in layers and len(set(layers)) == len(layers):
        return tuple(HiddenSource(f"h[{layer}]", layer, module) for layer, module in zip(layers, modules, strict=True))
    # Several states of one layer, or of unknown layers, are numbered as they were made.
    order = sorted(range(len(head.hidden)), key=lambda at: producers[at])
    numbers = {at: number for number, at in enumerate(order, 1)}
    return tuple(HiddenSource(f"h{numbers[at]}", None, module) for at, module in enumerate(modules))


def _layer_of(execution: Execution, head: HeadSlice, tensor: torch.Tensor) -> int | None:
    """Returns the place of `tensor` among the layers that the base model returned, from the end; None if it isn't
    there.
    """
    if tensor is last_hidden_state(execution, head.base):
        return -1
    returned = execution.graph.returned.get(head.base) if head.base is not None else None
    for layers in _layer_sequences(returned):
        for at, item in enumerate(layers):
            if item is tensor:
                return at - len(layers)
    return None


def _layer_sequences(value: Any) -> Iterator[tuple[Any, ...]]:
    """Yields every sequence of tensors of one shape inside what a module returned: its layers."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _layer_sequences(item)
    elif isinstance(value, tuple | list):
        tensors = [item for item in value if isinstance(item, torch.Tensor)]
        if len(tensors) > 1 and len(tensors) == len(value) and len({item.shape for item in tensors}) == 1:
            yield tuple(tensors)
        for item in value:
            yield from _layer_sequences(item)
