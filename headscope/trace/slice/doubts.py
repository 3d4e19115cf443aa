"""Reasons why headscope reports no head path: rows taken one by one, values that leave PyTorch, an unclear base."""

from collections.abc import Iterator

import torch
from torch import nn

from headscope.trace.record.base import composite_children, declared_base
from headscope.trace.record.execution import Execution
from headscope.trace.record.recorder import BRANCHES, Exit, Operation
from headscope.trace.slice.head_slice import HeadSlice, exits_from, last_hidden_state
from headscope.trace.slice.stages import place_of

_RANDOM = {
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "multinomial",
    "normal", "uniform", "exponential", "cauchy", "geometric", "log_normal", "random", "poisson", "binomial",
    "gumbel_softmax",
}  # fmt: skip
_AT_EACH_CALL = "the head may read other positions at each call"


def doubts(execution: Execution, head: HeadSlice) -> tuple[str, ...]:
    """Why the head path of a recorded head is open, each as a sentence; empty where nothing speaks against it."""
    # The first of each kind is enough: one is reason not to trust the path, and a loop would give one for each row.
    found = [_row_sentence(operation) for operation in head.operations if _takes_rows(operation, execution, head)][:1]
    found += [_told_of_random(item) for item in _random_choices(execution, head)][:1]
    if execution.draws_from:
        found.append(f"the forward draws random numbers from {execution.draws_from}, so {_AT_EACH_CALL}")
    found += [_told_of_exit(item) for item in exits_from(execution, head.base)][:1]
    if head.base is not None and declared_base(execution.model) is None:
        found += [*_other_encoders(execution, head, head.base), *_base_after_another(execution, head, head.base)]
    return tuple(found)


def _takes_rows(operation: Operation, execution: Execution, head: HeadSlice) -> bool:
    """Whether an operation takes single rows out of the batch: `hidden[i]`, or a loop over `hidden`."""
    source = operation.args[0] if operation.args else None
    if not isinstance(source, torch.Tensor) or id(source) not in head.derived or not source.dim():
        return False
    if source.shape[0] != execution.probe.batch or source.dim() == 1:
        return False
    if operation.name == "__getitem__":
        items = operation.args[1] if isinstance(operation.args[1], tuple) else (operation.args[1],)
        return type(items[0]) is int
    rest = [item for item in (*operation.args[1:], *operation.kwargs.values()) if type(item) is int]
    return (operation.name == "unbind" and rest in ([], [0])) or (operation.name == "select" and rest[:1] == [0])


def _row_sentence(operation: Operation) -> str:
    where = place_of(operation)
    return f"{where} takes single rows out of the batch, and headscope reads only what is done to all rows alike"


def _random_choices(execution: Execution, head: HeadSlice) -> Iterator[Operation]:
    """The operations outside the base model that draw random numbers for the scores, or hand them out of PyTorch."""
    drawn = [
        item
        for item in execution.graph.operations
        if item.name.rstrip("_") in _RANDOM and (head.base is None or head.base not in item.modules)
    ]
    if not drawn:
        return
    graph = execution.graph
    ends = (*execution.logits, *(item.tensor for item in graph.exits))
    read = {operation.index for operation in graph.before(*map(graph.producer, ends))}
    yield from (operation for operation in drawn if operation.index in read)


def _told_of_random(operation: Operation) -> str:
    return f"{place_of(operation)} draws random numbers, so {_AT_EACH_CALL}"


def _told_of_exit(found: Exit) -> str:
    where = place_of(found)
    if found.name in BRANCHES:
        return f"the forward branches on a floating-point value at {where}, so other numbers may take another path"
    return f"{where} takes values out of PyTorch ({found.name}), and headscope can't see whether they reach the scores"


def _other_encoders(execution: Execution, head: HeadSlice, base: nn.Module) -> Iterator[str]:
    """Another module that makes hidden states from the inputs, beside the one that counts as the base model."""
    if not head.beside:
        return
    names, others = execution.names, set(composite_children(execution.model)) - {base}
    operation = execution.graph.operations[min(head.beside)]
    other = next(item for item in operation.modules if item in others)
    own = names.modules.get(id(base), type(base).__name__)
    yield (
        f"the scores depend on the hidden states of {names.modules[id(other)]} as well as on those of {own}, and "
        "nothing declares which of them is the base model"
    )


def _base_after_another(execution: Execution, head: HeadSlice, base: nn.Module) -> Iterator[str]:
    """A module that counts as the base model, reads what another one made, and may be the head all the same.

    It may be where it pools the hidden states itself, and where no weights come after it.
    """
    names, own = execution.names, {id(parameter) for parameter in base.parameters()}
    leaves = {id(tensor) for operation in head.operations for tensor, _ in operation.inputs}
    has_weights_after = bool(leaves & names.parameters.keys() - own)
    if has_weights_after and last_hidden_state(execution, base) is not None:
        return
    others = set(composite_children(execution.model)) - {base}
    made = [execution.graph.producer(tensor) for tensor in head.hidden]
    if not any(base in execution.graph.operations[index].modules for index in made):
        return
    for operation in execution.graph.before(*made):
        module = next((item for item in operation.modules if item in others), None)
        if module is not None:
            name = names.modules.get(id(base), type(base).__name__)
            why = "pools what it makes" if has_weights_after else "no weights come after it"
            yield (
                f"{name} reads what {names.modules[id(module)]} makes, and {why}: it may be the base model or the "
                "head, and nothing declares which"
            )
            return
