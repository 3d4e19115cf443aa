"""Reasons why headscope reports no head path: rows taken one by one, values that leave PyTorch, an unclear base."""

from collections.abc import Iterator

import torch
from torch import nn

from headscope.core.trace.record.base import composite_children, declared_base
from headscope.core.trace.record.recorder import BRANCHES, Operation
from headscope.core.trace.slice.head_slice import HeadSlice, exits_from, last_hidden_state
from headscope.core.trace.slice.stages import place_of

_RANDOM = {
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "multinomial",
    "normal", "uniform", "exponential", "cauchy", "geometric", "log_normal", "random", "poisson", "binomial",
    "gumbel_softmax",
}  # fmt: skip
_AT_EACH_CALL = "the head may read other positions at each call"


def doubts(head: HeadSlice) -> tuple[str, ...]:
    """Says why the head path of a recorded head is open, in sentences; empty if nothing speaks against the path."""
    execution = head.execution
    # The first of each kind is enough: one is reason not to trust the path, and a loop would give one for each row.
    row = next((operation for operation in head.operations if _takes_rows(operation, head)), None)
    drawn = next(_random_choices(head), None)
    found: list[str] = []
    if row is not None:
        of_rows = "takes single rows out of the batch, and headscope reads only what is done to all rows alike"
        found.append(f"{place_of(row)} {of_rows}")
    if drawn is not None:
        found.append(f"{place_of(drawn)} draws random numbers, so {_AT_EACH_CALL}")
    if execution.draws_from:
        found.append(f"the forward draws random numbers from {execution.draws_from}, so {_AT_EACH_CALL}")
    left = next(exits_from(execution, head.base), None)
    if left is not None and left.name in BRANCHES:
        branch = f"the forward branches on a floating-point value at {place_of(left)}"
        found.append(f"{branch}, so other values may take another path")
    elif left is not None:
        unseen = f"takes values out of PyTorch ({left.name}), and headscope can't see whether they reach the scores"
        found.append(f"{place_of(left)} {unseen}")
    if head.base is not None and declared_base(execution.model) is None:
        found += [*_other_encoders(head, head.base), *_base_after_another(head, head.base)]
    return tuple(found)


def _takes_rows(operation: Operation, head: HeadSlice) -> bool:
    """True if an operation takes single rows out of the batch: `hidden[i]`, or a loop over `hidden`."""
    source = operation.args[0] if operation.args else None
    if not isinstance(source, torch.Tensor) or id(source) not in head.derived or not source.dim():
        return False
    if source.shape[0] != head.execution.probe.batch or source.dim() == 1:
        return False
    if operation.name == "__getitem__":
        items = operation.args[1] if isinstance(operation.args[1], tuple) else (operation.args[1],)
        return type(items[0]) is int
    rest = [item for item in (*operation.args[1:], *operation.kwargs.values()) if type(item) is int]
    return (operation.name == "unbind" and rest in ([], [0])) or (operation.name == "select" and rest[:1] == [0])


def _random_choices(head: HeadSlice) -> Iterator[Operation]:
    """Yields the operations outside the base model that draw random numbers for the scores, or hand them out of
    PyTorch.
    """
    graph = head.execution.graph
    drawn = [
        item
        for item in graph.operations
        if item.name.rstrip("_") in _RANDOM and (head.base is None or head.base not in item.modules)
    ]
    if not drawn:
        return
    ends = (*head.execution.logits, *(item.tensor for item in graph.exits))
    read = {operation.index for operation in graph.before(*ends)}
    yield from (operation for operation in drawn if operation.index in read)


def _other_encoders(head: HeadSlice, base: nn.Module) -> Iterator[str]:
    """Reports another module that makes hidden states from the inputs, beside the one that counts as the base model."""
    if not head.beside:
        return
    execution = head.execution
    names, others = execution.names, set(composite_children(execution.model)) - {base}
    operation = execution.graph.operations[min(head.beside)]
    other = next(item for item in operation.modules if item in others)
    own = names.modules.get(id(base), type(base).__name__)
    yield (
        f"the scores depend on the hidden states of {names.modules[id(other)]} as well as on those of {own}, and "
        "nothing declares which of them is the base model"
    )


def _base_after_another(head: HeadSlice, base: nn.Module) -> Iterator[str]:
    """Reports a module that counts as the base model, reads what another one made, and may be the head.

    It may be the head if it pools the hidden states, or if no weights come after it.
    """
    execution, names = head.execution, head.execution.names
    own = {id(parameter) for parameter in base.parameters()}
    leaves = {id(tensor) for operation in head.operations for tensor in operation.inputs}
    has_weights_after = bool(leaves & names.parameters.keys() - own)
    if has_weights_after and last_hidden_state(execution, base) is not None:
        return
    others = set(composite_children(execution.model)) - {base}
    makers = map(execution.graph.maker, head.hidden)
    if not any(base in made.modules for made in makers if made is not None):
        return
    for operation in execution.graph.before(*head.hidden):
        module = next((item for item in operation.modules if item in others), None)
        if module is not None:
            name = names.modules.get(id(base), type(base).__name__)
            why = "pools what it makes" if has_weights_after else "no weights come after it"
            yield (
                f"{name} reads what {names.modules[id(module)]} makes, and {why}: it may be the base model or the "
                "head, and nothing declares which"
            )
            return
