"""The pooling: how the token axis of the hidden states disappears on the way to the logits, read step by step."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from headscope.facts import Evidence, Pooling, PoolingKind
from headscope.trace.execution import Execution
from headscope.trace.indexing import Picked, index_items, picked_positions
from headscope.trace.recorder import Operation
from headscope.trace.slicing import IMAGE_RANK, HeadSlice, token_sizes
from headscope.trace.stages import ModelNames, Step, entering_tensors, short_path


@dataclass(frozen=True, slots=True)
class TokenNames:
    """What the family's tokenizer calls its first and its end token; None where it has none."""

    first: str | None = None
    eos: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One thing the head reads of the tokens: a kind, the tokens in words, and the rule in words."""

    kind: PoolingKind
    tokens: str
    rule: str
    evidence: tuple[Step, ...] = ()
    is_bare_sum: bool = False
    source: int = 0


@dataclass(frozen=True, slots=True)
class Tokens:
    """The state of a tensor that still has its token axis, with what was done to its positions so far.

    `mixed`: a position already holds something of others; `skipped`: so many first positions were cut
    off; `source`: which of the hidden states it is, counted from 0.
    """

    masked: bool = False
    weighted: bool = False
    mixed: bool = False
    skipped: int = 0
    source: int = 0
    touched_by: tuple[Step, ...] = ()


State = Tokens | tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known while a head is read: `sizes` are those of the token axes, `states` the tensors by id."""

    execution: Execution
    head: HeadSlice
    names: TokenNames
    sizes: set[int]
    states: dict[int, State]
    joins: list[Step]


def read_pooling(execution: Execution, head: HeadSlice, steps: tuple[Step, ...], names: TokenNames) -> Pooling:
    """The pooling of a head, with the operations that show it."""
    sizes = token_sizes(execution, head.hidden)
    states: dict[int, State] = {id(tensor): Tokens(source=number) for number, tensor in enumerate(head.hidden)}
    reading = Reading(execution, head, names, sizes, states, [])
    for step in steps:
        state = _state_after(step, reading)
        for operation in step.operations:
            for output in operation.outputs:
                reading.states[id(output)] = _state_of_output(output, state, step, reading)
        if step.name in _SPLITS:
            _read_split(step, reading)
    parts = _parts_at_the_logits(reading)
    return _pooling(parts, reading)


def _state_of_output(output: torch.Tensor, state: State, step: Step, reading: Reading) -> State:
    """The state after a step, but for a second output that has lost the token axis: the end state of an LSTM."""
    if not isinstance(state, Tokens) or step.name not in _RECURRENT or _has_tokens(output, reading):
        return state
    rule = f"end state of {step.name} over all positions"
    return (Part(PoolingKind.OTHER, "all", rule, (*state.touched_by, step)),)


def _has_tokens(tensor: torch.Tensor, reading: Reading) -> bool:
    return any(size in reading.sizes for size in tensor.shape)


def _read_split(step: Step, reading: Reading) -> None:
    """Each output of a split along the token axis by itself: a piece of one token is that token."""
    entering = entering_tensors(step, reading.head)[0]
    if not isinstance(reading.states.get(id(entering)), Tokens):
        return
    axis = next((at for at, size in enumerate(entering.shape) if size in reading.sizes), None)
    pieces = step.last.outputs
    sizes = [1 if piece.dim() < entering.dim() else piece.shape[axis or 0] for piece in pieces]
    if axis is None or sum(sizes) != entering.shape[axis]:
        return
    reading.sizes.update(size for size in sizes if size > 1)
    for piece, size, start in zip(pieces, sizes, accumulate(sizes, initial=0), strict=False):
        picked = Picked((start,) * max(len(reading.execution.probe.rows), 1), start)
        part = replace(_part_of_pick(picked, step, reading), evidence=(step,))
        reading.states[id(piece)] = Tokens() if size > 1 else (part,)


def _parts_at_the_logits(reading: Reading) -> tuple[Part, ...]:
    found: dict[Part, None] = {}
    for logits in reading.execution.logits:
        state = reading.states.get(id(logits), ())
        for part in (_each_token(state),) if isinstance(state, Tokens) else state:
            found[part] = None
    return tuple(found)


def _each_token(state: Tokens) -> Part:
    if state.mixed:
        rule = "one score per token, computed from other positions too"
        return Part(PoolingKind.OTHER, "each", rule, state.touched_by)
    return Part(PoolingKind.NONE, "each", "one score per token: nothing is pooled", state.touched_by)


def _state_after(step: Step, reading: Reading) -> State:
    entering = [(tensor, reading.states.get(id(tensor), ())) for tensor in entering_tensors(step, reading.head)]
    open_ones = [(tensor, state) for tensor, state in entering if isinstance(state, Tokens)]
    closed = [part for _, state in entering if not isinstance(state, Tokens) for part in state]
    if not open_ones:
        return _after_pooling(step, _joined(step, closed, len(entering), reading), reading)
    merged = _merged([state for _, state in open_ones])
    if _keeps_tokens(step, open_ones[0][0], reading):
        mixes = step.name in _RECURRENT or (step.name in _PRODUCTS and len(open_ones) > 1)
        by = (*merged.touched_by, step) if mixes else merged.touched_by
        return _touched(step, replace(merged, mixed=merged.mixed or bool(closed) or mixes, touched_by=by), reading)
    return _joined(step, [*closed, *_collapse(step, open_ones[0][0], merged, reading)], len(entering), reading)


def _joined(step: Step, parts: list[Part], operands: int, reading: Reading) -> tuple[Part, ...]:
    """The parts of a step's operands, each once; where it joins different ones, how is remembered."""
    found: dict[tuple[PoolingKind, str, str, int], Part] = {}
    for part in parts:
        found.setdefault((part.kind, part.tokens, part.rule, part.source), part)
    unique = tuple(found.values())
    if operands > 1 and len(unique) > 1:
        reading.joins.append(step)
    return unique


def _merged(states: list[Tokens]) -> Tokens:
    return Tokens(
        masked=any(state.masked for state in states),
        weighted=any(state.weighted for state in states),
        mixed=any(state.mixed for state in states),
        skipped=max(state.skipped for state in states),
        source=min(state.source for state in states),
        touched_by=tuple(dict.fromkeys(step for state in states for step in state.touched_by)),
    )


def _keeps_tokens(step: Step, entering: torch.Tensor, reading: Reading) -> bool:
    """Whether the token axis is still there: an axis of a known size, or a window over it that changed its size."""
    output = step.last.outputs[0]
    if any(size in reading.sizes for size in output.shape):
        return True
    resized = step.name in _RESIZING and _long_axes(output) >= _long_axes(entering) > 1
    if resized:
        reading.sizes.update(size for size in output.shape[1:] if size not in entering.shape)
    return resized


def _long_axes(tensor: torch.Tensor) -> int:
    return sum(size > 1 for size in tensor.shape[1:])


def _touched(step: Step, state: Tokens, reading: Reading) -> Tokens:
    if step.name in {"mul", "masked_fill", "where", "index_put"}:
        if any("mask" in name or name == "input_ids" for name in _side_inputs(step, reading)):
            return replace(state, masked=True, touched_by=(*state.touched_by, step))
        if step.name == "mul" and len(entering_tensors(step, reading.head)) > 1:
            return replace(state, weighted=True, touched_by=(*state.touched_by, step))
    if step.name == "slice":
        return replace(state, skipped=state.skipped + _cut_off(step, reading), touched_by=(*state.touched_by, step))
    return state


def _cut_off(step: Step, reading: Reading) -> int:
    """How many first positions a slice leaves out: the start that is written for the token axis."""
    source = step.last.args[0]
    axis = next((at for at, size in enumerate(source.shape) if size in reading.sizes), None)
    items = index_items(step.last) if step.last.name == "__getitem__" else ()
    item = items[axis] if axis is not None and axis < len(items) else None
    start = item.start if isinstance(item, slice) else None
    return start if isinstance(start, int) and start > 0 else 0


def _side_inputs(step: Step, reading: Reading) -> set[str]:
    """The names of the model inputs that reach a step beside the hidden states."""
    graph, derived = reading.execution.graph, reading.head.derived
    inputs = {id(value): name for name, value in reading.execution.probe.inputs.items()}
    waiting = [pair for operation in step.operations for pair in operation.inputs if id(pair[0]) not in derived]
    found: set[str] = set()
    seen: set[int] = set()
    while waiting:
        tensor, producer = waiting.pop()
        if id(tensor) in inputs:
            found.add(inputs[id(tensor)])
        elif producer >= 0 and producer not in seen:
            seen.add(producer)
            waiting.extend(graph.operations[producer].inputs)
    return found


def _after_pooling(step: Step, parts: tuple[Part, ...], reading: Reading) -> tuple[Part, ...]:
    if step.name == "div":
        return tuple(_averaged(part, step, reading) for part in parts)
    return parts


def _averaged(part: Part, step: Step, reading: Reading) -> Part:
    """A sum over tokens divided by their number is their mean."""
    if not part.is_bare_sum:
        return part
    if part.kind is PoolingKind.MASKED_MEAN or any("mask" in name for name in _side_inputs(step, reading)):
        kind, tokens, rule = PoolingKind.MASKED_MEAN, "all non-pad", "mean over the positions that the mask keeps"
    else:
        kind, tokens, rule = PoolingKind.MEAN, "all", "mean over all positions, padding included"
    return replace(part, kind=kind, tokens=tokens, rule=rule, evidence=(*part.evidence, step), is_bare_sum=False)


def _collapse(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    classify = _COLLAPSES.get(step.name, _read_other)
    parts = classify(step, entering, state, reading)
    if state.mixed and classify is _read_pick:
        mixer = state.touched_by[-1].name if state.touched_by else "another operation"
        parts = tuple(
            replace(part, kind=PoolingKind.OTHER, rule=f"{part.rule}, after {mixer} over all positions")
            for part in parts
        )
    return tuple(replace(part, evidence=(*state.touched_by, step), source=state.source) for part in parts)


def _read_pick(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    picked = picked_positions(step.last, step.name, reading.execution.probe, reading.sizes)
    if picked is None:
        return _read_other(step, entering, state, reading)
    return (_part_of_pick(picked, step, reading),)


def _part_of_pick(picked: Picked, step: Step, reading: Reading) -> Part:
    """The rule that explains the positions read in every row, the plainest first."""
    for explains in _PICKS:
        part = explains(picked, step, reading)
        if part is not None:
            return part
    rows = ", ".join(str(position) for position in picked.positions)
    return Part(PoolingKind.OTHER, "by row", f"one position per row by a rule not recognised (read here: {rows})")


def _first(picked: Picked, step: Step, reading: Reading) -> Part | None:
    if any(picked.positions) or not picked.positions:
        return None
    name = reading.names.first
    called = f", where the family's tokenizer puts {name}" if name else ""
    return Part(PoolingKind.FIRST_TOKEN, name or "0", f"first position (index 0), padding or not{called}")


def _last(picked: Picked, step: Step, reading: Reading) -> Part | None:
    length = reading.execution.probe.length
    if not length or set(picked.positions) != {length - 1}:
        return None
    return Part(PoolingKind.LAST_TOKEN, "-1", "last position, padding or not")


def _first_non_pad(picked: Picked, step: Step, reading: Reading) -> Part | None:
    if picked.positions != tuple(row.first for row in reading.execution.probe.rows):
        return None
    name = reading.names.first or "first non-pad"
    return Part(PoolingKind.FIRST_TOKEN, name, f"first position that is not padding{_found(step, reading)}")


def _after_last_non_pad(picked: Picked, step: Step, reading: Reading) -> Part | None:
    probe = reading.execution.probe
    if picked.positions != tuple(min(row.last + 1, probe.length - 1) for row in probe.rows):
        return None
    rule = f"the position after the last that is not padding, within the row{_found(step, reading)}"
    return Part(PoolingKind.LAST_NON_PAD_TOKEN, "after last non-pad", rule)


def _last_non_pad(picked: Picked, step: Step, reading: Reading) -> Part | None:
    if picked.positions != tuple(row.last for row in reading.execution.probe.rows):
        return None
    return Part(
        PoolingKind.LAST_NON_PAD_TOKEN, "last non-pad", f"last position that is not padding{_found(step, reading)}"
    )


def _eos(picked: Picked, step: Step, reading: Reading) -> Part | None:
    if picked.positions != tuple(row.eos for row in reading.execution.probe.rows):
        return None
    name = reading.names.eos or "eos"
    return Part(PoolingKind.EOS_TOKEN, name, f"position of the {name} token{_found(step, reading)}")


def _constant_index(picked: Picked, step: Step, reading: Reading) -> Part | None:
    if picked.index is None:
        return None
    return Part(PoolingKind.TOKEN_AT, str(picked.index), f"position {picked.index}, padding or not")


def _found(step: Step, reading: Reading) -> str:
    sources = sorted(_side_inputs(step, reading))
    return f", found from {' and '.join(sources)}" if sources else ""


_PICKS: tuple[Callable[[Picked, Step, Reading], Part | None], ...] = (
    _first,
    _last,
    _last_non_pad,
    _eos,
    _first_non_pad,
    _after_last_non_pad,
    _constant_index,
)


def _read_mean(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    if state.weighted:
        return (Part(PoolingKind.WEIGHTED, "all", "mean of the positions, each with a weight of its own"),)
    if state.masked:
        return (Part(PoolingKind.OTHER, "all", "mean over all positions of values that a mask has set to zero"),)
    if _is_spatial(entering, reading):
        return (Part(PoolingKind.SPATIAL_MEAN, "all", "mean over all spatial positions"),)
    if state.skipped:
        left_out = "the first" if state.skipped == 1 else f"the first {state.skipped}"
        return (Part(PoolingKind.MEAN, f"{state.skipped}:", f"mean over all positions but {left_out}"),)
    return (Part(PoolingKind.MEAN, "all", "mean over all positions, padding included"),)


def _is_spatial(entering: torch.Tensor, reading: Reading) -> bool:
    return not reading.execution.probe.length and entering.dim() == IMAGE_RANK


def _read_sum(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    if state.weighted:
        return (Part(PoolingKind.WEIGHTED, "all", "weighted sum of the positions"),)
    kind = PoolingKind.MASKED_MEAN if state.masked else PoolingKind.OTHER
    return (Part(kind, "all", "sum over the positions", is_bare_sum=True),)


def _read_deviation(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    return (Part(PoolingKind.OTHER, "spread of all", "standard deviation of each feature over all positions"),)


def _read_max(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    kept = " that the mask keeps" if state.masked else ", padding included"
    return (Part(PoolingKind.MAX, "all", f"largest value of each feature over the positions{kept}"),)


def _read_weighted(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    return (Part(PoolingKind.WEIGHTED, "all", "weighted sum of the positions"),)


def _read_flatten(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    probe, output = reading.execution.probe, step.last.outputs[0]
    if entering.numel() == output.numel() and output.shape[0] == probe.batch:
        return (Part(PoolingKind.FLATTEN, "all", "all positions side by side, one weight for each"),)
    return _read_other(step, entering, state, reading)


def _read_other(step: Step, entering: torch.Tensor, state: Tokens, reading: Reading) -> tuple[Part, ...]:
    return (Part(PoolingKind.OTHER, "all", f"the token axis disappears in {step.name}, by a rule not recognised"),)


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
    "matmul": _read_weighted,
    "bmm": _read_weighted,
    "einsum": _read_weighted,
    "scaled_dot_product_attention": _read_weighted,
    "multi_head_attention_forward": _read_weighted,
    "flatten": _read_flatten,
    "reshape": _read_flatten,
    "view": _read_flatten,
}


_RESIZING = {
    "conv1d", "conv2d", "unfold", "im2col", "max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d", "pad", "slice",
    "interpolate", "narrow", "view", "reshape",
}  # fmt: skip

_RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
_PRODUCTS = {"matmul", "bmm", "einsum", "scaled_dot_product_attention", "multi_head_attention_forward"}
_SPLITS = {"split", "chunk", "unbind", "tensor_split"}

_JOINS = {"cat": "side by side", "stack": "side by side", "add": "added", "sub": "subtracted", "mul": "multiplied"}


def _pooling(parts: tuple[Part, ...], reading: Reading) -> Pooling:
    if not parts:
        return Pooling(
            PoolingKind.OTHER, (), "no hidden states with a token axis were found on the way to the scores", ()
        )
    names = ModelNames(reading.execution.model)
    steps = tuple(dict.fromkeys(step for part in parts for step in part.evidence))
    evidence = tuple(_evidence(step.last, step.name, names) for step in steps)
    if len(parts) == 1:
        part = _settled(parts[0])
        return Pooling(part.kind, (part.tokens,), _summary_prefix(steps) + part.rule, evidence)
    settled = [_settled(part) for part in parts]
    how = " and ".join(dict.fromkeys(_JOINS.get(step.name, f"joined by {step.name}") for step in reading.joins))
    rule = f"{how or 'together'}: " + "; ".join(part.rule for part in settled)
    several = len({part.source for part in settled}) > 1
    tokens = tuple(f"{part.tokens} of hidden states {part.source}" if several else part.tokens for part in settled)
    return Pooling(PoolingKind.CONCAT, tokens, rule, evidence)


def _settled(part: Part) -> Part:
    """A sum that nothing divided is no mean."""
    return replace(part, kind=PoolingKind.OTHER) if part.is_bare_sum else part


def _summary_prefix(steps: tuple[Step, ...]) -> str:
    """SequenceSummary modules carry their name into the rule: their `summary_type` decides it."""
    modules = (type(module).__name__ for step in steps for module in step.last.modules)
    return "summary: " if any(name.endswith("SequenceSummary") for name in modules) else ""


def _evidence(operation: Operation, name: str, names: ModelNames) -> Evidence:
    return Evidence(name, names.path(operation), short_path(operation.file), operation.line)
