"""Agreement of several runs of one head: at other sizes, with other tokens and other rows padded.

One run cannot tell the last position from position 10 of a text of 11 tokens, nor a factor of 5 from a batch of 5. What
a second run shows too follows from the model. If the two differ, a third decides between them: what two of three runs
show is not a coincidence. headscope doesn't claim what no two runs show alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from headscope.core.facts import Gap, GapTopic, Pooling, PoolingKind, Shape, Stage, Verification
from headscope.core.trace.formula.formula import Formula, write_formulas
from headscope.core.trace.pooling.pooling import PoolingRead, read_pooling
from headscope.core.trace.pooling.taken_back import with_changes_taken_back
from headscope.core.trace.proof.gradients import verify_pooling, with_weighed_positions
from headscope.core.trace.replay.changed_inputs import ChangedInputs
from headscope.core.trace.replay.picks import HeadSteps, TokenNames
from headscope.core.trace.replay.replay import replay_head, unfaithful_reasons
from headscope.core.trace.slice.axes import find_token_axes
from headscope.core.trace.slice.doubts import doubts
from headscope.core.trace.slice.head_slice import HeadSlice, read_sources
from headscope.core.trace.slice.stages import build_stages, place_of, read_steps
from headscope.errors import Unsupported


@dataclass(frozen=True)
class Look(HeadSteps):
    """One execution of a head, read. `unfaithful` says why its recording cannot be trusted: then nothing is claimed."""

    stages: tuple[Stage, ...]
    read: PoolingRead
    formulas: Iterator[Formula]
    runs: ChangedInputs | None = None
    unfaithful: tuple[str, ...] = ()
    _tried_formulas: list[Formula] = field(default_factory=list)

    @property
    def hidden_shape(self) -> Shape:
        """Shape of the first hidden states, with the varying axes named."""
        return self.execution.probe.shape(self.head.hidden[0].shape) if self.head.hidden else ()

    @cached_property
    def formula(self) -> Formula:
        """Plainest formula that this run proves. The others are not evaluated before they are needed."""
        for item in self.formulas:
            self._tried_formulas.append(item)
            if item.text:
                return item
        return Formula("", "; ".join(dict.fromkeys(item.reason for item in self._tried_formulas)))

    @cached_property
    def all_formulas(self) -> tuple[Formula, ...]:
        """Every formula that this run proves, and the reasons for those that it does not."""
        first = self.formula
        return (*(self._tried_formulas or (first,)), *self.formulas)

    @cached_property
    def pooling(self) -> Pooling:
        """Pooling that this run claims."""
        return withdrawn(self.read.pooling) if self.unfaithful else self.read.pooling

    def has_same_pooling(self, other: Look) -> bool:
        """True if both runs show the same pooling, by its values and not its words, or if neither claims one."""
        claims = [None if look.unfaithful else look.read.values for look in (self, other)]
        return claims[0] == claims[1]

    def verify(self) -> Verification:
        """Compares the gradients of this run with its pooling."""
        return verify_pooling(self.head, self.pooling, self.axes, self.read.tensors, self.runs)


def look_at(head: HeadSlice, tokens: TokenNames) -> Look:
    """Reads everything that one execution shows of a head."""
    steps, axes, sources = read_steps(head), find_token_axes(head), read_sources(head)
    known = HeadSteps(head, steps, axes, tokens, sources)
    unfaithful = (*unfaithful_reasons(head), *doubts(head))
    runs = None
    if not unfaithful:
        with suppress(Unsupported):  # it can't be run again on random values
            runs = ChangedInputs(axes, replay_head(head))
    read = with_changes_taken_back(read_pooling(known), runs)
    formulas = write_formulas(known, runs.usual if runs else None)
    return Look(
        head,
        steps,
        axes,
        tokens,
        sources,
        stages=build_stages(head, steps),
        read=with_weighed_positions(read, runs),
        formulas=iter((Formula("", unfaithful[0]),)) if unfaithful else formulas,
        runs=runs,
        unfaithful=unfaithful,
    )


@dataclass(frozen=True, slots=True)
class Agreement:
    """Facts that two runs of a head show alike; `gaps` says what they do not. `witness` shows the pooling."""

    pooling: Pooling
    witness: Look
    formula: Formula
    stages: tuple[Stage, ...]
    hidden_shape: Shape
    verification: Verification | None
    gaps: tuple[Gap, ...] = ()


def agree(first: Look, again: Callable[[int], Look], *, prove: bool) -> Agreement:
    """Finds what `first` and the looks of later turns have in common; `again(turn)` runs the head once more.

    If `again` raises Unsupported because the forward fails, what the first run shows is unconfirmed, and a gap reports
    it.
    """
    try:
        second = again(1)
    except Unsupported as err:
        return _unconfirmed_agreement(first, err, prove=prove)
    looks = [first, second]
    if not first.has_same_pooling(second) or _common_formula(first, second) is None:
        # One run may show a coincidence of its sizes (a sum divided by 5 in a batch of 5). It differs from the other
        # then, and the third says which of the two it was.
        with suppress(Unsupported):  # then the two that differ have no referee, and neither is claimed
            looks.append(again(2))
    pairs = [(one, other) for at, one in enumerate(looks) for other in looks[at + 1 :]]
    alike = next((one for one, other in pairs if one.has_same_pooling(other)), None)
    formulas = (_common_formula(one, other) for one, other in pairs)
    formula = next((found for found in formulas if found is not None), None)
    rules = "; ".join(dict.fromkeys(item.pooling.rule for item in looks))
    unlike = Gap(GapTopic.POOLING, f"runs of different sizes read different positions: {rules}")
    # All runs, also one that only decided: a rule that its gradients contradict in a single run is wrong.
    proofs = [item.verify() for item in looks] if prove else []
    return Agreement(
        pooling=alike.pooling if alike else withdrawn(first.pooling),
        witness=alike or first,
        formula=formula or Formula("", "runs of different sizes show different formulas"),
        stages=_merged_stages(first.stages, second.stages),
        hidden_shape=_merged_shape(first.hidden_shape, second.hidden_shape),
        verification=next((item for item in proofs if item.agrees is False), next(iter(proofs), None)),
        gaps=(
            *_gaps_of_branches(looks),
            *(tuple(_gaps_of_runs(looks)) or (*(() if alike else (unlike,)), *_gaps_of_stages(first, second))),
        ),
    )


def _unconfirmed_agreement(first: Look, err: Unsupported, *, prove: bool) -> Agreement:
    reason = f"read from one run alone: a run with other sizes fails ({err.message})"
    return Agreement(
        pooling=first.pooling,
        witness=first,
        formula=Formula("", reason),
        stages=first.stages,
        hidden_shape=first.hidden_shape,
        verification=first.verify() if prove else None,
        gaps=(*_gaps_of_branches([first]), *_gaps_of_runs([first]), Gap(GapTopic.POOLING, reason)),
    )


def _common_formula(one: Look, other: Look) -> Formula | None:
    """Returns the plainest formula that both runs prove, or the reason why neither does; None if they differ."""
    left, right = one.formula, other.formula
    if left == right:
        return left
    proven = {item.text for item in other.all_formulas if item.text}
    common = next((item for item in one.all_formulas if item.text in proven), None)
    if common is None and not (left.text and right.text):
        return right if left.text else left
    return common


def withdrawn(pooling: Pooling) -> Pooling:
    """Returns a pooling without its claim."""
    return replace(pooling, kind=PoolingKind.OTHER, tokens=(), rule="not determined", parts=())


def _gaps_of_branches(looks: list[Look]) -> Iterator[Gap]:
    """Reports guesses outside the base model, and in it behind the hidden states: they leave the head path open."""
    lines: dict[str, None] = {}
    for item in looks:
        base, graph = item.head.base, item.execution.graph
        last = max(map(graph.producer, item.head.hidden), default=None)
        for guess in graph.guesses:
            # BERT's pooler is in the base model, and part of the head.
            is_before = last is None or guess.before <= last
            if base is not None and base in guess.modules and is_before:
                continue
            if guess.is_branch or item is looks[0]:  # what the first run wrote was real, if it had real weights
                lines[place_of(guess)] = None
    for line in lines:
        reason = f"the forward branches on a floating-point value at {line}, so other values may take another path"
        yield Gap(GapTopic.HEAD_PATH, reason)


def _gaps_of_runs(looks: list[Look]) -> Iterator[Gap]:
    for reason in dict.fromkeys(reason for item in looks for reason in item.unfaithful):
        yield Gap(GapTopic.HEAD_PATH, reason)


def _gaps_of_stages(first: Look, second: Look) -> Iterator[Gap]:
    names = [[(stage.operation, stage.module) for stage in look.stages] for look in (first, second)]
    if names[0] != names[1]:
        yield Gap(GapTopic.HEAD_PATH, "runs of different sizes go through different operations")


def _merged_stages(first: tuple[Stage, ...], second: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Returns the stages with the sizes that both runs name alike."""
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
    """Returns the sizes that two runs share; one that only one run names is the number of the other."""
    if len(one) != len(other):
        return one
    return tuple(map(_merged_size, one, other))


def _merged_size(left: int | str, right: int | str) -> int | str:
    if left == right:
        return left
    # The name was a coincidence of one run: an axis that varies has its name in both.
    if isinstance(left, str) != isinstance(right, str):
        return right if isinstance(left, str) else left
    return "varies"
