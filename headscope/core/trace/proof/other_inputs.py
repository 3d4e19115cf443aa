"""Checks of a head on other inputs: on both sides of each branch on a size, and on a caller's.

What several runs show alike may still follow from their sizes: no traced text has 64 tokens, an even length, or comes
alone. So the head runs at the sizes where a decision of its forward changes, and around each number that it compares
positions with. There headscope evaluates the formula and compares the pooling with gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import Any

import torch
from torch import nn

from headscope.core.facts import Gap, GapTopic, Pooling, PoolingKind, Where
from headscope.core.facts.counting import counted
from headscope.core.trace.batch.examples import probe_as_given
from headscope.core.trace.batch.inputs import ProbeRow
from headscope.core.trace.batch.probe_batch import ProbeBatch, longest_text
from headscope.core.trace.formula.counterpart import Counterpart, Differs, find_counterpart
from headscope.core.trace.formula.evaluate import equals_head
from headscope.core.trace.formula.formula import Formula
from headscope.core.trace.proof.agreement import Agreement, Look, withdrawn
from headscope.core.trace.proof.claims import claimed_rows
from headscope.core.trace.proof.gradients import measure_influence, verify_pooling
from headscope.core.trace.record.base import base_module
from headscope.core.trace.record.execution import is_shape_only, run_forward
from headscope.core.trace.record.recorder import Operation
from headscope.core.trace.record.size_branches import MOST, Decision, Place, SizeBranches
from headscope.core.trace.replay.changed_inputs import ChangedInputs
from headscope.core.trace.replay.replay import Replay, known_hidden, replay_head, unfaithful_reasons
from headscope.errors import Unsupported

_MOST_RUNS = 60
_MOST_ROWS = 256
_MOST_REAL = 256
"""Tokens in a text of a model that runs with its values, which takes time."""
_EOS_FROM_END = 2
_FURTHER = 7
"""Behind the size where a decision changes, what follows from it may still be the same."""
_FLIPS = 3
"""A decision that changes more often along an axis (even and odd) is looked at where it changes first."""
_MOST_COMPARED = 16
_MOST_TOKENS = 4096
"""Example inputs of more tokens run without their values, if the model can: a run keeps all that it computes."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """Claims on a head, and a run that shows them. `longest` is the number of tokens in the longest run."""

    look: Look
    formula: Formula
    pooling: Pooling
    longest: int

    @property
    def probe(self) -> ProbeBatch:
        return self.look.execution.probe

    @property
    def shortest(self) -> int:
        """Smallest number of tokens in a text: an end token has some behind it."""
        return _EOS_FROM_END + 1 if any(item.positions.where is Where.EOS for item in self.look.pooling.parts) else 1


def held_against_other_inputs(agreed: Agreement, seen: list[Look], model: nn.Module, cheap: nn.Module) -> Agreement:
    """Removes what other inputs contradict from the agreement. `cheap` is `model` or a smaller one that takes less
    time.

    Gaps name other paths for texts without padding, for single tokens, and for texts longer than the traced ones. Heads
    of Transformers run only at the lengths that their code names.
    """
    fault, gaps = "", list[Gap]()
    first = seen[0]
    modules = {first.execution.model, *(module for item in first.head.operations for module in item.modules)}
    is_own = any(not type(item).__module__.startswith(("transformers.", "torch.")) for item in modules)
    probe = first.execution.probe
    if probe.sizes.choices > 1 or not (is_own or probe.examples is not None or _unreached_numbers(seen[-1])):
        return agreed
    for reading in _claimed_readings(agreed, seen):
        fault = fault or _on_examples(reading, model, cheap)
        gaps += _without_padding(reading, cheap) if is_own else ()
        found, longer = _at_other_sizes(reading, cheap, is_own=is_own)
        fault = fault or found
        gaps += [Gap(GapTopic.LONG_TEXTS, longer)] if longer else []
    if fault:
        gaps.append(Gap(GapTopic.OTHER_INPUTS, fault))
        agreed = replace(agreed, pooling=withdrawn(agreed.pooling), formula=Formula("", fault))
    return replace(agreed, gaps=(*agreed.gaps, *dict.fromkeys(gaps)))


def _unreached_numbers(look: Look) -> set[int]:
    """Collects the numbers in the code of a head that no text as long as the traced one reaches."""
    length = look.execution.probe.length
    return {number for number in _numbers_of_positions(look) if number > length} if length else set()


def _claimed_readings(agreed: Agreement, seen: list[Look]) -> Iterator[_Reading]:
    """Yields the claims, each with the last run that shows it: one run for both, if there is one."""
    is_contradicted = agreed.verification is not None and agreed.verification.agrees is False
    text, claims = agreed.formula.text, bool(agreed.pooling.parts) and not is_contradicted
    longest = max(look.execution.probe.length for look in seen)
    found = []
    for look in reversed(seen) if text or claims else ():
        formula = next((item for item in look.all_formulas if item.text == text), None) if text else None
        pooling = look.pooling if claims and look.has_same_pooling(agreed.witness) else None
        found.append(_Reading(look, formula or Formula(""), pooling or withdrawn(look.pooling), longest))
    shown = [item for item in found if (bool(item.formula.text), bool(item.pooling.parts)) == (bool(text), claims)]
    parts = [[item for item in found if item.formula.text], [item for item in found if item.pooling.parts]]
    yield from (items[0] for items in ([shown] if shown else parts) if items)


def _without_padding(reading: _Reading, model: nn.Module) -> Iterator[Gap]:
    """Reports other paths of texts without padding, and of a single token."""
    # Without a base model the path includes the encoders, which may skip a mask that keeps everything.
    probe, found = reading.probe, set[str]()
    if reading.look.head.base is None or not probe.rows or "attention_mask" not in probe.inputs:
        return
    for topic, other in (
        (GapTopic.WITHOUT_PADDING, probe.without_padding()),
        (GapTopic.SINGLE_TOKEN, probe.of_one_token()),
    ):
        fault = _fault_on(reading, model, other, tells_failure=other.length > 1)
        if fault and fault not in found:
            found.add(fault)
            yield Gap(topic, f"the forward {fault} on such inputs; headscope shows the path for padded inputs")


def _on_examples(reading: _Reading, model: nn.Module, cheap: nn.Module) -> str:
    """Says what the caller's own inputs contradict, with the model's real values; "" for nothing."""
    examples = reading.probe.examples
    probe = None if examples is None else probe_as_given(model, examples)
    if probe is None or (reading.shortest > 1 and any(row.eos < 0 for row in probe.rows)):
        return ""
    subject = model if probe.batch * max(probe.length, 1) <= _MOST_TOKENS else cheap
    fault = _fault_on(reading, subject, probe, with_numbers=True)
    return f"on the example inputs ({_batch_words(probe)}), the forward {fault}" if fault else ""


def _at_other_sizes(reading: _Reading, model: nn.Module, *, is_own: bool) -> tuple[str, str]:
    """Says what the first of other sizes contradicts, and what the first of texts longer than the traced ones does."""
    probe, longer, holds = reading.probe, "", reading.longest
    numbers = set(_numbers_of_positions(reading.look)) if is_own else _unreached_numbers(reading.look)
    done, watched = set[tuple[int, int]](), SizeBranches(probe, base_module(model))
    if is_own:
        _fault_on(reading, model, probe, watch=watched)
        if fault := _with_other_tokens(reading, model, watched.tokens):
            return fault, ""
    waiting, guessed = _first_sizes(watched, probe, numbers, is_own=is_own)
    places = {place for place, _ in watched.decisions}
    numbers |= watched.lengths
    configs = (getattr(module, "config", None) for module in (reading.look.execution.model, reading.look.head.base))
    limits = (limit for config in configs if (limit := longest_text(config)) is not None)
    most = min((MOST if is_shape_only(model) else _MOST_REAL, *limits))
    while (size := next(iter(waiting), None)) is not None and len(done) < _MOST_RUNS:
        waiting = [item for item in waiting if item != size]
        batch, length = size
        if size in done or 0 < length < reading.shortest or length > most:
            continue
        done.add(size)
        other = probe.resized(batch, length, _rows_near(batch, length, numbers, reading.shortest) if length else ())
        watched = SizeBranches(other, base_module(model))
        fault = _fault_on(reading, model, other, watch=watched if is_own else None)
        if fault and (length <= reading.longest or batch != probe.batch):
            return f"for {_batch_words(other)}, the forward {fault}", longer
        if fault:
            most, longer = length - 1, f"for texts of {length} tokens, the forward {fault}"
        elif batch == probe.batch:
            holds = max(holds, length)
        waiting[:0] = _sizes_of_decisions(watched, other, places)
        places |= {place for place, _ in watched.decisions}
    if longer:
        return "", f"{longer}; what is shown holds for texts of {min(holds, most)} tokens"
    rest = {size for size in waiting if size[1] <= most}
    reason = "the forward may compare sizes with more numbers than headscope tries" if rest else ""
    return ("", reason) if rest <= guessed else (reason, "")


def _with_other_tokens(reading: _Reading, model: nn.Module, compared: set[int]) -> str:
    """Says what a token contradicts that the code compares ids with, if no traced text holds it; "" for nothing."""
    probe = reading.probe
    ids = probe.inputs.get("input_ids")
    held = set(ids.flatten().tolist()) if isinstance(ids, torch.Tensor) else set()
    for token in sorted(compared - held)[:_MOST_COMPARED] if held else ():
        if fault := _fault_on(reading, model, probe.with_token(token)):
            return f"for texts with the token {token}, the forward {fault}"
    return ""


def _first_sizes(
    watched: SizeBranches, probe: ProbeBatch, numbers: set[int], *, is_own: bool
) -> tuple[list[tuple[int, int]], set[tuple[int, int]]]:
    """Lists the sizes to begin with. Those at their end, which the second result has, are only guessed."""
    batch, length = probe.batch, probe.length
    # Few rows, and lengths of either parity, none longer than what was traced.
    usual = ((1, length - 1), (2, length), (3, length - 3)) if length else ((1, 0), (2, 0))
    # Lengths around the numbers that positions are compared with.
    around = ((batch, at + more) for at in sorted(numbers) for more in (-1, 0, 1, 3) if at + more > 1)
    sizes = [*(usual if is_own else ()), *_sizes_of_decisions(watched, probe, set()), *around]
    # Sizes around the numbers of code that gets sizes as plain numbers.
    guessed = {(at + more, length) for at in watched.batches for more in (0, 1) if at < _MOST_ROWS}
    guessed |= {(batch, at + more) for at in watched.lengths for more in (-1, 0, 1)}
    guessed -= set(sizes)
    return [*sizes, *sorted(guessed)], guessed


def _sizes_of_decisions(watched: SizeBranches, probe: ProbeBatch, places: set[Place]) -> list[tuple[int, int]]:
    """Lists batch and length on both sides of every decision that isn't made at one of `places`."""
    batch, length = probe.batch, probe.length
    found: list[tuple[int, int]] = []
    for _, decides in (item for item in watched.decisions if item[0] not in places):
        found += [(batch, at) for at in _sizes_of_flips(partial(decides, batch), length, range(2, MOST)) if length]
        found += [
            (at, length) for at in _sizes_of_flips(partial(_for_batch, decides, length), batch, range(1, _MOST_ROWS))
        ]
    return found


def _for_batch(decides: Decision, length: int, batch: int) -> Any:
    return decides(batch, length)


def _sizes_of_flips(decides: Callable[[int], Any], near: int, sizes: range) -> list[int]:
    """Lists the sizes between which a decision changes, the nearest first."""
    answers = []
    for at in sizes:
        with suppress(ArithmeticError):  # a divisor may be 0 at this size
            answers.append((at, bool(decides(at))))
    changes = [(one[0], other[0]) for one, other in pairwise(answers) if one[1] != other[1]]
    nearest = sorted(changes, key=lambda pair: abs(pair[0] - near))[:_FLIPS]
    return [at for below, above in nearest for at in (below, above, above + _FURTHER) if at in sizes]


def _numbers_of_positions(look: Look) -> Iterator[int]:
    """Yields the numbers that a forward computes positions and masks with outside its base model.

    Also yields numbers of the head's operations that are larger than any length here and no size: the end of a slice.
    """
    longest, own = look.execution.probe.length, {item.index for item in look.head.operations}
    for made in look.execution.graph.operations:
        is_position = not any(item.is_meta or id(item) in look.head.derived for item in made.outputs)
        if look.head.base in made.modules or not (is_position or made.index in own):
            continue
        least = 1 if is_position else longest
        shown = {size for item in (*made.inputs, *made.outputs) for size in item.shape}
        yield from (number for number in _numbers_in(made) if least < number <= MOST and number not in shown)


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


def _rows_near(batch: int, length: int, numbers: set[int], shortest: int) -> tuple[ProbeRow, ...]:
    """Makes rows with texts as long as numbers near the length, and a little shorter and longer; the first is
    padded.
    """
    near = sorted({at + more for at in numbers for more in (-1, 0, 1)}, key=lambda at: abs(at - length))
    texts = [at for at in dict.fromkeys((length - 2, *near, length, 3, 1)) if min(shortest, length) <= at <= length]
    found = []
    for at in range(batch):
        count = texts[at % len(texts)]
        first = length - count if at % 3 == 1 else 0
        last = first + count - 1
        found.append(ProbeRow(first, last, max(last - _EOS_FROM_END, first)))
    return tuple(found)


def _batch_words(probe: ProbeBatch) -> str:
    rows = f"a batch of {probe.batch}"
    return f"{counted(probe.batch, 'text')} of {counted(probe.length, 'token')}" if probe.length else rows


def _fault_on(
    reading: _Reading,
    model: nn.Module,
    probe: ProbeBatch,
    *,
    watch: SizeBranches | None = None,
    with_numbers: bool = False,
    tells_failure: bool = False,
) -> str:
    """Says what is wrong with a reading on other inputs; "" even if the forward fails on them: it has no scores
    then.
    """
    first = reading.look.execution
    try:
        with nullcontext() if watch is None else watch:
            other = run_forward(model, probe, hint="", output=first.output, fails_without_pad=first.fails_without_pad)
        same = find_counterpart(reading.look.head, other)
        if with_numbers and (reasons := unfaithful_reasons(same.head)):
            return f"gives scores that headscope can't follow: {reasons[0]}"
        return _fault_of(reading, same, with_numbers=with_numbers)
    except Differs as err:
        return str(err)
    except Unsupported as err:
        if watch is not None:  # a forward may take no numbers but plain ones
            return _fault_on(reading, model, probe, with_numbers=with_numbers, tells_failure=tells_failure)
        return err.message if tells_failure else ""


def _fault_of(reading: _Reading, same: Counterpart, *, with_numbers: bool) -> str:
    probe, usual = same.other.probe, replay_head(same.head)
    if (probe.length and not probe.rows) or not _are_finite(usual):  # padding between the tokens of a text
        return ""
    if reading.formula.nodes:
        only = reading.formula.numbers_only
        nodes = tuple(same.carried(node, numbers_only=only) for node in reading.formula.nodes)
        known = known_hidden(same.head) if with_numbers else {}
        replay = replay_head(same.head, known) if known else usual
        if _are_finite(replay) and equals_head(replay, nodes):
            return "gives other scores than the formula"
    return _fault_of_pooling(reading, same, ChangedInputs(same.axes(reading.look.axes), usual))


def _are_finite(replay: Replay) -> bool:
    return all(bool(scores.isfinite().all()) for scores in replay.logits)


def _fault_of_pooling(reading: _Reading, same: Counterpart, runs: ChangedInputs) -> str:
    look, length = reading.look, runs.probe.length
    places = [part.positions for part in reading.pooling.parts]
    if not places or any(item.where is Where.INDEX and (item.index or 0) >= length > 0 for item in places):
        return ""  # a text that is too short for a position has none
    if _moves_all_it_names(reading.pooling, look.runs) and not _moves_all_it_names(reading.pooling, runs):
        return "reads other positions"
    tensors = tuple(tuple(same.of(tensor) for tensor in pair) for pair in look.read.tensors)
    found = verify_pooling(same.head, reading.pooling, runs.axes, tensors, runs)
    return "reads other positions" if found.agrees is False else ""


def _moves_all_it_names(pooling: Pooling, runs: ChangedInputs | None) -> bool:
    """True if the scores of each row depend on exactly the positions that a weighted sum names: all, or no padding."""
    if runs is None or pooling.kind is not PoolingKind.WEIGHTED:
        return False
    influence = measure_influence(runs.usual, runs.axes)
    if influence is None:
        return False
    try:
        return influence.rows == claimed_rows(pooling.parts, runs.probe, influence.length)
    except ValueError:
        return False
