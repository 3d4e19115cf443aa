"""What several runs of one head show alike: at other sizes, with other tokens and other rows padded.

One run cannot tell the last position from position 10 of a text of 11 tokens, nor a factor of 5 from a batch of 5. What
a second run shows too follows from the model. Where the two differ, a third decides between them: what two of three
runs show is not the coincidence. What no two show alike is not claimed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from headscope.errors import Unsupported
from headscope.facts import Gap, GapTopic, Pooling, PoolingKind, PoolingPart, Shape, Stage, Verification
from headscope.trace.formula.formula import Formula, prove, write_formulas
from headscope.trace.pooling.pooling import read_pooling
from headscope.trace.pooling.taken_back import with_changes_taken_back
from headscope.trace.proof.gradients import PartTensors, verify_pooling, with_weighed_positions
from headscope.trace.record.execution import Execution
from headscope.trace.replay.changed_inputs import ChangedInputs
from headscope.trace.replay.picks import TokenNames
from headscope.trace.replay.replay import unfaithful_reasons
from headscope.trace.slice.axes import TokenAxes, find_token_axes
from headscope.trace.slice.doubts import doubts
from headscope.trace.slice.head_slice import HeadSlice, read_sources
from headscope.trace.slice.stages import Step, build_stages, place_of, read_steps

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Look:
    """One execution of a head, read. `unfaithful` says why its recording cannot be trusted: then nothing is claimed."""

    execution: Execution
    head: HeadSlice
    steps: tuple[Step, ...]
    stages: tuple[Stage, ...]
    axes: TokenAxes
    pooling: Pooling
    tensors: PartTensors
    formulas: Iterator[Formula]
    runs: ChangedInputs | None = None
    unfaithful: tuple[str, ...] = ()
    _proven: list[Formula] = field(default_factory=list)

    @property
    def hidden_shape(self) -> Shape:
        """The shape of the first hidden states, with the varying axes named."""
        return self.execution.probe.shape(self.head.hidden[0].shape) if self.head.hidden else ()

    @cached_property
    def formula(self) -> Formula:
        """The plainest formula that this run proves. The others are not evaluated before somebody asks for them."""
        for item in self.formulas:
            self._proven.append(item)
            if item.text:
                return item
        return Formula("", "; ".join(dict.fromkeys(item.reason for item in self._proven)))

    @cached_property
    def all_formulas(self) -> tuple[Formula, ...]:
        """Every formula that this run proves, and the reasons for those that it does not."""
        first = self.formula
        return (*(self._proven or (first,)), *self.formulas)

    def verify(self) -> Verification:
        """The gradients of this run, held against its pooling."""
        return verify_pooling(self.execution, self.head, self.pooling, self.axes, self.tensors, self.runs)


def look_at(execution: Execution, head: HeadSlice, tokens: TokenNames) -> Look:
    """Everything that one execution says about a head."""
    steps, names = read_steps(head), execution.names
    axes, sources = find_token_axes(execution, head), read_sources(execution, head, names)
    unfaithful = (*unfaithful_reasons(execution, head), *doubts(execution, head))
    replay = None if unfaithful else prove(execution, head)
    read = read_pooling(execution, head, steps, tokens, axes, sources)
    runs = ChangedInputs(execution, head, axes, replay) if replay else None
    pooling = with_changes_taken_back(read, runs)
    formulas = write_formulas(execution, head, steps, axes, tokens, sources, replay)
    return Look(
        execution=execution,
        head=head,
        steps=steps,
        stages=build_stages(execution, head, steps),
        axes=axes,
        pooling=withdrawn(pooling) if unfaithful else with_weighed_positions(pooling, execution, head, axes, replay),
        tensors=read.tensors,
        formulas=iter((Formula("", unfaithful[0]),)) if unfaithful else formulas,
        runs=runs,
        unfaithful=unfaithful,
    )


@dataclass(frozen=True, slots=True)
class Agreement:
    """What two runs of a head show alike; `gaps` says what they do not."""

    pooling: Pooling
    formula: Formula
    stages: tuple[Stage, ...]
    hidden_shape: Shape
    verification: Verification | None
    gaps: tuple[Gap, ...] = ()


def agree(first: Look, again: Callable[[int], Look], *, prove: bool) -> Agreement:
    """What `first` and the looks of later turns have in common; `again(turn)` runs the head once more.

    `again` raises Unsupported where the forward fails: then what the first run shows is unconfirmed, and a gap reports
    it.
    """
    try:
        second = again(1)
    except Unsupported as err:
        return _unconfirmed(first, err, prove=prove)
    seen = [first, second]
    if not _same_pooling(first, second) or _common_formula(first, second) is None:
        # One run may show a coincidence of its sizes (a sum divided by 5 in a batch of 5). It differs from the other
        # then, and the third says which of the two it was.
        with suppress(Unsupported):  # then the two that differ have no referee, and neither is claimed
            seen.append(again(2))
    pairs = [(one, other) for at, one in enumerate(seen) for other in seen[at + 1 :]]
    alike = next((one for one, other in pairs if _same_pooling(one, other)), None)
    formulas = (_common_formula(one, other) for one, other in pairs)
    formula = next((found for found in formulas if found is not None), None)
    return Agreement(
        pooling=alike.pooling if alike else withdrawn(first.pooling),
        formula=formula or Formula("", "runs of different sizes show different formulas"),
        stages=_merged_stages(first.stages, second.stages),
        hidden_shape=_merged_shape(first.hidden_shape, second.hidden_shape),
        # All runs, also one that only decided: a rule that its gradients contradict in a single run is wrong.
        verification=_worst([item.verify() for item in seen]) if prove else None,
        gaps=(
            *_gaps_of_branches(seen),
            *(tuple(_gaps_of_runs(seen)) or (*_gaps_of_pooling(seen, alike), *_gaps_of_stages(first, second))),
        ),
    )


def _unconfirmed(first: Look, err: Unsupported, *, prove: bool) -> Agreement:
    reason = f"read from one run alone: a run with other sizes fails ({err.message})"
    return Agreement(
        pooling=first.pooling,
        formula=Formula("", reason),
        stages=first.stages,
        hidden_shape=first.hidden_shape,
        verification=first.verify() if prove else None,
        gaps=(*_gaps_of_branches([first]), *_gaps_of_runs([first]), Gap(GapTopic.POOLING, reason)),
    )


def _same_pooling(one: Look, other: Look) -> bool:
    left, right = one.pooling, other.pooling
    return (left.kind, _claims(left), left.rule) == (right.kind, _claims(right), right.rule)


def _claims(pooling: Pooling) -> tuple[PoolingPart, ...]:
    """The parts with the numbers in their modules left open: the last layer of a shallow twin has another number."""
    return tuple(
        replace(part, sources=tuple(replace(source, module=_NUMBER.sub("#", source.module)) for source in part.sources))
        for part in pooling.parts
    )


def _common_formula(one: Look, other: Look) -> Formula | None:
    """The plainest formula that both runs prove, or the reason why neither does; None where they differ."""
    left, right = one.formula, other.formula
    if left == right:
        return left
    proven = {item.text for item in other.all_formulas if item.text}
    common = next((item for item in one.all_formulas if item.text in proven), None)
    if common is None and not (left.text and right.text):
        return right if left.text else left
    return common


def withdrawn(pooling: Pooling) -> Pooling:
    """A pooling without its claim."""
    return replace(pooling, kind=PoolingKind.OTHER, tokens=(), rule="not determined", parts=())


def _gaps_of_branches(seen: list[Look]) -> Iterator[Gap]:
    """Guesses outside the base model leave the head path open; those inside come before the hidden states."""
    lines = {
        place_of(guess): None
        for item in seen
        for guess in item.execution.graph.guesses
        if (guess.is_branch or item is seen[0])  # what the first run wrote was real, if it had real weights
        if item.head.base is None or item.head.base not in guess.modules
    }
    for line in lines:
        reason = f"the forward branches on a floating-point value at {line}, so other numbers may take another path"
        yield Gap(GapTopic.HEAD_PATH, reason)


def _gaps_of_runs(seen: list[Look]) -> Iterator[Gap]:
    for reason in dict.fromkeys(reason for item in seen for reason in item.unfaithful):
        yield Gap(GapTopic.HEAD_PATH, reason)


def _gaps_of_pooling(seen: list[Look], alike: Look | None) -> Iterator[Gap]:
    if alike is None:
        rules = "; ".join(dict.fromkeys(item.pooling.rule for item in seen))
        yield Gap(GapTopic.POOLING, f"runs of different sizes read different positions: {rules}")


def _gaps_of_stages(first: Look, second: Look) -> Iterator[Gap]:
    if _operations(first) != _operations(second):
        yield Gap(GapTopic.HEAD_PATH, "runs of different sizes go through different operations")


def _operations(look: Look) -> list[tuple[str, str]]:
    return [(stage.operation, stage.module) for stage in look.stages]


def _merged_stages(first: tuple[Stage, ...], second: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The stages with the sizes that both runs name alike."""
    # Runs that go through other operations have no stages to pair; `_gaps_of_stages` reports them.
    if len(first) != len(second):
        return first
    return tuple(
        replace(
            one,
            input_shapes=tuple(map(_merged_shape, one.input_shapes, other.input_shapes)),
            output_shape=_merged_shape(one.output_shape, other.output_shape),
        )
        for one, other in zip(first, second, strict=True)
    )


def _merged_shape(one: Shape, other: Shape) -> Shape:
    """Sizes that two runs share; one that is the name of an axis in one run alone is the number of the other."""
    if len(one) != len(other):
        return one
    return tuple(map(_merged_size, one, other))


def _merged_size(left: int | str, right: int | str) -> int | str:
    if left == right:
        return left
    if isinstance(left, str) != isinstance(right, str):
        return right if isinstance(left, str) else left
    return "varies"


def _worst(found: list[Verification]) -> Verification:
    """The first of the proofs, or one that contradicts."""
    return next((item for item in found if item.agrees is False), found[0])
