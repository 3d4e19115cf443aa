"""Slice of the graph that is the head: from the hidden states that the base model hands over to the logits."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from headscope.core.facts import HiddenSource
from headscope.core.trace.record.base import base_below_output_embeddings, composite_children, declared_base
from headscope.core.trace.record.execution import Execution
from headscope.core.trace.record.indexing import rows_on_last_axis
from headscope.core.trace.record.recorder import Exit, Operation


@dataclass(frozen=True, slots=True)
class HeadSlice:
    """Operations of the head in the order in which `execution` ran them.

    `hidden` are the tensors at which the slice begins; `derived` are the ids of all tensors on the way from
    there to the logits; `live` are the names of the parameters and persistent buffers with a path to the logits.
    `beside` are the indices of the operations of other encoders, which reach the head without the hidden states.
    """

    execution: Execution
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
    names = execution.names
    # What the logits depend on, or may depend on through values that left PyTorch.
    left = [item.tensor for item in exits_from(execution, base)]
    reached = {id(tensor) for tensor in left}
    for operation in execution.graph.before(*execution.logits, *left):
        reached.update(map(id, operation.inputs))
    # A base model may be a whole language model. Where tokens' scores are picked by their numbers, the map that makes
    # them is found; any other use of its scores begins where the language model's own base model ends.
    picked = _outputs_picked_from(execution)
    inside = (output for item in execution.graph.operations if base in item.modules for output in item.outputs)
    inner = base if any(id(output) in picked for output in inside) else base_below_output_embeddings(base)
    candidates, hidden = _find_boundary(execution, inner, _made_from_parameters(execution), picked)
    operations, derived = _depending_on_hidden(execution, candidates, hidden)
    return HeadSlice(
        execution=execution,
        operations=operations,
        hidden=tuple(hidden.values()),
        derived=frozenset(derived),
        live=frozenset(name for key, name in (names.buffers | names.parameters).items() if key in reached),
        base=base,
        beside=_operations_of_other_encoders(execution, operations, derived, base),
    )


def same_head(
    head: HeadSlice, execution: Execution, hidden: tuple[torch.Tensor, ...], base: nn.Module | None
) -> HeadSlice:
    """Finds the slice of `head` in another run of it, which begins at other tensors."""
    boundary = {id(tensor): tensor for tensor in hidden}
    candidates, _ = _walk_back(execution, lambda tensor: id(tensor) in boundary)
    operations, derived = _depending_on_hidden(execution, candidates, boundary)
    return replace(
        head, execution=execution, operations=operations, hidden=hidden, derived=frozenset(derived), base=base
    )


def _operations_of_other_encoders(
    execution: Execution, operations: tuple[Operation, ...], derived: set[int], base: nn.Module | None
) -> frozenset[int]:
    """Finds the operations of composite modules that make hidden states from the inputs, beside an undeclared base."""
    # A class that names its base model says where the hidden states are; only a guessed base may be one encoder of two.
    if base is None or declared_base(execution.model) is not None:
        return frozenset()
    others = set(composite_children(execution.model)) - {base}
    side = (tensor for operation in operations for tensor in operation.inputs if id(tensor) not in derived)
    found = [
        (operation, made_in)
        for operation in execution.graph.before(*side)
        if (made_in := next((item for item in operation.modules if item in others), None)) is not None
    ]
    encoders = {made_in for item, made_in in found if any(has_token_axis(execution, output) for output in item.outputs)}
    return frozenset(operation.index for operation, made_in in found if made_in in encoders)


def exits_from(execution: Execution, base: nn.Module | None) -> Iterator[Exit]:
    """Yields the places where values made from parameters leave PyTorch on the way to the scores, so that their path is
    not recorded.

    What a base model does inside comes before its hidden states; what is made from the scores comes after them.
    """
    graph = execution.graph
    if not graph.exits:
        return
    weighted = _made_from_parameters(execution)
    after = {id(tensor) for tensor in execution.logits}
    for operation in graph.operations:
        if any(id(tensor) in after for tensor in operation.inputs):
            after.update(id(output) for output in operation.outputs)
    for item in graph.exits:
        is_outside = base is None or base not in item.modules
        is_weighted = id(item.tensor) in execution.names.parameters or graph.producer(item.tensor) in weighted
        if is_outside and is_weighted and id(item.tensor) not in after:
            yield item


def _made_from_parameters(execution: Execution) -> set[int]:
    """Collects the indices of the operations whose result depends on a parameter: masks and positions do not."""
    found, names, graph = set[int](), execution.names.parameters, execution.graph
    for operation in graph.operations:
        if any(id(tensor) in names or graph.producer(tensor) in found for tensor in operation.inputs):
            found.add(operation.index)
    return found


def _find_boundary(
    execution: Execution, base: nn.Module | None, weighted: set[int], outer: dict[int, set[int]]
) -> tuple[set[int], dict[int, torch.Tensor]]:
    """Finds the operations between the boundary and the logits, and the boundary tensors by id.

    `outer` is what `_outputs_picked_from` gives.

    The boundary is where the path leaves the base model; without such a place, where the token axis collapses.
    """
    operations = execution.graph.operations
    # What the base model makes after its last hidden states (BERT's pooler) belongs to the head: it reads tokens, and a
    # checkpoint may lack its weights.
    last = last_hidden_state(execution, base)
    after = set[int]() if last is None else execution.graph.after(last)

    def leaves_base(tensor: torch.Tensor) -> bool:
        if id(tensor) in outer:
            return False
        if tensor is last:
            return True
        producer = execution.graph.producer(tensor)
        in_time = producer in weighted and producer not in after
        return in_time and base in operations[producer].modules and has_token_axis(execution, tensor)

    seen, hidden = _walk_back(execution, leaves_base)
    if hidden:
        return seen, hidden
    collapsing = _collapsing_tensors(execution, seen, weighted)
    boundary = {source for item in collapsing for source in outer.get(item, {item})}
    return _walk_back(execution, lambda tensor: id(tensor) in boundary)


def _outputs_picked_from(execution: Execution) -> dict[int, set[int]]:
    """Finds linear maps of whose columns only some are scores: maps the id of each output, and of what is made of it,
    to those of the maps' inputs.

    Such a map belongs to the head, even inside of what counts as the base model: a language model's last layer.
    """
    picked: set[int] = set()
    maps: list[Operation] = []
    seen: set[Operation] = set()
    waiting = list(execution.logits)
    while waiting:
        operation = execution.graph.maker(waiting.pop())
        if operation is None or operation in seen:
            continue
        seen.add(operation)
        if any(isinstance(tensor, nn.Parameter) for tensor in operation.inputs):
            if operation.name == "linear":
                maps.append(operation)
            continue
        if operation.name in _PICKING and rows_on_last_axis(operation) is not None:
            picked.add(operation.argument(0, "input").shape[-1])
        waiting += operation.inputs
    # Another path may lead to a map before the one through the picks does, so the widths count when all are known.
    through = {
        id(output): {id(operation.argument(0, "input"))}
        for operation in maps
        for output in operation.outputs
        if output.dim() and output.shape[-1] in picked
    }
    for operation in sorted(seen if through else (), key=lambda item: item.index):
        sources = {source for tensor in operation.inputs for source in through.get(id(tensor), ())}
        if sources:
            through.update((id(output), sources) for output in operation.outputs)
    return through


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
    execution: Execution, is_boundary: Callable[[torch.Tensor], bool]
) -> tuple[set[int], dict[int, torch.Tensor]]:
    """Collects the operations from the logits back to the boundary, and the boundary tensors by id."""
    hidden: dict[int, torch.Tensor] = {}

    def is_inside(tensor: torch.Tensor) -> bool:
        if execution.graph.maker(tensor) is None or not is_boundary(tensor):
            return True
        hidden[id(tensor)] = tensor
        return False

    inside = execution.graph.before(*execution.logits, through=is_inside)
    return {operation.index for operation in inside}, hidden


def _collapsing_tensors(execution: Execution, path: set[int], weighted: set[int]) -> set[int]:
    """Collects the ids of the tensors whose token axis the next operation removes, or that feed the class scores."""
    found: set[int] = set()
    for index in path:
        operation = execution.graph.operations[index]
        if any(has_token_axis(execution, output) for output in operation.outputs):
            continue
        for tensor in operation.inputs:
            if execution.graph.producer(tensor) in weighted and has_token_axis(execution, tensor):
                found.add(_before_class_axis(execution, _before_mask(execution, tensor, weighted)))
    # No operation removes the token axis where each token has a score.
    return found or {_before_class_axis(execution, tensor) for tensor in execution.logits}


def _before_mask(execution: Execution, tensor: torch.Tensor, weighted: set[int]) -> torch.Tensor:
    """Returns the tensor that was multiplied by a mask (what depends on no parameter) or filled by it; otherwise
    the same.
    """
    graph = execution.graph
    while (made := graph.maker(tensor)) is not None and made.name in _MASKING:
        makers = {index for item in made.inputs if (index := graph.producer(item)) in weighted}
        masked = [item for item in made.inputs if graph.producer(item) in weighted and item.shape == tensor.shape]
        if len(masked) != 1 or len(makers) != 1:
            break
        if any(isinstance(item, nn.Parameter) for item in made.inputs):  # a learned scale is not a mask
            break
        # The mask is part of the pooling: hidden states that begin behind it would have no token rule to show.
        tensor = masked[0]
    return tensor


def _before_class_axis(execution: Execution, tensor: torch.Tensor) -> int:
    """Returns the id of the tensor that a projection to the classes reads; of `tensor` itself if it isn't scores."""
    classes = execution.logits[0].shape[-1]
    while tensor.shape[-1] == classes and (made := execution.graph.maker(tensor)) is not None:
        before = next((item for item in made.inputs if has_token_axis(execution, item)), None)
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
        if any(id(tensor) in derived for tensor in operation.inputs):
            operations.append(operation)
            derived.update(id(output) for output in operation.outputs)
    return tuple(operations), derived


def read_sources(head: HeadSlice) -> tuple[HiddenSource, ...]:
    """Names one source for each of the head's hidden states, in their order."""
    execution = head.execution
    layers = [_layer_of(head, tensor) for tensor in head.hidden]
    makers = [execution.graph.maker(tensor) for tensor in head.hidden]
    modules = ["" if made is None else execution.names.path(made) for made in makers]
    if len(head.hidden) == 1:
        layer = layers[0]
        text = "h" if layer in (None, -1) else f"h[{layer}]"
        return (HiddenSource(text, layer, modules[0]),)
    if None not in layers and len(set(layers)) == len(layers):
        return tuple(HiddenSource(f"h[{layer}]", layer, module) for layer, module in zip(layers, modules, strict=True))
    # Several states of one layer, or of unknown layers, are numbered as they were made.
    order = sorted(range(len(head.hidden)), key=lambda at: execution.graph.producer(head.hidden[at]))
    numbers = {at: number for number, at in enumerate(order, 1)}
    return tuple(HiddenSource(f"h{numbers[at]}", None, module) for at, module in enumerate(modules))


def _layer_of(head: HeadSlice, tensor: torch.Tensor) -> int | None:
    """Returns the place of `tensor` among the layers that the base model returned, from the end; None if it isn't
    there.
    """
    if tensor is last_hidden_state(head.execution, head.base):
        return -1
    returned = head.execution.graph.returned.get(head.base) if head.base is not None else None
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
