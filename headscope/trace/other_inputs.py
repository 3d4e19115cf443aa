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
from headscope.trace.probe import Probe, longest_text
from headscope.trace.recorder import Operation
from headscope.trace.replay import Replay, known_hidden, replay_head, unfaithful_reasons
from headscope.trace.size_branches import MOST, Decision, SizeBranches
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
    """The agreement, without what other inputs contradict. `cheap` is `model` or a smaller one that takes less time.

    Other paths of texts without padding, of a single token and of texts that are longer than the traced ones are
    named: what is shown isn't that of these. Classes of Transformers run at the sizes alone that their numbers name.
    """
    is_own = not type(model).__module__.startswith("transformers.")
    fault, gaps = "", list[Unavailable]()
    for reading in _readings(agreed, seen):
        probe = reading.look.execution.probe
        if probe.sizes.choices > 1:
            continue
        if is_own:
            gaps += _without_padding(reading, cheap)
            fault = fault or _on_examples(reading, model, cheap)
        traced = max(look.execution.probe.length for look in seen)
        found, longer = _at_other_sizes(reading, cheap, traced, is_own=is_own)
        fault = fault or found
        gaps += [Unavailable("pooling of long texts", longer)] if longer else []
    if not fault:
        return replace(agreed, gaps=(*agreed.gaps, *dict.fromkeys(gaps)))
    gaps.append(Unavailable("head path on other inputs", fault))
    pooling = withdrawn(agreed.pooling)
    return replace(agreed, pooling=pooling, formula=Formula("", fault), gaps=(*agreed.gaps, *dict.fromkeys(gaps)))


def _readings(agreed: Agreement, seen: list[Look]) -> Iterator[_Reading]:
    """The claims, each with the last run that shows it: one run for both, if there is one."""
    is_contradicted = agreed.verification is not None and agreed.verification.agrees is False
    text, claims = agreed.formula.text, bool(agreed.pooling.parts) and not is_contradicted
    found = []
    for look in reversed(seen) if text or claims else ():
        formula = next((item for item in look.all_formulas if item.text == text), None) if text else None
        pooling = look.pooling if claims and look.pooling.rule == agreed.pooling.rule else None
        found.append(_Reading(look, formula or Formula(""), pooling or withdrawn(look.pooling)))
    shown = [item for item in found if (bool(item.formula.text), bool(item.pooling.parts)) == (bool(text), claims)]
    parts = [[item for item in found if item.formula.text], [item for item in found if item.pooling.parts]]
    yield from (items[0] for items in ([shown] if shown else parts) if items)


def _without_padding(reading: _Reading, model: nn.Module) -> Iterator[Unavailable]:
    """Other paths of texts without padding, and of a single token. Without a base model, encoders may skip masks."""
    probe = reading.look.execution.probe
    if reading.look.head.base is None or not probe.rows or "attention_mask" not in probe.inputs:
        return
    found = set[str]()
    for name, other in (("without padding", probe.without_padding()), ("of a single token", probe.of_one_token())):
        fault = _fault_on(reading, model, other, tells_failure=other.length > 1)
        if fault and fault not in found:
            found.add(fault)
            told = f"the forward {fault} on such inputs; headscope shows the path for padded inputs"
            yield Unavailable(f"head path {name}", told)


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


def _at_other_sizes(reading: _Reading, model: nn.Module, traced: int, *, is_own: bool) -> tuple[str, str]:
    """What the first of other sizes contradicts, and what the first of texts longer than the traced ones does."""
    probe, longer = reading.look.execution.probe, ""
    numbers = set(_numbers_of_positions(reading.look, traced if not is_own else 1))
    waiting = list(_sizes_around((), probe, numbers))
    if is_own:
        found = SizeBranches(probe, base_module(model))
        _fault_on(reading, model, probe, watch=found)
        numbers |= found.numbers
        waiting = [*_usual_sizes(probe), *waiting, *_sizes_around(found.branches, probe, found.numbers, is_batch=True)]
    shortest = _EOS_FROM_END + 1 if _asks_for_end(reading) else 1
    longest, done, holds = _longest(reading), set[tuple[int, int]](), {traced}
    while waiting and len(done) < _MOST_RUNS:
        batch, length = size = waiting.pop(0)
        if size in done or 0 < length < shortest or length > longest:
            continue
        done.add(size)
        other = probe.resized(batch, length, _rows(batch, length, numbers, shortest) if length else ())
        inside = SizeBranches(other, base_module(model))
        fault = _fault_on(reading, model, other, watch=inside if is_own else None)
        if fault and (length <= traced or batch != probe.batch):
            return f"for {_told(other)}, the forward {fault}", longer
        if fault:
            longest, longer = length - 1, f"for texts of {length} tokens, the forward {fault}"
        elif batch == probe.batch:
            holds.add(length)
        waiting += _sizes_around(inside.branches, other, inside.numbers - numbers, is_batch=True)
    rest = [size for size in waiting if size not in done and size[1] <= longest]
    if longer:
        longer = f"{longer}; what is shown holds for texts of {max(at for at in holds if at <= longest)} tokens"
    return f"the forward compares sizes with more numbers than headscope tries ({_MOST_RUNS})" if rest else "", longer


def _longest(reading: _Reading) -> float:
    """The most tokens that a text may have; infinite where nothing says."""
    configs = (getattr(module, "config", None) for module in (reading.look.execution.model, reading.look.head.base))
    return min((most for config in configs if (most := longest_text(config)) is not None), default=float("inf"))


def _usual_sizes(probe: Probe) -> Iterator[tuple[int, int]]:
    """Few rows, and lengths of either parity, none longer than what was traced."""
    yield from ((1, probe.length - 1), (2, probe.length), (3, probe.length - 3)) if probe.length else ((1, 0), (2, 0))


def _sizes_around(
    branches: Iterable[Decision], probe: Probe, numbers: Iterable[int], *, is_batch: bool = False
) -> Iterator[tuple[int, int]]:
    """Batch and length on both sides of every decision, and around every number."""
    batch, length = probe.batch, probe.length
    for decides in branches:
        if length:
            yield from ((batch, at) for at in _flips(partial(decides, batch), length, 2, MOST))
        yield from ((at, length) for at in _flips(partial(_of_batch, decides, length), batch, 1, _MOST_ROWS))
    for number in sorted(numbers):
        around = (number - 1, number, number + 1, number + 3)
        if length:
            yield from ((batch, at) for at in around if at > 1)
        if is_batch:
            yield from ((at, length) for at in around[:-1] if at <= _MOST_ROWS)


def _of_batch(decides: Decision, length: int, batch: int) -> object:
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


def _numbers_of_positions(look: Look, least: int) -> Iterator[int]:
    """The numbers beyond `least` that a forward computes positions and masks with outside its base model.

    With them those of slices that cut nothing off a text as long as the traced ones.
    """
    sizes = look.execution.probe.axis_sizes().values()
    for made in look.execution.graph.operations:
        is_outside = look.head.base is None or look.head.base not in made.modules
        if is_outside and (
            _cuts_nothing(made) or all(not item.is_meta and id(item) not in look.head.derived for item in made.outputs)
        ):
            yield from (number for number in _numbers_in(made) if least < number <= MOST and number not in sizes)


def _cuts_nothing(made: Operation) -> bool:
    return made.name == "__getitem__" and made.args[0].numel() == made.outputs[0].numel()


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
    tells_failure: bool = False,
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
    except Unsupported as err:
        return err.message if tells_failure else ""


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
