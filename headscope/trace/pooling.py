"""The pooling: how the token axis of the hidden states disappears on the way to the logits, read step by step."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch

from headscope.facts import Evidence, HiddenSource, Pooling, PoolingKind, PoolingPart, Positions, Where
from headscope.trace.axes import TokenAxes
from headscope.trace.execution import Execution
from headscope.trace.head_slice import IMAGE_RANK, HeadSlice
from headscope.trace.indexing import Picked
from headscope.trace.masks import is_binary, is_other_mask
from headscope.trace.names import ModelNames
from headscope.trace.picks import (
    TokenNames,
    explain_pick,
    inputs_behind,
    is_mask_of_rows,
    read_pick,
    sliced_positions,
)
from headscope.trace.recorder import Operation
from headscope.trace.stages import Step, entering_tensors, short_path

_ALL = Positions(Where.ALL)
_BY_ROW = Positions(Where.BY_ROW)
_FAR_BELOW = -1e3
"""A number that takes a position out of a maximum when it is added: masks add from -1e4 to minus infinity."""


@dataclass(frozen=True, slots=True)
class Part:
    """One thing the head reads of the tokens: a kind, the positions, and the rule in words.

    `sources` are the numbers of the hidden states that it mixes; `summed` is the number of positions of a sum that
    nothing has divided yet; `tensors` are those before and after the token axis disappears.
    """

    kind: PoolingKind
    positions: Positions
    rule: str
    evidence: tuple[Step, ...] = ()
    summed: int = 0
    sources: tuple[int, ...] = (0,)
    tensors: tuple[torch.Tensor, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The state of a tensor that still has its token axis, with what was done to its positions so far.

    `mixed`: a position already holds something of others; `kept`: the positions that are left (None after a slice
    that is no run of positions); `sources`: which of the hidden states it holds, counted from 0. `window`: a
    convolution over several positions that it went through. `decided`: it holds truth values or numbers made from them
    (`attention(h) > 0`); `chosen`: such values took positions out, or put others in their place.
    """

    masked: bool = False
    weighted: bool = False
    mixed: bool = False
    kept: Positions | None = _ALL
    sources: tuple[int, ...] = (0,)
    touched_by: tuple[Step, ...] = ()
    window: Step | None = None
    decided: bool = False
    chosen: bool = False


State = Tokens | tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known while a head is read: its token axes, and the state of each tensor by its id."""

    execution: Execution
    head: HeadSlice
    names: TokenNames
    axes: TokenAxes
    states: dict[int, State]
    joins: list[Step]


def read_pooling(  # noqa: PLR0917 - a pooling is read from that many sides
    execution: Execution,
    head: HeadSlice,
    steps: tuple[Step, ...],
    names: TokenNames,
    axes: TokenAxes,
    sources: tuple[HiddenSource, ...],
) -> tuple[Pooling, tuple[tuple[torch.Tensor, ...], ...]]:
    """The pooling of a head, with the operations that show it.

    Beside it, for each of its parts, the tensors before and after the token axis disappears; empty where it stays.
    """
    states: dict[int, State] = {id(tensor): Tokens(sources=(number,)) for number, tensor in enumerate(head.hidden)}
    reading = Reading(execution, head, names, axes, states, [])
    for step in steps:
        state = _state_after(step, reading)
        for operation in step.operations:
            for output in operation.outputs:
                reading.states[id(output)] = _state_of_output(output, state, step, reading)
        if step.name in _SPLITS:
            _read_split(step, reading)
    parts = _parts_at_the_logits(reading)
    return _pooling(parts, reading, sources), tuple(part.tensors for part in parts)


def _state_of_output(output: torch.Tensor, state: State, step: Step, reading: Reading) -> State:
    """The state after a step, but for a second output that has lost the token axis: the end state of an LSTM."""
    if not isinstance(state, Tokens) or step.name not in _RECURRENT or reading.axes.of(output):
        return state
    rule = f"end state of {step.name} over all positions"
    return (Part(PoolingKind.OTHER, _ALL, rule, (*state.touched_by, step), sources=state.sources),)


def _read_split(step: Step, reading: Reading) -> None:
    """Each output of a split along the token axis separately: a piece of one token is that token."""
    entering = entering_tensors(step, reading.head)[0]
    state = reading.states.get(id(entering))
    axis = reading.axes.first(entering)
    if not isinstance(state, Tokens) or axis is None:
        return
    pieces = step.last.outputs
    sizes = [1 if piece.dim() < entering.dim() else piece.shape[axis] for piece in pieces]
    if sum(sizes) != entering.shape[axis]:
        return
    reading.axes.sizes.update(size for size in sizes if size > 1)
    length = entering.shape[axis]
    for piece, size, start in zip(pieces, sizes, accumulate(sizes, initial=0), strict=False):
        if size > 1:
            stop = None if start + size == length else start + size
            reading.states[id(piece)] = replace(
                state, kept=Positions(Where.RANGE, start, stop), touched_by=(*state.touched_by, step)
            )
            continue
        picked = Picked((start,) * reading.execution.probe.batch, start, length)
        part = _part_of_pick(explain_pick(picked, reading.execution, reading.names), step, reading)
        tensors = (entering, piece)
        reading.states[id(piece)] = (replace(part, evidence=(step,), sources=state.sources, tensors=tensors),)


def _parts_at_the_logits(reading: Reading) -> tuple[Part, ...]:
    found: dict[Part, None] = {}
    for logits in reading.execution.logits:
        state = reading.states.get(id(logits), ())
        for part in (_each_token(state),) if isinstance(state, Tokens) else state:
            found[part] = None
    return tuple(found)


def _each_token(state: Tokens) -> Part:
    each = Positions(Where.EACH)
    if state.mixed:
        rule = "one score per token, computed from other positions too"
        return Part(PoolingKind.OTHER, each, rule, state.touched_by, sources=state.sources)
    rule = "one score per token: nothing is pooled"
    return Part(PoolingKind.NONE, each, rule, state.touched_by, sources=state.sources)


def _state_after(step: Step, reading: Reading) -> State:
    entering = [(tensor, reading.states.get(id(tensor), ())) for tensor in entering_tensors(step, reading.head)]
    open_ones = [(tensor, state) for tensor, state in entering if isinstance(state, Tokens)]
    closed = [part for _, state in entering if not isinstance(state, Tokens) for part in state]
    if not open_ones:
        return _after_pooling(step, _joined(step, closed, len(entering), reading), reading)
    merged = _chosen(step, open_ones, _merged([state for _, state in open_ones]), reading)
    if _keeps_tokens(step, open_ones[0][0], reading):
        mixes = step.name in _RECURRENT or (step.name in _PRODUCTS and _open_operands(step, reading) > 1)
        if _is_window(step, open_ones[0][0], reading):
            merged = replace(merged, mixed=True, window=step)
        by = (*merged.touched_by, step) if mixes else merged.touched_by
        return _touched(step, replace(merged, mixed=merged.mixed or bool(closed) or mixes, touched_by=by), reading)
    return _joined(step, [*closed, *_collapse(step, open_ones[0][0], merged, reading)], len(entering), reading)


def _open_operands(step: Step, reading: Reading) -> int:
    """How many operands of a step have their token axis, a tensor that is there twice counted twice."""
    operands = [tensor for operation in step.operations for tensor, _ in operation.inputs]
    return sum(isinstance(reading.states.get(id(tensor)), Tokens) for tensor in operands)


def _joined(step: Step, parts: list[Part], operands: int, reading: Reading) -> tuple[Part, ...]:
    """The parts of a step's operands, each once; where it joins different ones, how is remembered."""
    found: dict[tuple[PoolingKind, Positions, str, tuple[int, ...]], Part] = {}
    for part in parts:
        found.setdefault((part.kind, part.positions, part.rule, part.sources), part)
    unique = tuple(found.values())
    if operands > 1 and len(unique) > 1:
        reading.joins.append(step)
    return unique


def _merged(states: list[Tokens]) -> Tokens:
    return Tokens(
        masked=any(state.masked for state in states),
        weighted=any(state.weighted for state in states),
        mixed=any(state.mixed for state in states),
        kept=states[0].kept if len({state.kept for state in states}) == 1 else None,
        sources=tuple(sorted({number for state in states for number in state.sources})),
        touched_by=tuple(dict.fromkeys(step for state in states for step in state.touched_by)),
        window=next((state.window for state in states if state.window), None),
        decided=all(state.decided for state in states),
        chosen=any(state.chosen for state in states),
    )


def _chosen(step: Step, entering: list[tuple[torch.Tensor, Tokens]], merged: Tokens, reading: Reading) -> Tokens:
    """The state with what truth values made from the hidden states do: a comparison makes them, a mask uses them.

    A tensor that is masked by a comparison of its own entries (`where(h > 0, h, 0)`) is changed entry by entry, which
    chooses no positions.
    """
    if not step.last.outputs[0].is_floating_point():
        return replace(merged, decided=True)
    deciding = [tensor for tensor, state in entering if state.decided]
    if merged.decided or not deciding:
        return merged
    others = {id(tensor) for tensor, state in entering if not state.decided}
    by_entry = all(_compared(tensor, reading) == others for tensor in deciding)
    return merged if by_entry else replace(merged, chosen=True, touched_by=(*merged.touched_by, step))


def _compared(tensor: torch.Tensor, reading: Reading) -> set[int]:
    """The ids of what truth values were made from, through casts and other steps between truth values."""
    graph, derived = reading.execution.graph, reading.head.derived
    found: set[int] = set()
    for item, _ in graph.operations[graph.producer(tensor)].inputs:
        if id(item) in derived:
            state = reading.states.get(id(item))
            found |= _compared(item, reading) if isinstance(state, Tokens) and state.decided else {id(item)}
    return found


def _is_window(step: Step, entering: torch.Tensor, reading: Reading) -> bool:
    """Whether a convolution computes each position from its neighbours too."""
    weight = step.last.kwargs.get("weight", step.last.args[1] if len(step.last.args) > 1 else None)
    if step.name not in _CONVOLUTIONS or not isinstance(weight, torch.Tensor):
        return False
    places = zip(range(-_CONVOLUTIONS[step.name], 0), weight.shape[_CHANNELS:], strict=True)
    return any(size > 1 and entering.dim() + axis in reading.axes.of(entering) for axis, size in places)


def _keeps_tokens(step: Step, entering: torch.Tensor, reading: Reading) -> bool:
    """Whether the token axis is still there: an axis of a known size, or a window over it that changed its size."""
    output = step.last.outputs[0]
    if reading.axes.of(output):
        return True
    if reading.axes.grown is not None:
        return False
    resized = step.name in _RESIZING and _long_axes(output) >= _long_axes(entering) > 1
    if resized:
        places = output.shape[-_PLANES[step.name] :] if step.name in _PLANES else output.shape[1:]
        reading.axes.sizes.update(size for size in places if size > 1 and size not in entering.shape)
    return resized


def _long_axes(tensor: torch.Tensor) -> int:
    return sum(size > 1 for size in tensor.shape[1:])


def _touched(step: Step, state: Tokens, reading: Reading) -> Tokens:
    if step.name in {"mul", "masked_fill", "where", "index_put"}:
        return _weighed(step, state, reading)
    if step.name in {"add", "sub"} and _takes_padding_out(step, reading):
        return replace(state, masked=True)
    if step.name == "pad":
        return replace(state, kept=None, touched_by=(*state.touched_by, step))
    if step.name == "slice" and state.kept is not None:
        kept = sliced_positions(step.last, reading.axes, state.kept)
        return replace(state, kept=kept, touched_by=(*state.touched_by, step))
    return state


def _weighed(step: Step, state: Tokens, reading: Reading) -> Tokens:
    """The state after a product, or after numbers were put in: by the mask, by another one, by weights."""
    if _side_inputs(step, reading) & reading.execution.probe.given:
        return replace(state, kept=None, touched_by=(*state.touched_by, step))
    if _reads_other_mask(step, reading):
        is_weight = step.name == "mul"
        kept = state.kept if is_weight else None
        return replace(state, weighted=is_weight, kept=kept, touched_by=(*state.touched_by, step))
    if any("mask" in name or name == "input_ids" for name in _side_inputs(step, reading)):
        if step.name == "mul" and _reads_side_numbers(step, reading):
            return replace(state, weighted=True, touched_by=(*state.touched_by, step))
        return replace(state, masked=True, touched_by=(*state.touched_by, step))
    if step.name == "mul" and _differs_by_position(step, reading):
        return replace(state, weighted=True, touched_by=(*state.touched_by, step))
    return state


def _reads_side_numbers(step: Step, reading: Reading) -> bool:
    """Whether a tensor beside the hidden states holds other numbers than zeros and ones: a mask that was divided."""
    return any(not is_binary(item) for item in _known_beside(step, reading))


def _known_beside(step: Step, reading: Reading) -> Iterator[torch.Tensor]:
    """The tensors of several numbers that reach a step beside the hidden states, and whose numbers are known."""
    derived = reading.head.derived
    for operation in step.operations:
        for tensor, _ in operation.inputs:
            if id(tensor) not in derived and not tensor.is_meta and tensor.numel() > 1:
                yield tensor


def _takes_padding_out(step: Step, reading: Reading) -> bool:
    """Whether a sum adds a large negative number to each position of padding, and nothing to the others."""
    known = _known_beside(step, reading)
    return any(is_mask_of_rows(item == 0, reading.execution) and _is_large(item, step) for item in known)


def _is_large(added: torch.Tensor, step: Step) -> bool:
    """Whether all that isn't zero pushes its position below any other."""
    numbers = added[added != 0].float()
    if step.name == "sub":
        numbers = -numbers
    return bool((numbers <= _FAR_BELOW).all())


def _reads_other_mask(step: Step, reading: Reading) -> bool:
    """Whether zeros and ones reach a step that keep other positions than those that are not padding."""
    return any(
        id(tensor) not in reading.head.derived and is_other_mask(tensor, producer, reading.execution)
        for operation in step.operations
        for tensor, producer in operation.inputs
    )


def _differs_by_position(step: Step, reading: Reading) -> bool:
    """Whether a product weighs positions: both factors are made from the hidden states and both have a token axis."""
    entering = entering_tensors(step, reading.head)
    return len(entering) > 1 and all(reading.axes.of(tensor) for tensor in entering)


def _side_inputs(step: Step, reading: Reading) -> set[str]:
    """The names of the model inputs that reach a step beside the hidden states."""
    derived = reading.head.derived
    beside = [pair for operation in step.operations for pair in operation.inputs if id(pair[0]) not in derived]
    return inputs_behind(beside, reading.execution)


def _after_pooling(step: Step, parts: tuple[Part, ...], reading: Reading) -> tuple[Part, ...]:
    if step.name == "div":
        return tuple(_averaged(part, step, reading) for part in parts)
    return parts


def _averaged(part: Part, step: Step, reading: Reading) -> Part:
    """A sum over tokens divided by their number is their mean."""
    if not part.summed:
        return part
    part = replace(part, tensors=(*part.tensors[:1], step.last.outputs[0]))
    constant = _constant_divisor(step)
    if constant is not None and (constant != part.summed or part.kind is PoolingKind.MASKED_MEAN):
        by = "the number of all positions" if constant == part.summed else f"{constant:g}"
        rule = f"{part.rule}, divided by {by}"
        return replace(part, kind=PoolingKind.OTHER, rule=rule, evidence=(*part.evidence, step), summed=0)
    if part.positions.where is Where.BY_ROW:
        rule = "sum over some positions, by a rule not recognised, divided by a number"
        return replace(part, rule=rule, evidence=(*part.evidence, step), summed=0)
    if part.kind is PoolingKind.MASKED_MEAN or any("mask" in name for name in _side_inputs(step, reading)):
        kind, positions = PoolingKind.MASKED_MEAN, Positions(Where.NON_PAD)
        rule = "mean over the positions that the mask keeps"
    elif part.positions.where is Where.RANGE:
        kind, positions, rule = PoolingKind.MEAN, part.positions, f"mean over {_range_words(part.positions)}"
    else:
        kind, positions, rule = PoolingKind.MEAN, _ALL, f"mean over all positions{_and_padding(reading)}"
    return replace(part, kind=kind, positions=positions, rule=rule, evidence=(*part.evidence, step), summed=0)


def _constant_divisor(step: Step) -> float | None:
    """The number that a division divides by, where the source has one and not a tensor."""
    divisor = step.last.args[1] if len(step.last.args) > 1 else None
    return float(divisor) if isinstance(divisor, int | float) else None


def _collapse(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    if _joins_rows(step, entering, reading):
        rule = f"the token axis and the batch disappear together in {step.name}"
        return (Part(PoolingKind.OTHER, _BY_ROW, rule, (*state.touched_by, step), sources=state.sources),)
    classify = _COLLAPSES.get(step.name, _read_other)
    if state.chosen and (classify in _CHOOSES or (classify in _SUMS and not state.weighted)):
        classify = _read_chosen
    parts = classify(step, entering, state, reading)
    by = (*state.touched_by, step)
    if state.mixed and classify in {_read_pick, _read_max}:
        last = state.touched_by[-1].name if state.touched_by else "another operation"
        mixer = f"{state.window.name} over neighbouring" if state.window else f"{last} over all"
        parts = tuple(
            replace(part, kind=PoolingKind.OTHER, rule=f"{part.rule}, after {mixer} positions") for part in parts
        )
        by = (*state.touched_by, state.window, step) if state.window else by
    tensors = (entering, step.last.outputs[0])
    return tuple(replace(part, evidence=by, sources=state.sources, tensors=tensors) for part in parts)


def _joins_rows(step: Step, entering: torch.Tensor, reading: Reading) -> bool:
    """Whether the positions of all rows are reduced at once, so that a row's score depends on its neighbours."""
    probe, output = reading.execution.probe, step.last.outputs[0]
    flat = probe.batch * probe.length
    if not flat or entering.shape[0] != flat or output.numel() == 0 or step.name not in {"mean", "sum", "max"}:
        return False
    return output.dim() == 0 or output.shape[0] not in {probe.batch, flat}


def _read_pick(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    positions = read_pick(step.last, step.name, reading.execution, reading.axes, reading.names)
    if positions is None or state.kept is None:
        return _read_other(step, entering, state, reading)
    if state.kept != _ALL:
        if positions.where is not Where.INDEX:
            return _read_other(step, entering, state, reading)
        positions = _index_within(state.kept, positions.index or 0, reading)
    return (_part_of_pick(positions, step, reading),)


def _index_within(kept: Positions, index: int, reading: Reading) -> Positions:
    """One position of a run of positions, as a position of the whole row."""
    if index >= 0:
        index += kept.index or 0
    elif kept.stop is not None:
        index += kept.stop
    return Positions(Where.INDEX, index, token=(reading.names.first or "") if index == 0 else "")


def _part_of_pick(positions: Positions, step: Step, reading: Reading) -> Part:  # noqa: PLR0911 - one line for each kind
    """The part that one position per row is, with its rule in words."""
    found = _found(step, reading)
    fixed = ", padding or not" if _reads_texts(reading) else ""
    match positions.where:
        case Where.INDEX if positions.index == 0:
            whose = "the tokenizer" if reading.names.is_own else "the family's tokenizer"
            called = f", where {whose} puts {positions.token}" if positions.token else ""
            return Part(PoolingKind.FIRST_TOKEN, positions, f"first position (index 0){fixed}{called}")
        case Where.INDEX if positions.index == -1:
            return Part(PoolingKind.LAST_TOKEN, positions, f"last position{fixed}")
        case Where.INDEX:
            return Part(PoolingKind.TOKEN_AT, positions, f"position {positions.index}{fixed}")
        case Where.LAST_NON_PAD:
            return Part(PoolingKind.LAST_NON_PAD_TOKEN, positions, f"last position that is not padding{found}")
        case Where.AFTER_LAST_NON_PAD:
            rule = f"the position after the last that is not padding, within the row{found}"
            return Part(PoolingKind.LAST_NON_PAD_TOKEN, positions, rule)
        case Where.EOS:
            return Part(PoolingKind.EOS_TOKEN, positions, f"position of the {positions.text} token{found}")
        case Where.FIRST_NON_PAD:
            return Part(PoolingKind.FIRST_TOKEN, positions, f"first position that is not padding{found}")
    return Part(PoolingKind.OTHER, _BY_ROW, "one position per row, by a rule not recognised")


def _found(step: Step, reading: Reading) -> str:
    sources = sorted(_side_inputs(step, reading))
    return f", found from {' and '.join(sources)}" if sources else ""


def _read_mean(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    if state.weighted:
        return (Part(PoolingKind.WEIGHTED, _ALL, "mean of the positions, each with its own weight"),)
    if state.masked:
        return (Part(PoolingKind.OTHER, _ALL, "mean over all positions of values that a mask has set to zero"),)
    if state.kept is None:
        return (Part(PoolingKind.OTHER, _BY_ROW, "mean over some positions, by a rule not recognised"),)
    if state.kept != _ALL:
        return (Part(PoolingKind.MEAN, state.kept, f"mean over {_range_words(state.kept)}"),)
    if _is_spatial(entering, reading):
        return (Part(PoolingKind.SPATIAL_MEAN, _ALL, "mean over all spatial positions"),)
    return (Part(PoolingKind.MEAN, _ALL, f"mean over all positions{_and_padding(reading)}"),)


def _and_padding(reading: Reading) -> str:
    """A word on padding, for inputs that have it."""
    return ", padding included" if _reads_texts(reading) else ""


def _reads_texts(reading: Reading) -> bool:
    """Whether the positions are tokens of a text, which is padded; patches and entities are not."""
    length = reading.execution.probe.length
    sizes = {length, length * reading.execution.probe.batch}
    return bool(length) and any(sizes & set(tensor.shape) for tensor in reading.head.hidden)


def _range_words(kept: Positions) -> str:
    if kept.stop is None:
        return "all positions but the first" if kept.index == 1 else f"all positions but the first {kept.index}"
    return f"the positions {kept.text}"


def _is_spatial(entering: torch.Tensor, reading: Reading) -> bool:
    return not reading.execution.probe.length and entering.dim() == IMAGE_RANK


def _read_sum(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    if state.weighted:
        return (Part(PoolingKind.WEIGHTED, _ALL, "weighted sum of the positions"),)
    if state.kept is None:
        return (Part(PoolingKind.OTHER, _BY_ROW, "sum over some positions, by a rule not recognised"),)
    count = math.prod(entering.shape[axis] for axis in reading.axes.of(entering))
    if state.masked:
        rule = "sum over the positions that the mask keeps"
        return (Part(PoolingKind.MASKED_MEAN, Positions(Where.NON_PAD), rule, summed=count),)
    return (Part(PoolingKind.OTHER, state.kept, "sum over the positions", summed=count),)


def _read_deviation(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    return (Part(PoolingKind.OTHER, _ALL, "standard deviation of each feature over all positions"),)


def _read_max(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    if state.kept is None:
        return (Part(PoolingKind.OTHER, _BY_ROW, "largest value of each feature over some positions"),)
    if state.masked:
        positions, over = Positions(Where.NON_PAD), "the positions that the mask keeps"
    elif state.kept != _ALL:
        positions, over = state.kept, _range_words(state.kept)
    else:
        positions, over = state.kept, f"the positions{_and_padding(reading)}"
    weights = ", each multiplied by its own weight" if state.weighted else ""
    return (Part(PoolingKind.MAX, positions, f"largest value of each feature over {over}{weights}"),)


def _read_chosen(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    rule = f"{step.name} over positions that the values of the hidden states choose"
    return (Part(PoolingKind.OTHER, _BY_ROW, rule),)


def _read_weighted(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    return (Part(PoolingKind.WEIGHTED, _ALL, "weighted sum of the positions"),)


def _read_flatten(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    probe, output = reading.execution.probe, step.last.outputs[0]
    if entering.numel() == output.numel() and output.shape[0] == probe.batch:
        return (Part(PoolingKind.FLATTEN, _ALL, "all positions side by side, one weight for each"),)
    return _read_other(step, entering, state, reading)


def _read_other(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    return (Part(PoolingKind.OTHER, _ALL, f"the token axis disappears in {step.name}, by a rule not recognised"),)


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
_RESIZING = {
    "conv1d", "conv2d", "unfold", "max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d", "pad", "slice",
    "interpolate", "view", "reshape",
}  # fmt: skip

_CONVOLUTIONS = {"conv1d": 1, "conv2d": 2, "conv3d": 3}
_PLANES = {**_CONVOLUTIONS, "max_pool1d": 1, "max_pool2d": 2, "avg_pool1d": 1, "avg_pool2d": 2}
"""How many of the last axes hold positions; the axis before them holds features."""
_CHANNELS = 2
"""The axes of a convolution's weight that hold features."""
_RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
_PRODUCTS = {"matmul", "bmm", "einsum", "scaled_dot_product_attention", "multi_head_attention_forward"}
_SPLITS = {"split", "chunk", "unbind", "tensor_split"}

_JOINS = {"cat": "side by side", "stack": "stacked", "add": "added", "sub": "subtracted", "mul": "multiplied"}


def _pooling(parts: tuple[Part, ...], reading: Reading, sources: tuple[HiddenSource, ...]) -> Pooling:
    if not parts:
        return Pooling(
            PoolingKind.OTHER, (), "no hidden states with a token axis were found on the way to the scores", ()
        )
    names = reading.execution.names
    steps = tuple(dict.fromkeys(step for part in parts for step in part.evidence))
    evidence = tuple(_evidence(step.last, step.name, names) for step in steps)
    typed = tuple(_typed(_settled(part), sources) for part in parts)
    if len(typed) == 1:
        part = typed[0]
        rule = _summary_prefix(steps) + part.rule + _of_layer(part, sources)
        return Pooling(part.kind, (part.positions.text,), rule, evidence, typed)
    how = " and ".join(dict.fromkeys(_JOINS.get(step.name, f"joined by {step.name}") for step in reading.joins))
    several = len({part.sources for part in typed}) > 1
    rules = (f"{part.rule} of {_source_text(part)}" if several else part.rule for part in typed)
    tokens = (f"{part.positions.text} of {_source_text(part)}" if several else part.positions.text for part in typed)
    return Pooling(PoolingKind.CONCAT, tuple(tokens), f"{how or 'together'}: {'; '.join(rules)}", evidence, typed)


def _typed(part: Part, sources: tuple[HiddenSource, ...]) -> PoolingPart:
    read = tuple(sources[number] for number in part.sources)
    return PoolingPart(part.kind, part.positions, part.rule, read)


def _source_text(part: PoolingPart) -> str:
    """`h[-4]`, or the first and the last of a mix of layers."""
    texts = [source.text for source in part.sources]
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"


def _of_layer(part: PoolingPart, sources: tuple[HiddenSource, ...]) -> str:
    """A word on the layer, where it is not the last one alone."""
    layers = [source.layer for source in part.sources if source.layer is not None]
    if len(part.sources) > 1:
        return f", of a mix of {len(part.sources)} hidden states"
    return f", of hidden states {layers[0]} (-1 is the last)" if layers and layers[0] != -1 else ""


def _settled(part: Part) -> Part:
    """A sum that nothing divided is not a mean."""
    return replace(part, kind=PoolingKind.OTHER) if part.summed else part


def _summary_prefix(steps: tuple[Step, ...]) -> str:
    """SequenceSummary modules carry their name into the rule: their `summary_type` decides it."""
    modules = (type(module).__name__ for step in steps for module in step.last.modules)
    return "summary: " if any(name.endswith("SequenceSummary") for name in modules) else ""


def _evidence(operation: Operation, name: str, names: ModelNames) -> Evidence:
    return Evidence(name, names.path(operation), short_path(operation.file), operation.line)
