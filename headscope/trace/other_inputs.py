"""Whether what was read of a head holds on other inputs: on both sides of each branch on a size, and on a caller's.

What several runs show alike may still follow from their sizes: no traced text has 64 tokens, an even length, or comes
alone. So the head runs at the sizes where a decision of its forward changes, and around each number that it compares
positions with. There the formula is evaluated, and the pooling is held against gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise

import torch
from torch import nn

from headscope.errors import Unsupported
from headscope.facts import Pooling, PoolingKind, Unavailable, Where
from headscope.facts.counting import counted
from headscope.trace.agreement import Agreement, Look, withdrawn
from headscope.trace.axes import TokenAxes
from headscope.trace.base import base_module
from headscope.trace.changed_inputs import ChangedInputs
from headscope.trace.counterpart import Counterpart, Differs, find_counterpart
from headscope.trace.evaluate import equals_head
from headscope.trace.examples import probe_as_given
from headscope.trace.execution import Execution, run_forward
from headscope.trace.formula import Formula
from headscope.trace.head_slice import HeadSlice
from headscope.trace.inputs import Row
from headscope.trace.picks import kept_positions
from headscope.trace.probe import Probe
from headscope.trace.recorder import Operation
from headscope.trace.replay import Replay, known_hidden, replay_head, unfaithful_reasons
from headscope.trace.size_branches import MOST, SizeBranches
from headscope.trace.verify import measure_influence, verify_pooling

_MOST_RUNS = 40
_MOST_ROWS = 256
_EOS_FROM_END = 2
_FURTHER = 7
"""Behind the size where a decision changes, what follows from it may still be the same."""
_FLIPS = 3
"""A decision that changes more often along an axis (even and odd) is looked at where it changes first."""
_MOST_TOKENS = 4096
"""Example inputs of more tokens run without their numbers, if the model can: a run keeps all that it computes."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """What is claimed of a head, and a run that shows it."""

    look: Look
    formula: Formula
    pooling: Pooling


def held_against_other_inputs(agreed: Agreement, seen: list[Look], model: nn.Module, cheap: nn.Module) -> Agreement:
    """The agreement, without what other inputs contradict. `cheap` is `model` or a smaller one that takes less time."""
    reading = _reading(agreed, seen)
    if reading is None:
        return agreed
    fault = _on_examples(reading, model, cheap) or _at_other_sizes(reading, cheap)
    if not fault:
        return agreed
    return replace(
        agreed,
        pooling=withdrawn(agreed.pooling),
        formula=Formula("", fault),
        gaps=(*agreed.gaps, Unavailable("head path on other inputs", fault)),
    )


def _reading(agreed: Agreement, seen: list[Look]) -> _Reading | None:
    """The claim with the last run that shows all of it; None where there is no claim, or no run shows all."""
    is_contradicted = agreed.verification is not None and agreed.verification.agrees is False
    text, claims = agreed.formula.text, bool(agreed.pooling.parts) and not is_contradicted
    for look in reversed(seen) if text or claims else ():
        formula = next((item for item in look.all_formulas if item.text == text), None) if text else Formula("")
        if formula is not None and look.runs and (not claims or look.pooling.rule == agreed.pooling.rule):
            return _Reading(look, formula, look.pooling if claims else withdrawn(look.pooling))
    return None


def _on_examples(reading: _Reading, model: nn.Module, cheap: nn.Module) -> str:
    """What the caller's own inputs contradict, with the model's real numbers; "" for nothing."""
    examples = reading.look.execution.probe.examples
    probe = None if examples is None else probe_as_given(model, examples)
    if probe is None or (_asks_for_end(reading) and any(row.eos < 0 for row in probe.rows)):
        return ""
    subject = model if probe.batch * max(probe.length, 1) <= _MOST_TOKENS else cheap
    fault = _fault_on(reading, subject, probe, with_numbers=True)
    return f"on the example inputs ({_told(probe)}), the forward {fault}" if fault else ""


def _asks_for_end(reading: _Reading) -> bool:
    return any(part.positions.where is Where.EOS for part in reading.look.pooling.parts)


def _at_other_sizes(reading: _Reading, model: nn.Module) -> str:
    """What the first of other sizes contradicts; "" for none."""
    probe = reading.look.execution.probe
    if probe.sizes.choices > 1:
        return ""
    found = SizeBranches(probe, base_module(model))
    _fault_on(reading, model, probe, watch=found)
    numbers = found.numbers | set(_numbers_of_positions(reading.look.execution, reading.look.head))
    waiting, done = [*_usual_sizes(probe), *_sizes_around(found, probe, numbers)], set[tuple[int, int]]()
    shortest = _EOS_FROM_END + 1 if _asks_for_end(reading) else 1
    while waiting and len(done) < _MOST_RUNS:
        batch, length = size = waiting.pop(0)
        if size in done or 0 < length < shortest:
            continue
        done.add(size)
        inside = SizeBranches(probe, base_module(model))
        other = probe.resized(batch, length, _rows(batch, length, numbers, shortest) if length else ())
        fault = _fault_on(reading, model, other, watch=inside)
        if fault:
            return f"for {_told(other)}, the forward {fault}"
        waiting += _sizes_around(inside, probe, inside.numbers - numbers)
    return "" if not waiting else f"compares sizes and positions with more numbers than headscope tries ({_MOST_RUNS})"


def _usual_sizes(probe: Probe) -> Iterator[tuple[int, int]]:
    """Few rows, and lengths of either parity."""
    yield from ((1, probe.length + 1), (2, probe.length), (3, probe.length + 3)) if probe.length else ((1, 0), (2, 0))


def _sizes_around(found: SizeBranches, probe: Probe, numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Batch and length on both sides of every decision, and around every number."""
    batch, length = probe.batch, probe.length
    for decides in found.branches:
        if length:
            yield from ((batch, at) for at in _flips(partial(decides, batch), length, 2, MOST))
        yield from ((at, length) for at in _flips(partial(_turned, decides, length), batch, 1, _MOST_ROWS))
    for number in sorted(numbers):
        around = (number - 1, number, number + 1, number + 3)
        if length:
            yield from ((batch, at) for at in around if at > 1)
        if number in found.numbers:
            yield from ((at, length) for at in around[:-1] if at <= _MOST_ROWS)


def _turned(decides: Callable[[int, int], object], length: int, batch: int) -> object:
    return decides(batch, length)


def _flips(decides: Callable[[int], object], near: int, least: int, most: int) -> list[int]:
    """The sizes between which a decision changes, the nearest first."""
    told = []
    for at in range(least, most + 1):
        with suppress(ArithmeticError):
            told.append((at, bool(decides(at))))
    changes = [pair for pair in pairwise(told) if pair[0][1] != pair[1][1]]
    nearest = sorted(changes, key=lambda pair: abs(pair[0][0] - near))[:_FLIPS]
    return [at for (below, _), (above, _) in nearest for at in (below, above, above + _FURTHER) if at <= most]


def _numbers_of_positions(execution: Execution, head: HeadSlice) -> Iterator[int]:
    """The numbers that a forward computes with outside its base model where it computes positions and masks."""
    probe = execution.probe
    for made in execution.graph.operations:
        is_outside = head.base is None or head.base not in made.modules
        if is_outside and all(not item.is_meta and id(item) not in head.derived for item in made.outputs):
            for number in _numbers_in(made):
                if 1 < number <= MOST and number not in probe.axis_sizes().values():
                    yield number


def _numbers_in(made: Operation) -> Iterator[int]:
    waiting = list(chain(made.args, made.kwargs.values()))
    while waiting:
        value = waiting.pop()
        if isinstance(value, tuple | list):
            waiting += value
        elif isinstance(value, slice):
            waiting += (value.start, value.stop)
        elif isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_meta:
            waiting.append(value.item())
        elif isinstance(value, int | float) and abs(value) <= MOST:
            yield abs(int(value))


def _rows(batch: int, length: int, numbers: set[int], shortest: int) -> tuple[Row, ...]:
    """Rows with texts just as long as each number, and a little shorter and longer; one at least is padded."""
    near = [at for number in sorted(numbers) for at in (number, number - 1, number + 1)]
    texts = [
        at
        for at in dict.fromkeys((length - 2, *near, length, length - 1, 3, 1))
        if min(shortest, length) <= at <= length
    ]
    found = []
    for at in range(batch):
        count = texts[at % len(texts)]
        first = length - count if at % 3 == 1 else 0
        last = first + count - 1
        found.append(Row(first, last, max(last - _EOS_FROM_END, first)))
    return tuple(found)


def _told(probe: Probe) -> str:
    return (
        f"{counted(probe.batch, 'text')} of {counted(probe.length, 'token')}"
        if probe.length
        else f"a batch of {probe.batch}"
    )


def _fault_on(
    reading: _Reading,
    model: nn.Module,
    probe: Probe,
    *,
    watch: SizeBranches | None = None,
    with_numbers: bool = False,
) -> str:
    """What is wrong with a reading on other inputs; "" also where the forward fails on them: it has no scores then."""
    first = reading.look.execution
    try:
        with nullcontext() if watch is None else watch:
            other = run_forward(model, probe, hint="", output=first.output, fails_without_pad=first.fails_without_pad)
        same = find_counterpart(first, reading.look.head, other)
        if with_numbers and (reasons := unfaithful_reasons(other, same.head)):
            return f"gives scores that headscope can't follow: {reasons[0]}"
        return _fault_of(reading, same, with_numbers=with_numbers)
    except Differs as err:
        return str(err)
    except Unsupported:
        return ""


def _fault_of(reading: _Reading, same: Counterpart, *, with_numbers: bool) -> str:
    probe, usual = same.other.probe, replay_head(same.other, same.head)
    if (probe.length and not probe.rows) or not _are_finite(usual):  # padding between the tokens of a text
        return ""
    if reading.formula.nodes:
        only = reading.formula.numbers_only
        nodes = tuple(same.carried(node, numbers_only=only) for node in reading.formula.nodes)
        known = known_hidden(same.other, same.head) if with_numbers else {}
        replay = replay_head(same.other, same.head, known) if known else usual
        if _are_finite(replay) and equals_head(same.other, replay, nodes):
            return "gives other scores than the formula"
    return _fault_of_pooling(reading, same, usual)


def _are_finite(replay: Replay) -> bool:
    return all(bool(scores.isfinite().all()) for scores in replay.logits)


def _fault_of_pooling(reading: _Reading, same: Counterpart, replay: Replay) -> str:
    look, axes = reading.look, same.axes(reading.look.axes)
    if not reading.pooling.parts:
        return ""
    if _moves_all_it_names(reading.pooling, look.execution, look.head, look.axes, look.runs and look.runs.usual) and (
        not _moves_all_it_names(reading.pooling, same.other, same.head, axes, replay)
    ):
        return "reads other positions"
    tensors = tuple(tuple(same.of(tensor) for tensor in pair) for pair in look.tensors)
    runs = ChangedInputs(same.other, same.head, axes, replay)
    found = verify_pooling(same.other, same.head, reading.pooling, axes, tensors, runs)
    return "reads other positions" if found.agrees is False else ""


def _moves_all_it_names(
    pooling: Pooling, execution: Execution, head: HeadSlice, axes: TokenAxes, replay: Replay | None
) -> bool:
    """Whether the scores of each row depend on exactly the positions that a weighted sum names: all, or no padding."""
    part = pooling.parts[0]
    if replay is None or pooling.kind is not PoolingKind.WEIGHTED:
        return False
    influence = measure_influence(replay, head, axes)
    if influence is None:
        return False
    try:
        return [list(row) for row in influence.rows] == kept_positions(part.positions, execution, influence.length)
    except ValueError:
        return False
