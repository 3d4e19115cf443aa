"""Pooling: how the token axis of the hidden states disappears on the way to the logits, read step by step."""

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import torch

from headscope.core.facts import Evidence, HiddenSource, Pooling, PoolingKind, PoolingPart, Positions, Where
from headscope.core.trace.pooling.collapse import (
    ALL,
    Part,
    Reading,
    State,
    Tokens,
    averaged,
    collapse,
    inputs_beside,
    part_of_pick,
)
from headscope.core.trace.record.base import ModelNames
from headscope.core.trace.replay.picks import HeadSteps, Picked, explain_pick, is_mask_of_rows, sliced_positions
from headscope.core.trace.replay.replay import is_binary, is_other_mask
from headscope.core.trace.slice.stages import SPLITS, Step, entering_tensors, short_path

_FAR_BELOW = -1e3
"""A number that takes a position out of a maximum when it is added: masks add from -1e4 to minus infinity."""


@dataclass(frozen=True)
class PoolingRead:
    """Pooling that was read: its parts, the names of the operations that join them, and the hidden states."""

    parts: tuple[Part, ...]
    joins: tuple[str, ...]
    sources: tuple[HiddenSource, ...]
    names: ModelNames

    @property
    def tensors(self) -> tuple[tuple[torch.Tensor, ...], ...]:
        """Tensors before and after the token axis disappears, for each part; empty if it stays."""
        return tuple(part.tensors for part in self.parts)

    @cached_property
    def values(self) -> Hashable:
        """Everything that the rule says, without its words: equal for runs that show the same rule."""
        parts = tuple(
            (
                replace(part, evidence=(), sources=()),
                # The last layer of a shallow twin has another number than that of the model.
                tuple(replace(item, module=_NUMBER.sub("#", item.module)) for item in self._sources_of(part)),
            )
            for part in self.parts
        )
        return parts, self.joins, self._is_summary

    @cached_property
    def pooling(self) -> Pooling:
        """The same as a fact, with its rule in words."""
        if not self.parts:
            return Pooling(PoolingKind.OTHER, (), _NO_HIDDEN_STATES, ())
        evidence = tuple(
            Evidence(step.name, self.names.path(step.last), short_path(step.last.file), step.last.line)
            for step in self._evidence_steps
        )
        typed = tuple(
            PoolingPart(part.kind, part.positions, f"{part.rule}{_PADDING[part.has_padding]}", self._sources_of(part))
            for part in self.parts
        )
        if len(typed) == 1:
            part, summary = self.parts[0], "summary: " if self._is_summary else ""
            rule = f"{summary}{part.rule}{_layer_suffix(typed[0])}{_PADDING[part.has_padding]}"
            return Pooling(part.kind, (part.positions.text,), rule, evidence, typed)
        several = len({part.sources for part in typed}) > 1
        texts = [[source.text for source in part.sources] for part in typed if several]
        # `h[-4]`, or the first and the last of a mix of layers.
        spans = (own[0] if len(own) == 1 else f"{own[0]} to {own[-1]}" for own in texts)
        sources = tuple(f" of {span}" for span in spans) or ("",) * len(typed)
        tokens = tuple(f"{part.positions.text}{source}" for part, source in zip(typed, sources, strict=True))
        rules = "; ".join(f"{part.rule}{source}" for part, source in zip(typed, sources, strict=True))
        how = " and ".join(_JOINS.get(name, f"joined by {name}") for name in self.joins) or "together"
        return Pooling(PoolingKind.CONCAT, tokens, f"{how}: {rules}", evidence, typed)

    @property
    def _evidence_steps(self) -> tuple[Step, ...]:
        return tuple(dict.fromkeys(step for part in self.parts for step in part.evidence))

    @property
    def _is_summary(self) -> bool:
        """True for a pooling of a SequenceSummary module, whose `summary_type` decides the rule."""
        modules = (type(module).__name__ for step in self._evidence_steps for module in step.last.modules)
        return any(name.endswith("SequenceSummary") for name in modules)

    def _sources_of(self, part: Part) -> tuple[HiddenSource, ...]:
        return tuple(self.sources[number] for number in part.sources)


def read_pooling(known: HeadSteps) -> PoolingRead:
    """Reads the pooling of a head, with the operations that show it."""
    head = known.head
    states: dict[int, State] = {id(tensor): Tokens(sources=(number,)) for number, tensor in enumerate(head.hidden)}
    reading = Reading(head, known.steps, known.axes, known.tokens, known.sources, states, [])
    for step in reading.steps:
        state = _state_after(step, reading)
        for operation in step.operations:
            for output in operation.outputs:
                reading.states[id(output)] = _state_of_output(output, state, step, reading)
        if step.name in SPLITS:
            _read_split(step, reading)
    parts = _parts_at_the_logits(reading)
    joins = dict.fromkeys(step.name for step in reading.joins) if len(parts) > 1 else ()
    return PoolingRead(parts, tuple(joins), known.sources, known.execution.names)


def _state_of_output(output: torch.Tensor, state: State, step: Step, reading: Reading) -> State:
    """Returns the state after a step, except for a second output that has lost the token axis: the end state of an
    LSTM.
    """
    if not isinstance(state, Tokens) or step.name not in _RECURRENT or reading.axes.of(output):
        return state
    rule = f"end state of {step.name} over all positions"
    by, details = (*state.touched_by, step), ("end state", step.name)
    return (Part(PoolingKind.OTHER, ALL, rule, details, by, sources=state.sources),)


def _read_split(step: Step, reading: Reading) -> None:
    """Reads each output of a split along the token axis separately: a piece of one token is that token."""
    entering = entering_tensors(step, reading.head)[0]
    state = reading.states.get(id(entering))
    axis = reading.axes.first(entering)
    if not isinstance(state, Tokens) or axis is None:
        return
    pieces = step.last.outputs
    sizes = [1 if piece.dim() < entering.dim() else piece.shape[axis] for piece in pieces]
    if sum(sizes) != entering.shape[axis]:
        return
    # From here on the pieces have token axes of these sizes.
    reading.axes.sizes.update(size for size in sizes if size > 1)
    length = entering.shape[axis]
    for piece, size, start in zip(pieces, sizes, accumulate(sizes, initial=0), strict=False):
        if size > 1:
            stop = None if start + size == length else start + size
            kept = Positions(Where.RANGE, start, stop) if start or stop else ALL
            reading.states[id(piece)] = replace(state, kept=kept, touched_by=(*state.touched_by, step))
            continue
        picked = Picked((start,) * reading.execution.probe.batch, start, length)
        part = part_of_pick(explain_pick(picked, reading.execution.probe, reading.tokens), step, reading)
        tensors = (entering, piece)
        reading.states[id(piece)] = (replace(part, evidence=(step,), sources=state.sources, tensors=tensors),)


def _parts_at_the_logits(reading: Reading) -> tuple[Part, ...]:
    found: dict[Part, None] = {}
    for logits in reading.execution.logits:
        state = reading.states.get(id(logits), ())
        for part in (_each_token(state),) if isinstance(state, Tokens) else state:
            found[part] = None
    # A sum that nothing divided is not a mean.
    return tuple(replace(part, kind=PoolingKind.OTHER, summed=0) if part.summed else part for part in found)


def _each_token(state: Tokens) -> Part:
    each = Positions(Where.EACH)
    if state.mixed:
        rule = "one score per token, computed from other positions too"
        return Part(PoolingKind.OTHER, each, rule, evidence=state.touched_by, sources=state.sources)
    rule = "one score per token: nothing is pooled"
    return Part(PoolingKind.NONE, each, rule, evidence=state.touched_by, sources=state.sources)


def _state_after(step: Step, reading: Reading) -> State:
    entering = [(tensor, reading.states.get(id(tensor), ())) for tensor in entering_tensors(step, reading.head)]
    open_ones = [(tensor, state) for tensor, state in entering if isinstance(state, Tokens)]
    closed = [part for _, state in entering if not isinstance(state, Tokens) for part in state]
    if not open_ones:
        parts = _join_parts(step, closed, len(entering), reading)
        return tuple(averaged(part, step, reading) for part in parts) if step.name == "div" else parts
    merged = _with_choices(step, open_ones, _merge_states([state for _, state in open_ones]), reading)
    if _keeps_tokens(step, open_ones[0][0], reading):
        # A tensor that occurs twice counts twice.
        operands = [reading.states.get(id(tensor)) for operation in step.operations for tensor in operation.inputs]
        is_product = step.name in _PRODUCTS and sum(isinstance(state, Tokens) for state in operands) > 1
        mixes = step.name in _RECURRENT or is_product
        if _is_window(step, open_ones[0][0], reading):
            merged = replace(merged, mixed=True, window=step)
        by = (*merged.touched_by, step) if mixes else merged.touched_by
        state = replace(merged, mixed=merged.mixed or bool(closed) or mixes, touched_by=by)
        return _after_changes(step, state, reading)
    return _join_parts(step, [*closed, *collapse(step, open_ones[0][0], merged, reading)], len(entering), reading)


def _join_parts(step: Step, parts: list[Part], operands: int, reading: Reading) -> tuple[Part, ...]:
    """Returns the parts of a step's operands, each once; if the step joins different ones, it keeps how."""
    found: dict[Hashable, Part] = {}
    for part in parts:
        found.setdefault((part.kind, part.positions, part.details, part.sources), part)
    unique = tuple(found.values())
    if operands > 1 and len(unique) > 1:
        reading.joins.append(step)
    return unique


def _merge_states(states: list[Tokens]) -> Tokens:
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


def _with_choices(step: Step, entering: list[tuple[torch.Tensor, Tokens]], merged: Tokens, reading: Reading) -> Tokens:
    """Updates the state for truth values made from the hidden states: a comparison makes them, a mask uses them.

    A tensor that is masked by a comparison of its entries (`where(h > 0, h, 0)`) is changed entry by entry, which
    chooses no positions.
    """
    if not step.last.outputs[0].is_floating_point():
        return replace(merged, decided=True)
    deciding = [tensor for tensor, state in entering if state.decided]
    if merged.decided or not deciding:
        return merged
    others = {id(tensor) for tensor, state in entering if not state.decided}
    by_entry = all(_compared_tensors(tensor, reading) == others for tensor in deciding)
    return merged if by_entry else replace(merged, chosen=True, touched_by=(*merged.touched_by, step))


def _compared_tensors(tensor: torch.Tensor, reading: Reading) -> set[int]:
    """Collects the ids of what truth values were made from, through casts and other steps between truth values."""
    made = reading.execution.graph.maker(tensor)
    found: set[int] = set()
    for item in made.inputs if made is not None else ():
        if id(item) in reading.head.derived:
            state = reading.states.get(id(item))
            found |= _compared_tensors(item, reading) if isinstance(state, Tokens) and state.decided else {id(item)}
    return found


def _is_window(step: Step, entering: torch.Tensor, reading: Reading) -> bool:
    """True if a convolution computes each position from its neighbors too."""
    weight = step.last.argument(1, "weight")
    if step.name not in _CONVOLUTIONS or not isinstance(weight, torch.Tensor):
        return False
    places = zip(range(-_CONVOLUTIONS[step.name], 0), weight.shape[_CHANNELS:], strict=True)
    return any(size > 1 and entering.dim() + axis in reading.axes.of(entering) for axis, size in places)


def _keeps_tokens(step: Step, entering: torch.Tensor, reading: Reading) -> bool:
    """True if the token axis is still there: an axis of a known size, or a window over it that changed its size."""
    output = step.last.outputs[0]
    if reading.axes.of(output):
        return True
    if reading.axes.grown is not None:
        return False
    resized = step.name in _RESIZING and _long_axes(output) >= _long_axes(entering) > 1
    if resized:
        # A convolution may change the number of features too.
        places = output.shape[-_CONVOLUTIONS[step.name] :] if step.name in _CONVOLUTIONS else output.shape[1:]
        reading.axes.sizes.update(size for size in places if size > 1 and size not in entering.shape)
    return resized


def _long_axes(tensor: torch.Tensor) -> int:
    return sum(size > 1 for size in tensor.shape[1:])


def _after_changes(step: Step, state: Tokens, reading: Reading) -> Tokens:
    if step.name in {"mul", "masked_fill", "where", "index_put"}:
        return _after_weighing(step, state, reading)
    if step.name == "div" and _has_weights_beside(step, reading):
        return replace(state, weighted=True, touched_by=(*state.touched_by, step))
    if step.name in {"add", "sub"} and _takes_padding_out(step, reading):
        return replace(state, masked=True)
    if step.name == "pad":
        return replace(state, kept=None, touched_by=(*state.touched_by, step))
    if step.name == "slice" and state.kept is not None:
        kept = sliced_positions(step.last, reading.axes, state.kept)
        return replace(state, kept=kept, touched_by=(*state.touched_by, step))
    return state


def _after_weighing(step: Step, state: Tokens, reading: Reading) -> Tokens:
    """Returns the state after a product, or after numbers were put in: by the mask, by another one, by weights."""
    # What a caller's own values keep doesn't follow from the padding, so no rule can name it.
    if inputs_beside(step, reading) & reading.execution.probe.given:
        return replace(state, kept=None, touched_by=(*state.touched_by, step))
    if _reads_other_mask(step, reading):
        is_weight = step.name == "mul"
        kept = state.kept if is_weight else None
        return replace(state, weighted=is_weight, kept=kept, touched_by=(*state.touched_by, step))
    if any("mask" in name or name == "input_ids" for name in inputs_beside(step, reading)):
        # A mask that was divided holds other values than zeros and ones: it also weighs.
        if step.name == "mul" and any(not is_binary(item) for item in _known_beside(step, reading)):
            return replace(state, weighted=True, touched_by=(*state.touched_by, step))
        return replace(state, masked=True, touched_by=(*state.touched_by, step))
    # A product weighs positions if both factors are made from the hidden states and have a token axis.
    entering = entering_tensors(step, reading.head)
    is_by_position = len(entering) > 1 and all(reading.axes.of(tensor) for tensor in entering)
    if step.name == "mul" and (is_by_position or _has_weights_beside(step, reading)):
        return replace(state, weighted=True, touched_by=(*state.touched_by, step))
    return state


def _known_beside(step: Step, reading: Reading) -> Iterator[torch.Tensor]:
    """Yields the tensors of several known numbers that reach a step beside the hidden states."""
    derived = reading.head.derived
    for operation in step.operations:
        for tensor in operation.inputs:
            if id(tensor) not in derived and not tensor.is_meta and tensor.numel() > 1:
                yield tensor


def _takes_padding_out(step: Step, reading: Reading) -> bool:
    """True if a sum adds a large negative number to each position of padding, and nothing to the others."""
    for item in _known_beside(step, reading):
        if is_mask_of_rows(item == 0, reading.execution.probe):
            added = item[item != 0].float()
            if bool(((-added if step.name == "sub" else added) <= _FAR_BELOW).all()):
                return True
    return False


def _reads_other_mask(step: Step, reading: Reading) -> bool:
    """True if zeros and ones reach a step that keep other positions than those that are not padding."""
    return any(
        id(tensor) not in reading.head.derived and is_other_mask(tensor, reading.execution)
        for operation in step.operations
        for tensor in operation.inputs
    )


def _has_weights_beside(step: Step, reading: Reading) -> bool:
    """True if a tensor beside the hidden states holds a number for each position, and they aren't known to be equal."""
    derived, entering = reading.head.derived, entering_tensors(step, reading.head)[0]
    counted = [axis - entering.dim() for axis in reading.axes.of(entering) if entering.shape[axis] > 1]
    for tensor in (item for operation in step.operations for item in operation.inputs if id(item) not in derived):
        spread = [at for at in counted if at >= -tensor.dim() and tensor.shape[at] > 1]
        # The numbers of a parameter on meta are unknown: it may weigh the positions.
        if spread and (tensor.is_meta or bool((tensor != tensor.narrow(spread[0], 0, 1)).any())):
            return True
    return False


_RESIZING = {
    "conv1d", "conv2d", "unfold", "max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d", "pad", "slice",
    "interpolate", "view", "reshape",
}  # fmt: skip

_CONVOLUTIONS = {"conv1d": 1, "conv2d": 2, "conv3d": 3}
"""Number of last axes that hold positions; the axis before them holds features."""
_CHANNELS = 2
"""Number of axes of a convolution's weight that hold features."""
_RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
_PRODUCTS = {"matmul", "bmm", "einsum", "scaled_dot_product_attention", "multi_head_attention_forward"}
_JOINS = {"cat": "side by side", "stack": "stacked", "add": "added", "sub": "subtracted", "mul": "multiplied"}
_PADDING = {None: "", True: ", padding included", False: ", padding left out"}
_NO_HIDDEN_STATES = "no hidden states with a token axis were found on the way to the scores"
_NUMBER = re.compile(r"\d+")


def _layer_suffix(part: PoolingPart) -> str:
    """Returns words on the layer, unless it is only the last one."""
    layers = [source.layer for source in part.sources if source.layer is not None]
    if len(part.sources) > 1:
        return f", of a mix of {len(part.sources)} hidden states"
    return f", of hidden states {layers[0]} (-1 is the last)" if layers and layers[0] != -1 else ""
