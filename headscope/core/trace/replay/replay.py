"""Recorded heads that run again on real values: the same functions with the same arguments, floats made up.

Hidden states and parameters are drawn at random; integers are those of the probe. What the head reads beside the
hidden states (a mask made floating, a count of tokens) is computed again from the probe's integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import torch
from torch import nn

from headscope.core.facts.heads.head import MOST_RUN_AGAIN
from headscope.core.trace.record.execution import Execution
from headscope.core.trace.record.randomness import OwnRandomness
from headscope.core.trace.record.recorder import Graph, Operation, run_again
from headscope.core.trace.record.trees import tensors_in
from headscope.core.trace.replay.picks import inputs_behind, is_mask_of_rows
from headscope.core.trace.slice.head_slice import HeadSlice
from headscope.core.trace.slice.stages import place_of
from headscope.errors import Unsupported

_MOST_SIDE_OPERATIONS = 2000
# The forward and its replay may run in other precisions and through other kernels, so equal scores differ a little. A
# head that was recorded wrongly is off by far more.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4
# Larger numbers saturate a tanh, which then passes no gradient: with a spread of 5 the gradients of BERT's pooler
# vanish in single precision, and the proof finds 0 of 11 positions.
_SPREAD = 0.5
_SEED = 20
_DIFFERENT = "run again on the same hidden states, the recorded operations give other scores than the forward did"
_CUTS_GRADIENT = {"detach", "data"}
"""The same values without their gradient: the scores depend on the hidden states all the same."""


@dataclass(slots=True)
class Replay:
    """One run of the head on real values: the hidden states it began with and the logits it returned.

    `given` are values for recorded tensors, by their id. `dtype` is that of all floats; None keeps the recorded ones.
    `results` and `leaves` are the values of this run, by the id of the recorded tensor.
    """

    head: HeadSlice
    given: dict[int, torch.Tensor]
    dtype: torch.dtype | None
    generator: torch.Generator
    hidden: tuple[torch.Tensor, ...] = ()
    logits: tuple[torch.Tensor, ...] = ()
    results: dict[int, torch.Tensor] = field(default_factory=dict)
    leaves: dict[int, torch.Tensor] = field(default_factory=dict)

    def value(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the value of a recorded tensor in this run, without gradient."""
        return self.differentiable(tensor).detach()

    def differentiable(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the value of a recorded tensor in this run, with its gradient history."""
        if id(tensor) in self.leaves:
            return self.leaves[id(tensor)]
        known = self.results.get(id(tensor))
        return self._leaf_value(tensor) if known is None else known

    def run_again(
        self, operations: tuple[Operation, ...], given: dict[int, torch.Tensor], output: torch.Tensor
    ) -> torch.Tensor:
        """Computes `output` again from recorded operations, with other values for the tensors in `given`, by their
        id. Raises ValueError where the last of them doesn't make it: nothing would be computed from `given`.
        """
        if not any(output is made for operation in operations[-1:] for made in operation.outputs):
            raise ValueError("a value is made by other operations than those that run again")
        again = replace(self, results={**self.results}, leaves={**self.leaves, **given})
        again.run(operations)
        return again.results[id(output)].detach()

    def run(self, operations: Iterable[Operation]) -> None:
        """Runs recorded operations on the values of this run. Raises Unsupported where one can't be run."""
        for operation in operations:
            try:
                # The proofs ask what the scores depend on. A `detach` in the head cuts the gradient and not the
                # dependence.
                real, is_cut = self._real_argument, operation.name in _CUTS_GRADIENT
                outputs = (real(operation.args[0]),) if is_cut else run_again(operation, real)
            except Exception as err:
                raise Unsupported(f"{operation.name} cannot be run again on real values: {err}", "") from err
            self.results.update(zip(map(id, operation.outputs), outputs, strict=True))

    def _real_argument(self, value: Any) -> Any:
        """Returns what stands for an argument of a recorded call in this run."""
        if isinstance(value, torch.Tensor):
            return self.differentiable(value)
        if isinstance(value, torch.device):
            return torch.device("cpu")
        # A head that casts to half precision is replayed in single precision: the proofs compare to 1e-3, and rounding
        # in float16 or bfloat16 can exceed that.
        if isinstance(value, torch.dtype) and value.is_floating_point:
            return self.dtype or value
        return value

    def _leaf_value(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a real tensor for one that nothing in the slice made; the same at every use."""
        is_hidden = any(tensor is item for item in self.head.hidden)
        made = self.given.get(id(tensor))
        if made is None and not tensor.is_meta and not is_hidden and not _proves_nothing(tensor):
            held = self.head.execution.graph.memory.value(tensor)
            if held is None:
                raise Unsupported("a value that the head reads was overwritten later", "")
            return self._as_computed(held.detach(), tensor)
        if made is None:
            made = torch.randn(tensor.shape, generator=self.generator, device="cpu") * _SPREAD
            if not (isinstance(tensor, nn.Parameter) or is_hidden):
                made = made.abs() + _SPREAD  # a buffer may be a variance
            # Random integers would be indices out of range; 0 is one that every axis has.
            if not (tensor.is_floating_point() or tensor.is_complex()):
                made = torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
        self.leaves[id(tensor)] = self._as_computed(made.detach(), tensor)
        return self.leaves[id(tensor)]

    def _as_computed(self, value: torch.Tensor, recorded: torch.Tensor) -> torch.Tensor:
        usable = value.clone() if value.is_inference() else value  # autograd takes no tensor of the inference mode
        return usable.to("cpu", self.dtype or recorded.dtype if value.is_floating_point() else value.dtype)


def replay_head(
    head: HeadSlice,
    given: dict[int, torch.Tensor] | None = None,
    *,
    seed: int = _SEED,
    exact: bool = False,
    most: int | None = None,
) -> Replay:
    """Runs the slice again. `given` may hold other values for tensors, by their id: parameters, hidden states.

    It runs on the CPU. Floats are computed in single precision; with `exact` in the precision that was recorded. Raises
    Unsupported where an operation cannot be run again, or the slice holds more numbers than `most`. Global random state
    is untouched.
    """
    # Its parameters and results in total.
    sizes = {
        id(tensor): tensor.numel()
        for operation in head.operations
        for tensor in (*operation.inputs, *operation.outputs)
    }
    if sum(sizes.values()) > (most or MOST_RUN_AGAIN):
        raise Unsupported(f"the head holds {sum(sizes.values()):,} numbers, too many to be run again", "")
    dtype = None if exact else torch.float32
    replay = Replay(head, given or {}, dtype, torch.Generator().manual_seed(seed))
    needed = needed_operations(head)
    stale = next(iter(_stale_operations(head, needed)), None)
    if stale is not None:
        raise Unsupported(_alias_sentence(stale), "")
    replay.hidden = tuple(replay.differentiable(tensor).requires_grad_() for tensor in head.hidden)
    with torch.enable_grad(), OwnRandomness(seed):
        replay.run(head.execution.graph.operations[index] for index in needed)
    replay.logits = tuple(map(replay.differentiable, head.execution.logits))
    return replay


def unfaithful_reasons(head: HeadSlice) -> tuple[str, ...]:
    """Says why the recorded head is not what the forward ran: memory written unseen, or other scores than recorded.

    The scores are compared for runs on the CPU in single or double precision, where the head draws no random numbers.
    """
    try:
        needed = needed_operations(head)
    except Unsupported:
        needed = [operation.index for operation in head.operations]
    found = tuple(dict.fromkeys(map(_alias_sentence, _stale_operations(head, needed))))
    if found:
        return found
    try:
        return () if _gives_recorded_scores(head) else (_DIFFERENT,)
    except Unsupported:
        return ()


def known_hidden(head: HeadSlice) -> dict[int, torch.Tensor]:
    """Returns the numbers of the hidden states by their id, except those without values or overwritten since."""
    memory = head.execution.graph.memory
    values = {id(tensor): memory.value(tensor) for tensor in head.hidden if _is_comparable(tensor)}
    return {key: value.float() for key, value in values.items() if value is not None}


def _gives_recorded_scores(head: HeadSlice) -> bool:
    scores = head.execution.logits
    made = (output for operation in head.operations for output in operation.outputs if output.is_floating_point())
    if not all(map(_is_comparable, (*head.hidden, *made, *scores))):
        return True
    known = known_hidden(head)
    if len(known) < len(head.hidden):  # one was overwritten since
        return True
    again = replay_head(head, known)
    if _all_close(again.logits, scores):
        return True
    # A head that draws random numbers gives other scores for each seed. Then a difference says nothing against the
    # record.
    return not _all_close(again.logits, replay_head(head, known, seed=_SEED + 1).logits)


def _all_close(some: tuple[torch.Tensor, ...], others: tuple[torch.Tensor, ...]) -> bool:
    return all(_is_close(one.detach().float(), other.detach().float()) for one, other in zip(some, others, strict=True))


def _is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    finite = other[other.isfinite()]
    scale = max(float(finite.abs().max()), 1.0) if finite.numel() else 1.0
    return torch.allclose(one, other, _RELATIVE, _ABSOLUTE * scale, equal_nan=True)


def _is_comparable(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in {torch.float32, torch.float64}


def _stale_operations(head: HeadSlice, needed: list[int]) -> list[Operation]:
    graph = head.execution.graph
    return [graph.operations[index] for index in needed if index in graph.stale]


def _alias_sentence(operation: Operation) -> str:
    where = place_of(operation)
    return f"{where} uses memory that was written in place through another tensor, and headscope does not follow that"


def needed_operations(head: HeadSlice) -> list[int]:
    """Lists the indices of the slice's operations and of the side branches that feed them, in execution order.

    Raises Unsupported if there are too many.
    """
    # The hidden states are made up, so what made them is not run again: that would be the whole base model.
    boundary = {id(tensor) for tensor in head.hidden}
    needed = head.execution.graph.before(
        *(operation.outputs[0] for operation in head.operations),
        through=lambda tensor: tensor.is_meta and id(tensor) not in boundary,  # real values need no second run
    )
    found = {operation.index for operation in needed}
    if len(found) > len(head.operations) + _MOST_SIDE_OPERATIONS:
        raise Unsupported("the head reads too much of the base model beside the hidden states to be run again", "")
    return sorted(found)


def _proves_nothing(tensor: torch.Tensor) -> bool:
    """True if a real parameter hides what the head reads: a matrix of zeros stops gradients, NaN equals nothing."""
    if not (isinstance(tensor, nn.Parameter) and tensor.is_floating_point()):
        return False
    return (tensor.dim() > 1 and not bool(tensor.any())) or not bool(torch.isfinite(tensor).all())


class MaskKind(StrEnum):
    """Positions that a tensor of zeros and ones keeps, as formulas write it: those that are not padding, or padding."""

    KEPT = "mask"
    PADDING = "~mask"


def mask_kind(tensor: torch.Tensor, execution: Execution) -> MaskKind | None:
    """Returns the kind of mask that a tensor is; None if it isn't one.

    For texts it is compared with the rows of the probe; for other inputs with the one input that is called a mask. What
    two inputs make is the mask by chance only.
    """
    if tensor.is_meta or not is_binary(tensor) or len(inputs_behind([tensor], execution)) > 1:
        return None
    if execution.probe.rows:
        if is_mask_of_rows(tensor, execution.probe):
            return MaskKind.KEPT
        return MaskKind.PADDING if is_mask_of_rows(tensor == 0, execution.probe) else None
    masks = [value for name, value in execution.probe.inputs.items() if "mask" in name]
    if len(masks) != 1 or not isinstance(masks[0], torch.Tensor):
        return None
    if tensor is masks[0]:
        return MaskKind.KEPT
    return None if execution.graph.maker(tensor) is None else _frame_mask_kind(tensor, masks[0])


def _frame_mask_kind(tensor: torch.Tensor, given: torch.Tensor) -> MaskKind | None:
    """Returns the kind of a mask of frames that follows from a mask of finer samples."""
    if tensor.dim() < 2 or tensor.shape[0] != given.shape[0]:
        return None
    # Rows that are whole in the samples must be whole here, and the others must end early.
    whole = given.reshape(len(given), -1).bool().all(1)
    kept = tensor.reshape(len(tensor), tensor.shape[1], -1).bool()
    if not bool(whole.any()) or not bool((kept == kept[..., :1]).all()):
        return None
    for kind, mask in ((MaskKind.KEPT, kept[..., 0]), (MaskKind.PADDING, ~kept[..., 0])):
        ends_once = bool((mask[:, :-1] | ~mask[:, 1:]).all())
        if bool(mask[whole].all()) and ends_once and bool(mask[:, 0].all()):
            return kind
    return None


def is_other_mask(tensor: torch.Tensor, execution: Execution) -> bool:
    """True if a tensor of zeros and ones keeps other positions of a text than the mask does."""
    known = not tensor.is_meta and bool(execution.probe.rows) and tensor.numel() > 1
    return known and is_binary(tensor) and mask_kind(tensor, execution) is None


def is_binary(tensor: torch.Tensor) -> bool:
    """True if a tensor holds only zeros and ones, or truth values."""
    return tensor.dtype == torch.bool or bool(((tensor == 0) | (tensor == 1)).all())


_MOST_IN_PROGRAM = 300_000_000
"""Single precision and no gradient for most runs: about a gigabyte."""


@dataclass(frozen=True, slots=True)
class HeadProgram:
    """Operations of a head that can run without the model; `tensors` are the parameters and buffers that they read, by
    name.

    `why_not` says why they can't be run again, "" where they can.
    """

    head: HeadSlice
    tensors: Mapping[str, torch.Tensor]
    why_not: str = ""

    def run(self, given: Mapping[str, torch.Tensor], hidden: Sequence[torch.Tensor], *, exact: bool = False) -> Replay:
        """Runs the head on the given parameters and hidden states; parameters that aren't given are made up.

        Raises Unsupported where it can't be run.
        """
        if self.why_not:
            raise Unsupported(self.why_not, "")
        values = {id(self.tensors[name]): value for name, value in given.items() if name in self.tensors}
        values |= {id(tensor): value for tensor, value in zip(self.head.hidden, hidden, strict=True)}
        return replay_head(self.head, values, exact=exact, most=_MOST_IN_PROGRAM)


def head_program(head: HeadSlice, unfaithful: Sequence[str] = ()) -> HeadProgram:
    """Makes the program of a head, cut off the graph and the model; `unfaithful` says why its recording can't be
    trusted.
    """
    execution = head.execution
    try:
        needed = needed_operations(head)
    except Unsupported as err:
        return HeadProgram(head, {}, err.message)
    kept = {index: replace(execution.graph.operations[index], modules=()) for index in needed}
    operations = tuple(kept[item.index] for item in head.operations)
    cut = replace(execution, model=nn.Identity(), graph=_cut_graph(execution, kept), loss=None, others=())
    names = {**execution.names.buffers, **execution.names.parameters}
    read = {id(tensor): tensor for item in kept.values() for tensor in tensors_in((item.args, item.kwargs))}
    return HeadProgram(
        replace(head, execution=cut, operations=operations, base=None),
        {names[key]: tensor for key, tensor in read.items() if key in names},
        next(iter(unfaithful), "" if kept else "no operation between hidden states and scores was recorded"),
    )


def _cut_graph(execution: Execution, kept: Mapping[int, Operation]) -> Graph:
    """Copies the graph with only the kept operations, which stay at their indices."""
    graph = execution.graph
    used = [tensors_in((item.args, item.kwargs, item.outputs, item.writes)) for item in kept.values()]
    alive = {id(tensor) for tensors in (*used, execution.logits) for tensor in tensors}
    last = max(kept, default=-1)
    return Graph(
        # `producers` names operations by index, so a gap gets a placeholder that nothing refers to.
        operations=[kept.get(index, kept[last]) for index in range(last + 1)],
        producers={key: index for key, index in graph.producers.items() if key in alive and index in kept},
        memory=graph.memory,
        stale=graph.stale & kept.keys(),
    )
