"""A recorded head without the model that it was recorded on: small enough to be kept, and run on any numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from headscope.errors import Unsupported
from headscope.trace.record.execution import Execution
from headscope.trace.record.recorder import Graph, Operation
from headscope.trace.record.trees import tensors_in
from headscope.trace.replay.replay import Replay, needed_operations, replay_head
from headscope.trace.slice.head_slice import HeadSlice

_MOST_NUMBERS = 300_000_000
"""Single precision and no gradient for most runs: about a gigabyte."""


@dataclass(frozen=True, slots=True)
class HeadProgram:
    """The operations of a head; `tensors` are the parameters and buffers that they read, by name.

    `why_not` says why they can't be run again, "" where they can.
    """

    execution: Execution
    head: HeadSlice
    tensors: Mapping[str, torch.Tensor]
    why_not: str = ""

    def run(self, given: Mapping[str, torch.Tensor], hidden: Sequence[torch.Tensor], *, exact: bool = False) -> Replay:
        """The head on the given parameters and hidden states; parameters that aren't given are made up.

        Raises Unsupported where it can't be run.
        """
        if self.why_not:
            raise Unsupported(self.why_not, "")
        values = {id(self.tensors[name]): value for name, value in given.items() if name in self.tensors}
        values |= {id(tensor): value for tensor, value in zip(self.head.hidden, hidden, strict=True)}
        return replay_head(self.execution, self.head, values, exact=exact, most=_MOST_NUMBERS)


def head_program(execution: Execution, head: HeadSlice, unfaithful: Sequence[str] = ()) -> HeadProgram:
    """The program of a head, cut off the graph and the model; `unfaithful` says why its recording can't be trusted."""
    try:
        needed = set(needed_operations(execution, head))
    except Unsupported as err:
        return HeadProgram(execution, head, {}, err.message)
    kept = {index: replace(execution.graph.operations[index], modules=()) for index in needed}
    operations = tuple(kept[item.index] for item in head.operations)
    names = {**execution.names.buffers, **execution.names.parameters}
    read = {id(tensor): tensor for item in kept.values() for tensor in tensors_in((item.args, item.kwargs))}
    return HeadProgram(
        replace(execution, model=nn.Identity(), graph=_cut_graph(execution, kept), loss=None, others=()),
        replace(head, operations=operations, base=None),
        {names[key]: tensor for key, tensor in read.items() if key in names},
        next(iter(unfaithful), "" if kept else "no operation between hidden states and scores was recorded"),
    )


def _cut_graph(execution: Execution, kept: Mapping[int, Operation]) -> Graph:
    """The graph with nothing but the kept operations, which stay at their indices."""
    graph = execution.graph
    used = [tensors_in((item.args, item.kwargs, item.outputs, item.writes)) for item in kept.values()]
    alive = {id(tensor) for tensors in (*used, execution.logits) for tensor in tensors}
    last = max(kept, default=-1)
    return Graph(
        operations=[kept.get(index, kept[last]) for index in range(last + 1)],
        producers={key: index for key, index in graph.producers.items() if key in alive},
        memory=graph.memory,
        stale=graph.stale & kept.keys(),
    )
