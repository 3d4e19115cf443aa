"""Proofs of a pooling by numbers: the gradient of the scores says which positions move them."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import StrEnum

import torch

from headscope.core.facts import Pooling, PoolingKind, PoolingPart, Verification, Where
from headscope.core.trace.pooling.pooling import PoolingRead
from headscope.core.trace.proof.claims import (
    NO_CLAIM,
    PLACES_TOLD,
    Influence,
    claimed_rows,
    fits_claim,
    real_positions,
    tell_influence,
)
from headscope.core.trace.replay.changed_inputs import EVEN, ChangedInputs, PositionNumbers, keeps_equal_vectors
from headscope.core.trace.replay.replay import Replay, replay_head
from headscope.core.trace.slice.axes import TokenAxes
from headscope.core.trace.slice.head_slice import HeadSlice
from headscope.errors import Unsupported

# In relation to the strongest gradient. A position that is not read has a gradient of exactly 0, while one that is read
# among thousands of others, or through an almost closed gate, has a very small one: so the limit is far below rounding.
_NEGLIGIBLE = 1e-9
_PARTS_OF_AN_AXIS = (1 / 3, 2 / 3, 0, 1)
"""Places along an axis where single positions are tested: not the middle, which a reversal leaves in its place."""
_NO_GRADIENT = "not determined: the scores depend on positions that no gradient leads to (rounded, compared or cut off)"


class _Fault(StrEnum):
    """What numbers show against a part of a pooling. `UNSEEN`: no gradient shows that it reads what it claims."""

    POSITIONS = "reads other positions"
    PADDING = "is wrong about padding"
    UNEVEN = "does not count its positions alike"
    UNSEEN = _NO_GRADIENT


PartTensors = tuple[tuple[torch.Tensor, ...], ...]


def verify_pooling(
    head: HeadSlice,
    pooling: Pooling,
    axes: TokenAxes,
    tensors: PartTensors = (),
    runs: ChangedInputs | None = None,
) -> Verification:
    """Checks whether the gradients of a replayed head agree with the pooling that was read from its operations.

    `tensors` are those of each part, before and after its token axis disappears: with them each part is compared with
    the gradients separately, even if the others make no claim. `runs` are those of the head that were made already.
    """
    try:
        runs = runs or ChangedInputs(axes, replay_head(head))
        return _verify_with_runs(pooling, tensors, runs)
    except Unsupported as err:
        return Verification(None, f"not determined: {err.message}", ())


def _verify_with_runs(pooling: Pooling, tensors: PartTensors, runs: ChangedInputs) -> Verification:
    influence = measure_influence(runs.usual, runs.axes)
    if influence is None:
        return Verification(None, "not determined: the hidden states have no token axis to tell apart", ())
    sentence = tell_influence(influence, runs.probe)
    if pooling.parts and _mixes_rows(runs.usual):
        return Verification(False, "the scores of one row depend on the hidden states of other rows", influence.rows)
    if (found := _verify_parts(pooling, tensors, runs, influence, sentence)) is not None:
        return found
    fits = fits_claim(pooling, influence, runs.probe)
    if fits is None:
        return Verification(None, f"the traced rule makes no claim to compare; by gradient: {sentence}", influence.rows)
    if not fits and _lacks_gradients(pooling, influence, runs):
        return Verification(None, f"{_NO_GRADIENT}; by gradient: {sentence}", ())
    # Gradients show which positions count, not that they count alike: a weighted sum over all positions passes the
    # first test as a mean, and only equal vectors tell the two apart.
    agrees = fits and _is_even(pooling, runs, influence)
    verb = "agrees" if agrees else "disagrees"
    return Verification(agrees, f"{verb} with the traced rule; by gradient: {sentence}", influence.rows)


def _verify_parts(
    pooling: Pooling, tensors: PartTensors, runs: ChangedInputs, influence: Influence, sentence: str
) -> Verification | None:
    """Compares each part with its own gradients; None if nothing contradicts one and all that it claims is seen."""
    is_unseen = False
    for part, pair in zip(pooling.parts, tensors, strict=True) if len(tensors) == len(pooling.parts) else ():
        if not pair or part.kind in NO_CLAIM or part.positions.where not in PLACES_TOLD:
            continue
        try:
            claimed = claimed_rows((part,), runs.probe, influence.length)
        except ValueError:
            continue
        # Part by part: in a concatenation of a mean and the first token, all positions move the scores whatever the
        # first token is, so the gradients of the whole head would let a wrong claim on one part pass.
        fault = _fault_of(part, (pair[0], pair[1]), claimed, runs, influence.axis)
        if fault is _Fault.UNSEEN:  # a later part may be wrong all the same
            is_unseen = True
        elif fault is not None:
            wrong = f"disagrees with the traced rule: its part '{part.rule}' {fault}; by gradient: {sentence}"
            return Verification(False, wrong, influence.rows)
    return Verification(None, _NO_GRADIENT, ()) if is_unseen else None


def _lacks_gradients(pooling: Pooling, influence: Influence, runs: ChangedInputs) -> bool:
    """True if the scores depend on the positions that the pooling claims and their gradients don't show it."""
    try:
        claimed = claimed_rows(pooling.parts, runs.probe, influence.length)
    except ValueError:
        return False
    if pooling.kind is PoolingKind.MAX:  # which of them a row reads is chance
        claimed = tuple(seen or row for row, seen in zip(claimed, influence.rows, strict=True))
        return _depends_unseen(runs.head.execution.logits, claimed, influence.rows, runs, influence.axis, enough=any)
    return _depends_unseen(runs.head.execution.logits, claimed, influence.rows, runs, influence.axis)


def _depends_unseen(  # noqa: PLR0917 - a dependence is looked for in that many places
    tensors: tuple[torch.Tensor, ...],
    claimed: tuple[PositionNumbers, ...],
    found: tuple[PositionNumbers, ...],
    runs: ChangedInputs,
    axis: int,
    enough: Callable[[Iterable[bool]], bool] = all,
) -> bool:
    """True if tensors change with the positions that are claimed and that their gradients don't show.

    A sign or a rounded number has a gradient of zero, and so has a value that is cut off below zero. `enough` decides
    from the positions of a row: `all` of them must change it, or `any`.
    """
    if len(claimed) != len(found) or any(set(seen) - set(row) for row, seen in zip(claimed, found, strict=True)):
        return False
    unseen = [set(row) - set(seen) for row, seen in zip(claimed, found, strict=True)]
    changes = {at: runs.depends_on(tensors, at, axis) for at in sorted(set().union(*unseen))}
    if any(len(rows) != len(unseen) for rows in changes.values()):
        return False
    return any(unseen) and all(enough(changes[at][row] for at in places) for row, places in enumerate(unseen) if places)


def _fault_of(
    part: PoolingPart,
    pair: tuple[torch.Tensor, torch.Tensor],
    claimed: tuple[PositionNumbers, ...],
    runs: ChangedInputs,
    axis: int,
) -> _Fault | None:
    """Finds what is wrong with one part whose tensors before and after the collapse are known; None for nothing.

    A part must read no position that it does not name, and all that it names unless it is a maximum. For a maximum, no
    position may hold something of others, and padding must win if it takes part. A mean or a maximum of equal vectors
    must be that vector.
    """
    replay = runs.usual
    before, after = (replay.differentiable(tensor) for tensor in pair)
    is_in_place = before.shape[: axis + 1] == replay.hidden[0].shape[: axis + 1]
    where = runs.axes.of(pair[0])
    found = tuple(_positions_moved(row, axis) for row in _row_gradients(replay, (after,)))
    if part.kind is PoolingKind.MAX:
        # Each feature of a maximum takes its gradient from one position, and chance decides which. So the positions
        # that are seen can only be fewer than those claimed; what the maximum could have read is seen before it.
        held = tuple(_positions_moved(row, axis) for row in _row_gradients(replay, (before,)))
        fits = all(set(row) <= set(named) for row, named in zip(found, claimed, strict=True))
        fits = fits and all(set(named) <= set(row) for row, named in zip(held, claimed, strict=True))
        reads = _reads_itself(before, replay, axis) if is_in_place else _reads_one(before, where, replay, axis)
        if not (fits and reads):
            return _Fault.UNSEEN if _depends_unseen((pair[0],), claimed, held, runs, axis) else _Fault.POSITIONS
        if not _padding_wins_as_claimed(pair[1], claimed, runs, axis):
            return _Fault.PADDING
    elif found != claimed:
        return _Fault.UNSEEN if _depends_unseen((pair[1],), claimed, found, runs, axis) else _Fault.POSITIONS
    if part.kind in EVEN:
        before, after = (runs.constant.differentiable(tensor).detach() for tensor in pair)
        if not keeps_equal_vectors(before, after, (axis,) if is_in_place else where, claimed):
            return _Fault.UNEVEN
    return None


def _padding_wins_as_claimed(
    after: torch.Tensor, claimed: tuple[PositionNumbers, ...], runs: ChangedInputs, axis: int
) -> bool:
    """True if a maximum reads padding that is made large exactly if it is claimed to, or without padded texts."""
    probe, shape = runs.probe, runs.usual.hidden[0].shape
    if axis != 1 or len(probe.rows) != len(claimed) or shape[:2] != (len(claimed), probe.length):
        return True
    gradients = [_row_gradients(loud, (loud.differentiable(after),)) for loud in runs.loud_for(after)]
    for row, positions, *found in zip(probe.rows, claimed, *gradients, strict=True):
        padding = {*range(row.first), *range(row.last + 1, probe.length)}
        read = {at for gradient in found for at in _positions_moved(gradient, axis)}
        if found and padding and bool(padding & set(positions)) != bool(padding & read):
            return False
    return True


def _mixes_rows(replay: Replay) -> bool:
    """True if the scores of the last row depend on the hidden states of another: a recurrence may end in it."""
    scores, hidden = replay.logits[0], replay.hidden[0]
    if not scores.requires_grad or not scores.dim() or scores.shape[0] != hidden.shape[0]:
        return False
    # The last row, because a recurrence over the batch (a head that forgot batch_first) reaches only later rows.
    with torch.enable_grad():
        gradients = _gradients_of(_random_sum(scores[-1]), replay.hidden)
    same_rows = [item for item in gradients if item is not None and item.shape[:1] == hidden.shape[:1]]
    return any(bool((item[:-1].abs() > _NEGLIGIBLE * item.abs().max().clamp(min=1e-30)).any()) for item in same_rows)


def with_weighed_positions(read: PoolingRead, runs: ChangedInputs | None) -> PoolingRead:
    """Adds to a weighted sum the positions whose weight is not zero, by its gradients: a mask may leave padding out.

    The operations alone don't show it: a mask reaches the weights multiplied, added as a large negative number or
    filled in. The pooling is returned as it is where it is not a single weighted sum over tokens, or where it cannot be
    replayed.
    """
    if runs is None or [part.kind for part in read.parts] != [PoolingKind.WEIGHTED]:
        return read
    try:
        influence, probe = measure_influence(runs.usual, runs.axes), runs.probe
    except Unsupported:
        return read
    if influence is None or influence.length != probe.length:
        return read
    # Exact rows on a batch whose rows are padded differently: a mask that happens to fit one row does not fit all.
    (part,) = read.parts
    if influence.rows == real_positions(probe):
        part = replace(part, positions=replace(part.positions, where=Where.NON_PAD), has_padding=False)
    elif all(row == tuple(range(influence.length)) for row in influence.rows):
        part = replace(part, has_padding=True)
    return replace(read, parts=(part,))


@torch.enable_grad()
def measure_influence(replay: Replay, axes: TokenAxes) -> Influence | None:
    """Finds the positions of the hidden states that the scores of each row depend on; None without a token axis.

    Raises Unsupported where no gradient reaches the hidden states.
    """
    hidden = replay.head.hidden
    axis = next((axis for axis in axes.of(hidden[0]) if axis), None) if hidden else None  # 0 is the batch
    if axis is None:
        return None
    rows = tuple(_positions_moved(gradient, axis) for gradient in _row_gradients(replay))
    length = replay.hidden[0].shape[axis]
    scores = replay.logits[0]
    # The scores may have fewer positions than the hidden states: the tokens of a text before the patches of its image.
    has_positions = scores.dim() > axis and scores.shape[axis] == length
    is_own_only = (has_positions or axis in axes.of(scores)) and _reads_itself(scores, replay, axis)
    return Influence(rows, length, axis, is_own_only)


@torch.enable_grad()
def _row_gradients(replay: Replay, values: tuple[torch.Tensor, ...] | None = None) -> list[torch.Tensor]:
    """Computes the gradient of a random sum of each row's scores with respect to the first hidden states of that row.

    `values` are other tensors of the head to take instead of the scores.
    """
    hidden = replay.hidden[0]
    # One backward pass for all rows: the scores of a row depend on its own hidden states only, which `_mixes_rows`
    # checks.
    score = sum((_random_sum(value) for value in values or replay.logits), torch.zeros(()))
    if not score.requires_grad:
        source = "a part of the head" if values else "the scores"
        raise Unsupported(f"no gradient reaches the hidden states from {source}, so nothing can be compared", "")
    gradients = _gradients_of(score, replay.hidden)
    total = sum((item.abs() for item in gradients if item is not None and item.shape == hidden.shape), hidden * 0)
    return list(total.detach())


def _gradients_of(score: torch.Tensor, hidden: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor | None, ...]:
    try:
        return torch.autograd.grad(score, hidden, allow_unused=True, retain_graph=True)
    except RuntimeError as err:
        raise Unsupported(f"a gradient can't be computed: {err}", "") from err


def _random_sum(logits: torch.Tensor) -> torch.Tensor:
    # A plain sum would hide scores that add up to a constant: those of a softmax always sum to 1, so it has no
    # gradient, and the proof would find that no position is read.
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(7))
    return (logits.float() * weights).sum()


def _positions_moved(gradient: torch.Tensor, axis: int) -> PositionNumbers:
    """Lists the positions along `axis` (of the batched tensor) whose gradient is not zero."""
    positions = gradient.movedim(axis - 1, 0)
    strength = positions.reshape(len(positions), -1).abs().sum(1)
    return tuple(int(at) for at in (strength > _NEGLIGIBLE * max(float(strength.max()), 1e-30)).nonzero().flatten())


def _reads_itself(value: torch.Tensor, replay: Replay, axis: int) -> bool:
    """True if what is at one position of `value` depends on the hidden state of that position alone."""
    if not value.requires_grad:
        return False
    for part in _PARTS_OF_AN_AXIS:
        at = int(part * (value.shape[axis] - 1))
        rows = _rows_read(value.select(axis, at), replay, axis)
        if any(row not in ((at,), ()) for row in rows):
            return False
        if any(rows):
            return True
    return False  # none of these is among those that are read


def _reads_one(value: torch.Tensor, axes: tuple[int, ...], replay: Replay, axis: int) -> bool:
    """True if one place of `value`, whose axes differ from the hidden states', holds one position of each row.

    The first place that holds anything decides: a mask may have filled in others.
    """
    if not axes or not value.requires_grad:
        return False
    for part in _PARTS_OF_AN_AXIS:
        place = value
        for at in sorted(axes, reverse=True):
            place = place.select(at, int(part * (value.shape[at] - 1)))
        rows = _rows_read(place, replay, axis)
        if any(rows):
            return all(len(row) <= 1 for row in rows)
    return False


def _rows_read(value: torch.Tensor, replay: Replay, axis: int) -> list[PositionNumbers]:
    """Lists for each row the positions of the first hidden states that `value` depends on; empty if it depends on
    none.
    """
    (gradient,) = _gradients_of(_random_sum(value), replay.hidden[:1])
    return [_positions_moved(row, axis) for row in gradient] if gradient is not None else []


def _is_even(pooling: Pooling, runs: ChangedInputs, influence: Influence) -> bool:
    """True if every position counts alike and every row scores alike when all positions hold the same vector.

    True for kinds other than means and maxima. A mean of equal vectors is that vector however many are padding; a sum,
    a weighted mean, or a maximum in which zeros compete is not.
    """
    if pooling.kind not in EVEN:
        return True
    replay = runs.constant
    scores = [logits.detach().flatten(1) for logits in replay.logits if logits.shape[0] == runs.probe.batch]
    if not all(torch.allclose(item, item[:1].expand_as(item), rtol=1e-3, atol=1e-4) for item in scores):
        return False
    if pooling.kind is PoolingKind.MAX:  # of equal values any may be the largest
        return True
    gradients, axis = _row_gradients(replay), influence.axis
    # Of equal values the k largest are any k: then some positions of a row count, and others don't.
    read = [_positions_moved(row, axis) for row in gradients]
    if any(row not in ((), usual) for row, usual in zip(read, influence.rows, strict=True)):
        return False
    strengths = [row.movedim(axis - 1, 0).flatten(1).abs().sum(1) for row in gradients]
    kept = [row[list(positions)] for row, positions in zip(strengths, read, strict=True)]
    return all(torch.allclose(row, row[:1].expand_as(row), rtol=1e-2) for row in kept)
