"""Positions that an indexing operation picks, as typed values: the rule that explains what was read in every row."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from headscope.core.facts import HiddenSource, Positions, Where
from headscope.core.trace.batch.probe_batch import ProbeBatch
from headscope.core.trace.record.execution import Execution
from headscope.core.trace.record.indexing import index_items, item_on_axis
from headscope.core.trace.record.recorder import Operation
from headscope.core.trace.slice.axes import TokenAxes
from headscope.core.trace.slice.head_slice import HeadSlice
from headscope.core.trace.slice.stages import Step

_GATHERS = {"gather", "take_along_dim"}


@dataclass(frozen=True, slots=True)
class TokenNames:
    """Tokens that the tokenizer puts at index 0 and calls its end token; None if it has no such token.

    `is_own` says that this is read from the checkpoint's own tokenizer, not from the family's. `rows` are texts of
    tokens whose rows of the language-model head serve as scores, by their ids; `vocabulary` is how many rows the
    checkpoint's head has, where a copy with fewer is traced. `ahead` is how many virtual tokens an adapter puts first.
    `learned` are the parameters that the model itself puts first, as ViT does.
    """

    first: str | None = None
    eos: str | None = None
    is_own: bool = False
    rows: tuple[tuple[int, str], ...] = ()
    vocabulary: int | None = None
    ahead: int = 0
    learned: tuple[str, ...] = ()

    def parameter_at(self, index: int) -> str:
        """Names the parameter that the model puts at an index; empty if it puts none there."""
        return self.learned[index] if 0 <= index < len(self.learned) else ""


@dataclass(frozen=True, slots=True)
class HeadSteps:
    """A head step by step, with what names its axes, its tokens and, in `sources`, its hidden states."""

    head: HeadSlice
    steps: tuple[Step, ...]
    axes: TokenAxes
    tokens: TokenNames
    sources: tuple[HiddenSource, ...]

    @property
    def execution(self) -> Execution:
        """Execution that the head is from."""
        return self.head.execution


@dataclass(frozen=True, slots=True)
class Picked:
    """Positions read in each row of the probe; `index` is the integer written in the source, if it is one.

    `length` is the size of the axis: tokens of a text, or something else that is in a row (patches, entities).
    """

    positions: tuple[int, ...]
    index: int | None
    length: int = 0


def read_pick(step: Step, known: HeadSteps) -> Positions | None:
    """Returns the positions that a step keeps on the token axis of its first tensor; None if it picks none there."""
    operation, execution = step.last, known.execution
    picked = picked_positions(operation, step.name, execution.probe, known.axes)
    if picked is None:
        return None
    # Values that a caller gives are the same in every run, so that positions found by them look like a rule and are
    # none.
    if picked.index is None and inputs_behind(operation.inputs[1:], execution) & execution.probe.given:
        return Positions(Where.BY_ROW)
    return explain_pick(picked, execution.probe, known.tokens)


def inputs_behind(operands: Iterable[torch.Tensor], execution: Execution) -> set[str]:
    """Names the model inputs from which operands are made."""
    inputs = {id(value): name for name, value in execution.probe.inputs.items()}
    return {inputs[id(tensor)] for tensor in execution.graph.behind(*operands) if id(tensor) in inputs}


def explain_pick(picked: Picked, probe: ProbeBatch, names: TokenNames) -> Positions:
    """Returns the plainest rule that explains the positions read in every row."""
    if picked.length != probe.length:
        return _without_texts(picked, names)
    read, rows, last = picked.positions, probe.rows, probe.length - 1
    # In order, the first that explains every row wins. Fixed places go first: a head that takes index 0 reads the first
    # token, even if no row of a caller's batch is padded and the first token that is not padding is the same. Any other
    # fixed index comes last. Which of two rules that fit one run is right shows in the next, with other rows padded.
    if read and not any(read):
        return Positions(Where.INDEX, 0, token=names.first or "")
    if last >= 0 and set(read) == {last}:
        return Positions(Where.INDEX, -1)
    rules = (
        (tuple(row.last for row in rows), Positions(Where.LAST_NON_PAD)),
        (tuple(row.eos for row in rows), Positions(Where.EOS, token=names.eos or "")),
        (tuple(row.first for row in rows), Positions(Where.FIRST_NON_PAD, token=names.first or "")),
        # Code that indexes beyond the end clamps there, or it fails.
        (tuple(min(row.last + 1, last) for row in rows), Positions(Where.AFTER_LAST_NON_PAD)),
    )
    other = Positions(Where.BY_ROW) if picked.index is None else Positions(Where.INDEX, picked.index)
    return next((rule for positions, rule in rules if positions == read), other)


def _without_texts(picked: Picked, names: TokenNames) -> Positions:
    """Returns the index of something else than tokens of a text: a patch, an entity."""
    fixed = set(picked.positions)
    if picked.index is None and len(fixed) != 1:
        return Positions(Where.BY_ROW)
    index = picked.index if picked.index is not None else fixed.pop()
    index = 0 if picked.length == 1 else index
    return Positions(Where.INDEX, index, parameter=names.parameter_at(index))


def sliced_positions(operation: Operation, axes: TokenAxes, before: Positions) -> Positions | None:
    """Returns what is left of `before` after a slice along the token axis; None if it is not a run of positions.

    `tensor[:, 1:]` of all positions is the range from 1; a second slice cuts further.
    """
    source = operation.args[0]
    axis = axes.first(source)
    item = None if axis is None else item_on_axis(operation, axis)
    if not isinstance(item, slice) or item in (slice(0, None), slice(None, None, 1)):
        return before
    start, stop = item.start or 0, item.stop
    bounds = isinstance(start, int) and (stop is None or isinstance(stop, int)) and item.step in (None, 1)
    if not bounds or before.where not in (Where.ALL, Where.RANGE) or start < 0:
        return None
    if before.where is Where.RANGE and before.stop is not None:
        return None
    # A stop beyond this text leaves everything, as far as this run can tell; `other_inputs.py` tries a longer text.
    if isinstance(stop, int) and stop >= source.shape[axis or 0]:
        stop = None
    offset = before.index or 0
    stop = stop + offset if isinstance(stop, int) and stop > 0 else stop
    start += offset
    return before if start == 0 and stop is None else Positions(Where.RANGE, start, stop)


def kept_positions(positions: Positions, probe: ProbeBatch, length: int) -> list[list[int]]:  # noqa: PLR0911 - one line for each kind
    """Lists the positions of each row of the probe that `positions` names, among `length`.

    Raises ValueError for a rule that does not say which positions they are.
    """
    rows = probe.rows
    count = len(rows) or probe.batch
    match positions.where:
        case Where.INDEX:
            return [[(positions.index or 0) % length]] * count
        case Where.RANGE:
            return [list(range(length))[positions.index or 0 : positions.stop]] * count
        case Where.ALL | Where.EACH:
            return [list(range(length))] * count
    if not rows or length != probe.length:
        raise ValueError(f"no rows of tokens to find {positions.where} in")
    match positions.where:
        case Where.FIRST_NON_PAD:
            return [[row.first] for row in rows]
        case Where.LAST_NON_PAD:
            return [[row.last] for row in rows]
        case Where.AFTER_LAST_NON_PAD:
            # A row without padding has no such position: code that indexes there clamps, or it fails.
            return [[min(row.last + 1, length - 1)] for row in rows]
        case Where.EOS:
            return [[row.eos] for row in rows]
        case Where.NON_PAD:
            return [list(range(row.first, row.last + 1)) for row in rows]
    raise ValueError(f"{positions.where} does not say which positions are read")


def is_mask_of_rows(mask: torch.Tensor, probe: ProbeBatch) -> bool:
    """True if a tensor keeps exactly the positions of each row that are not padding, the same for every feature."""
    flat = _by_rows(mask, probe)
    if flat is None:
        return False
    kept = [row.nonzero().flatten().tolist() for row in flat]
    return kept == [list(range(row.first, row.last + 1)) for row in probe.rows]


def _by_rows(mask: torch.Tensor, probe: ProbeBatch) -> torch.Tensor | None:
    """Reshapes a mask to [rows, tokens]; None if it has another layout, or differs between the features of a token."""
    count, length = len(probe.rows), probe.length
    if not count or mask.is_meta:
        return None
    if mask.numel() == count * length and (mask.shape[-1] == length or length in mask.shape[1:]):
        return mask.reshape(count, length)
    if tuple(mask.shape[:2]) != (count, length):
        return None
    spread = mask.reshape(count, length, -1)
    return spread[..., 0] if bool((spread == spread[..., :1]).all()) else None


def picked_positions(operation: Operation, name: str, probe: ProbeBatch, axes: TokenAxes) -> Picked | None:
    """Returns the positions on the token axis that `operation` keeps, one per row; None if they are unknown."""
    if name in _GATHERS:
        return _picked_by_gather(operation, probe, axes)
    return _picked_by_items(operation, probe, axes) if name in {"select", "index", "slice"} else None


def _picked_by_items(operation: Operation, probe: ProbeBatch, axes: TokenAxes) -> Picked | None:
    source = operation.args[0]
    items = index_items(operation)
    mask = next((item for item in items if isinstance(item, torch.Tensor) and item.dtype == torch.bool), None)
    if mask is not None:
        return _picked_by_mask(mask, probe)
    axis = axes.first(source)
    if axis is None:
        return None
    item, size = item_on_axis(operation, axis), source.shape[axis]
    if isinstance(item, slice):
        kept = range(size)[item]
        # Counted as the slice counts: `[-1:]` is -1.
        back = size if isinstance(item.start, int) and item.start < 0 else 0
        return _same_in_rows(kept[0] - back, size, probe) if len(kept) == 1 else None
    if isinstance(item, int):
        return _same_in_rows(item, size, probe)
    # Only where the batch axis is indexed by every row in order do the indices beside it go row by row:
    # `h[arange(batch), ends]`.
    is_by_row = bool(items) and _known_indices(items[0]) == list(range(probe.batch))
    return _picked_by_indices(_known_indices(item), size, is_by_row=is_by_row, probe=probe)


def _picked_by_indices(indices: list[int] | None, size: int, *, is_by_row: bool, probe: ProbeBatch) -> Picked | None:
    if indices is None:
        return None
    if len(indices) == 1:
        return _same_in_rows(indices[0], size, probe)
    if not is_by_row or len(indices) != probe.batch:
        return None
    return Picked(tuple((index + size) % size for index in indices), None, size)


def _known_indices(item: Any) -> list[int] | None:
    """Returns the numbers of a tensor or list of indices; None if their values are not known."""
    if isinstance(item, torch.Tensor):
        return None if item.is_meta else item.flatten().tolist()
    if isinstance(item, list) and all(isinstance(value, int) and not isinstance(value, bool) for value in item):
        return item
    return None


def _picked_by_mask(mask: torch.Tensor, probe: ProbeBatch) -> Picked | None:
    if mask.is_meta or mask.shape != (probe.batch, probe.length):
        return None
    found = [row.nonzero().flatten().tolist() for row in mask]
    return Picked(tuple(positions[-1] for positions in found), None, probe.length) if all(found) else None


def _picked_by_gather(operation: Operation, probe: ProbeBatch, axes: TokenAxes) -> Picked | None:
    index = next((leaf for leaf in operation.inputs[1:] if not leaf.is_floating_point()), None)
    if index is None or index.is_meta or index.shape[0] != probe.batch:
        return None
    rows = index.reshape(probe.batch, -1)
    if not bool((rows == rows[:, :1]).all()):
        return None
    axis = axes.first(operation.args[0])
    return None if axis is None else Picked(tuple(rows[:, 0].tolist()), None, operation.args[0].shape[axis])


def _same_in_rows(index: int, size: int, probe: ProbeBatch) -> Picked:
    return Picked(((index + size) % size,) * probe.batch, index, size)
