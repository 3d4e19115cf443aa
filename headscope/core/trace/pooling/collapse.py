"""Collapse of the token axis: what a pick, a mean, a maximum or a sum reads of the positions."""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Self

import torch

from headscope.core.facts import PoolingKind, Positions, Where
from headscope.core.trace.record.indexing import index_items, item_on_axis
from headscope.core.trace.replay.picks import HeadSteps, inputs_behind, read_pick
from headscope.core.trace.slice.head_slice import IMAGE_RANK
from headscope.core.trace.slice.stages import Step

ALL = Positions(Where.ALL)
_BY_ROW = Positions(Where.BY_ROW)


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a pooling: a kind, the positions, and the rule in words.

    `details` are what the rule says beside the kind, the positions and the sources: they are compared, and its words
    are not. `sources` are the numbers of the hidden states that it mixes; `summed` is the number of positions of a sum
    that nothing has divided yet; `tensors` are those before and after the token axis disappears. `smallest` is the rule
    that a maximum has if its values have their sign changed: then the smallest value is read. `has_padding` says
    whether a weighted sum reads padding; None if that isn't known.
    """

    kind: PoolingKind
    positions: Positions
    rule: str = field(compare=False)
    details: tuple[Hashable, ...] = ()
    evidence: tuple[Step, ...] = ()
    summed: int = 0
    sources: tuple[int, ...] = (0,)
    tensors: tuple[torch.Tensor, ...] = field(default=(), compare=False, repr=False)
    smallest: str = field(default="", compare=False)
    has_padding: bool | None = None

    def as_other(self, words: str, *details: Hashable) -> Self:
        """Makes a part of no kind that has a name, whose rule ends in further words with these details."""
        known = (self.kind, *self.details, *details)
        return replace(self, kind=PoolingKind.OTHER, rule=f"{self.rule}{words}", details=known)


@dataclass(frozen=True, slots=True)
class Tokens:
    """State of a tensor that still has its token axis, with what was done to its positions so far.

    `mixed`: a position already holds something of others; `kept`: the positions that are left (None after a slice
    that is not a run of positions); `sources`: which of the hidden states it holds, counted from 0. `window`: a
    convolution over several positions that it went through. `decided`: it holds truth values or numbers made from them
    (`attention(h) > 0`); `chosen`: such values took positions out, or put others in their place.
    """

    masked: bool = False
    weighted: bool = False
    mixed: bool = False
    kept: Positions | None = ALL
    sources: tuple[int, ...] = (0,)
    touched_by: tuple[Step, ...] = ()
    window: Step | None = None
    decided: bool = False
    chosen: bool = False


State = Tokens | tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Reading(HeadSteps):
    """State of reading a head: the state of each tensor by its id, and the steps that join different parts."""

    states: dict[int, State]
    joins: list[Step]


def collapse(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    """Describes what a step reads of the positions of `entering`, whose token axis is gone in its result."""
    if _joins_rows(step, entering, reading):
        rule = f"the token axis and the batch disappear together in {step.name}"
        by, details = (*state.touched_by, step), ("rows", step.name)
        return (Part(PoolingKind.OTHER, _BY_ROW, rule, details, by, sources=state.sources),)
    classify = _COLLAPSES.get(step.name, _read_other)
    # Values of the hidden states chose the positions, so the rule of the operation alone would be wrong.
    if state.chosen and (classify in _CHOOSES or (classify in _SUMS and not state.weighted)):
        classify = _read_chosen
    parts = classify(step, entering, state, reading)
    by = (*state.touched_by, step)
    # A mean or a sum of mixed positions still reads all of them; one position no longer holds only its token.
    if state.mixed and classify in {_read_pick, _read_max}:
        last = state.touched_by[-1].name if state.touched_by else "another operation"
        mixer = (state.window.name, "neighboring") if state.window else (last, "all")
        parts = tuple(part.as_other(f", after {' over '.join(mixer)} positions", *mixer) for part in parts)
        by = (*state.touched_by, state.window, step) if state.window else by
    tensors = (entering, step.last.outputs[0])
    return tuple(replace(part, evidence=by, sources=state.sources, tensors=tensors) for part in parts)


def _joins_rows(step: Step, entering: torch.Tensor, reading: Reading) -> bool:
    """True if the positions of all rows are reduced together, so that a row's score depends on its neighbors."""
    probe, output = reading.execution.probe, step.last.outputs[0]
    flat = probe.batch * probe.length
    if not flat or entering.shape[0] != flat or output.numel() == 0 or step.name not in {"mean", "sum", "max"}:
        return False
    return output.dim() == 0 or output.shape[0] not in {probe.batch, flat}


def _read_pick(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    positions = read_pick(step, reading)
    if positions is None or state.kept is None:
        return _read_other(step, entering, state, reading)
    if state.kept != ALL:
        if positions.where is not Where.INDEX:
            return _read_other(step, entering, state, reading)
        positions = _index_within(state.kept, positions.index or 0, reading)
    return (part_of_pick(positions, step, reading),)


def _index_within(kept: Positions, index: int, reading: Reading) -> Positions:
    """Converts an index into a run of positions to an index into the whole row."""
    if index >= 0:
        index += kept.index or 0
    elif kept.stop is not None:
        index += kept.stop
    token = (reading.tokens.first or "") if index == 0 else ""
    return Positions(Where.INDEX, index, token=token, parameter=reading.tokens.parameter_at(index))


def part_of_pick(positions: Positions, step: Step, reading: Reading) -> Part:  # noqa: PLR0911 - one line for each kind
    """Makes the part for one position per row, with its rule in words."""
    sources = tuple(sorted(inputs_beside(step, reading)))
    found = f", found from {' and '.join(sources)}" if sources else ""
    is_text = _reads_texts(reading)
    fixed = ", padding or not" if is_text else ""
    placed = f", where the model puts its {positions.text}" if positions.parameter else ""
    match positions.where:
        case Where.INDEX if positions.index == 0:
            whose = "the tokenizer" if reading.tokens.is_own else "the family's tokenizer"
            called = f", where {whose} puts {positions.token}" if positions.token else ""
            called = ", a virtual token of the adapter" if reading.tokens.ahead else called or placed
            return Part(PoolingKind.FIRST_TOKEN, positions, f"first position (index 0){fixed}{called}", (is_text,))
        case Where.INDEX if positions.index == -1:
            return Part(PoolingKind.LAST_TOKEN, positions, f"last position{fixed}", (is_text,))
        case Where.INDEX:
            return Part(PoolingKind.TOKEN_AT, positions, f"position {positions.index}{fixed}{placed}", (is_text,))
        case Where.LAST_NON_PAD:
            return Part(PoolingKind.LAST_NON_PAD_TOKEN, positions, f"last position that is not padding{found}", sources)
        case Where.AFTER_LAST_NON_PAD:
            rule = f"the position after the last that is not padding, within the row{found}"
            return Part(PoolingKind.LAST_NON_PAD_TOKEN, positions, rule, sources)
        case Where.EOS:
            which = _which_of_marked(step, reading)
            rule = f"position of the {which}{positions.text} token{found}"
            return Part(PoolingKind.EOS_TOKEN, positions, rule, (*sources, which))
        case Where.FIRST_NON_PAD:
            return Part(PoolingKind.FIRST_TOKEN, positions, f"first position that is not padding{found}", sources)
    return Part(PoolingKind.OTHER, _BY_ROW, "one position per row, by a rule not recognized", ("pick",))


def _which_of_marked(step: Step, reading: Reading) -> str:
    """Says which of the tokens that a mask keeps in a row is taken behind it, `first ` or `last `; "" if none is.

    The probe can't tell: its rows have one end token each.
    """
    items = index_items(step.last)
    if not any(isinstance(item, torch.Tensor) and item.dtype == torch.bool for item in items):
        return ""
    graph = reading.execution.graph
    behind = (graph.operations[at] for at in sorted(graph.after(step.last.outputs[0])))
    taken = next((item for item in behind if item.name not in {"view", "reshape"}), None)
    is_select = taken is not None and taken.name in {"__getitem__", "select"}
    return {"0": "first ", "-1": "last "}.get(str(item_on_axis(taken, 1)), "") if taken and is_select else ""


def _read_mean(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    if state.weighted:
        return (Part(PoolingKind.WEIGHTED, ALL, "mean of the positions, each with its own weight", ("mean",)),)
    if state.masked:
        rule = "mean over all positions of values that a mask has set to zero"
        return (Part(PoolingKind.OTHER, ALL, rule, ("zeroed mean",)),)
    if state.kept is None:
        return (Part(PoolingKind.OTHER, _BY_ROW, "mean over some positions, by a rule not recognized", ("mean",)),)
    if state.kept == ALL and not reading.execution.probe.length and entering.dim() == IMAGE_RANK:
        return (Part(PoolingKind.SPATIAL_MEAN, ALL, "mean over all spatial positions"),)
    return (_mean_over(state.kept, reading),)


def _mean_over(kept: Positions, reading: Reading) -> Part:
    if kept != ALL:
        return Part(PoolingKind.MEAN, kept, f"mean over {_range_words(kept)}")
    return Part(PoolingKind.MEAN, ALL, f"mean over all positions{_and_padding(reading)}", (_reads_texts(reading),))


def _and_padding(reading: Reading) -> str:
    """Returns words on padding, for inputs that have it."""
    return ", padding included" if _reads_texts(reading) else ""


def _reads_texts(reading: Reading) -> bool:
    """True if the positions are tokens of a text, which is padded; patches and entities are not."""
    length = reading.execution.probe.length
    sizes = {length, length * reading.execution.probe.batch}
    return bool(length) and any(sizes & set(tensor.shape) for tensor in reading.head.hidden)


def _range_words(kept: Positions) -> str:
    if kept.stop is None:
        return "all positions but the first" if kept.index == 1 else f"all positions but the first {kept.index}"
    return f"the positions {kept.text}"


def _read_sum(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    if state.weighted:
        return (Part(PoolingKind.WEIGHTED, ALL, "weighted sum of the positions"),)
    if state.kept is None:
        return (Part(PoolingKind.OTHER, _BY_ROW, "sum over some positions, by a rule not recognized", ("sum",)),)
    count = math.prod(entering.shape[axis] for axis in reading.axes.of(entering))
    if state.masked:
        rule = "sum over the positions that the mask keeps"
        return (Part(PoolingKind.MASKED_MEAN, Positions(Where.NON_PAD), rule, ("sum",), summed=count),)
    return (Part(PoolingKind.OTHER, state.kept, "sum over the positions", ("sum",), summed=count),)


def _read_deviation(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    return (Part(PoolingKind.OTHER, ALL, "standard deviation of each feature over all positions", ("deviation",)),)


def _read_max(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    if state.kept is None:
        return (Part(PoolingKind.OTHER, _BY_ROW, "largest value of each feature over some positions", ("max",)),)
    if state.masked:
        positions, over = Positions(Where.NON_PAD), "the positions that the mask keeps"
    elif state.kept != ALL:
        positions, over = state.kept, _range_words(state.kept)
    else:
        positions, over = state.kept, f"the positions{_and_padding(reading)}"
    weights = ", each multiplied by its own weight" if state.weighted else ""
    words = f"value of each feature over {over}{weights}"
    details = (positions == ALL and _reads_texts(reading), state.weighted)
    return (Part(PoolingKind.MAX, positions, f"largest {words}", details, smallest=f"smallest {words}"),)


def _read_chosen(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    rule = f"{step.name} over positions that the values of the hidden states choose"
    return (Part(PoolingKind.OTHER, _BY_ROW, rule, ("chosen", step.name)),)


def _read_weighted(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    return (Part(PoolingKind.WEIGHTED, ALL, "weighted sum of the positions"),)


def _read_flatten(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    probe, output = reading.execution.probe, step.last.outputs[0]
    if entering.numel() == output.numel() and output.shape[0] == probe.batch:
        return (Part(PoolingKind.FLATTEN, ALL, "all positions side by side, one weight for each"),)
    return _read_other(step, entering, state, reading)


def _read_other(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    rule = f"the token axis disappears in {step.name}, by a rule not recognized"
    return (Part(PoolingKind.OTHER, ALL, rule, ("axis", step.name)),)


_COLLAPSES: dict[str, Callable[[Step, torch.Tensor, Tokens, Reading], tuple[Part, ...]]] = {
    "select": _read_pick,
    "index": _read_pick,
    "slice": _read_pick,
    "gather": _read_pick,
    "take_along_dim": _read_pick,
    "mean": _read_mean,
    "adaptive_avg_pool1d": _read_mean,
    "adaptive_avg_pool2d": _read_mean,
    "avg_pool2d": _read_mean,
    "adaptive_avg_pool3d": _read_mean,
    "avg_pool1d": _read_mean,
    "sum": _read_sum,
    "std": _read_deviation,
    "var": _read_deviation,
    "max": _read_max,
    "adaptive_max_pool1d": _read_max,
    "adaptive_max_pool2d": _read_max,
    "max_pool1d": _read_max,
    "max_pool2d": _read_max,
    "matmul": _read_weighted,
    "bmm": _read_weighted,
    "einsum": _read_weighted,
    "scaled_dot_product_attention": _read_weighted,
    "multi_head_attention_forward": _read_weighted,
    "flatten": _read_flatten,
    "reshape": _read_flatten,
    "view": _read_flatten,
}
_CHOOSES, _SUMS = {_read_max, _read_deviation}, {_read_mean, _read_sum}


def averaged(part: Part, step: Step, reading: Reading) -> Part:
    """Makes a mean of a sum over tokens that a step divides by their number."""
    if not part.summed:
        return part
    part = replace(part, tensors=(*part.tensors[:1], step.last.outputs[0]))
    # A number in the source, not a tensor: it can't follow the number of tokens that a mask keeps.
    divisor = step.last.args[1] if len(step.last.args) > 1 else None
    constant = float(divisor) if isinstance(divisor, int | float) else None
    if constant is not None and (constant != part.summed or part.kind is PoolingKind.MASKED_MEAN):
        is_count = constant == part.summed
        by = "the number of all positions" if is_count else f"{constant:g}"
        divided = part.as_other(f", divided by {by}", None if is_count else constant)
        return replace(divided, evidence=(*part.evidence, step), summed=0)
    if part.kind is PoolingKind.MASKED_MEAN or any("mask" in name for name in inputs_beside(step, reading)):
        rule = "mean over the positions that the mask keeps"
        mean = Part(PoolingKind.MASKED_MEAN, Positions(Where.NON_PAD), rule)
    else:
        mean = _mean_over(part.positions, reading)
    return replace(mean, evidence=(*part.evidence, step), sources=part.sources, tensors=part.tensors)


def inputs_beside(step: Step, reading: Reading) -> set[str]:
    """Names the model inputs that reach a step beside the hidden states."""
    derived = reading.head.derived
    beside = (item for operation in step.operations for item in operation.inputs if id(item) not in derived)
    return inputs_behind(beside, reading.execution)
