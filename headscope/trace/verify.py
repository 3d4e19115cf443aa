"""Proof of a pooling by numbers: the gradient of the scores says which positions move them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from headscope.errors import Unsupported
from headscope.facts import Pooling, PoolingKind, Verification
from headscope.trace.execution import Execution
from headscope.trace.probe import Probe
from headscope.trace.replay import Replay, replay_head
from headscope.trace.slicing import HeadSlice, token_sizes

Positions = tuple[int, ...]
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True, slots=True)
class Influence:
    """For each row of the probe the positions whose hidden state moves the scores; `weights` are their gradients."""

    rows: tuple[Positions, ...]
    length: int
    is_own_only: bool


def verify_pooling(execution: Execution, head: HeadSlice, pooling: Pooling) -> Verification:
    """Whether the gradients of a replayed head agree with the pooling that was read from its operations."""
    try:
        influence = measure_influence(execution, head)
    except Unsupported as err:
        return Verification(None, f"not determined: {err.message}", ())
    if influence is None:
        return Verification(None, "not determined: the hidden states have no token axis to tell apart", ())
    expected = _expected(pooling, execution.probe)
    told = _tell(influence, execution.probe)
    if expected is None:
        return Verification(None, f"the traced rule makes no claim to compare; by gradient: {told}", influence.rows)
    agrees = expected(influence) and _is_even(execution, head, pooling)
    verb = "agrees" if agrees else "disagrees"
    return Verification(agrees, f"{verb} with the traced rule; by gradient: {told}", influence.rows)


def measure_influence(execution: Execution, head: HeadSlice) -> Influence | None:
    """Which positions of the hidden states the scores of each row depend on; None without a token axis."""
    replay = replay_head(execution, head)
    axis = _token_axis(execution, head)
    if axis is None:
        return None
    rows = tuple(_positions(gradient, axis) for gradient in _row_gradients(replay))
    length = replay.hidden[0].shape[axis]
    return Influence(rows, length, _is_own_only(replay, axis))


def _token_axis(execution: Execution, head: HeadSlice) -> int | None:
    if not head.hidden:
        return None
    sizes = token_sizes(execution, head.hidden)
    return next((at for at, size in enumerate(head.hidden[0].shape) if at and size in sizes), None)


def _row_gradients(replay: Replay) -> list[torch.Tensor]:
    """The gradient of a random sum of each row's scores with respect to the first hidden states of that row."""
    hidden = replay.hidden[0]
    score = sum((_random_sum(logits) for logits in replay.logits), torch.zeros(()))
    gradients = torch.autograd.grad(score, replay.hidden, allow_unused=True, retain_graph=True)
    total = sum((item.abs() for item in gradients if item is not None and item.shape == hidden.shape), hidden * 0)
    return list(total.detach())


def _random_sum(logits: torch.Tensor) -> torch.Tensor:
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(7))
    return (logits.float() * weights).sum()


def _positions(gradient: torch.Tensor, axis: int) -> Positions:
    """Positions along `axis` (of the batched tensor) whose gradient is not zero."""
    strength = gradient.movedim(axis - 1, 0).flatten(1).abs().sum(1)
    return tuple(int(at) for at in (strength > _NEGLIGIBLE * max(float(strength.max()), 1e-30)).nonzero().flatten())


def _is_own_only(replay: Replay, axis: int) -> bool:
    """Whether the score at one position depends on the hidden state of that position alone."""
    logits, hidden = replay.logits[0], replay.hidden[0]
    length = hidden.shape[axis]
    if logits.dim() <= axis or logits.shape[axis] != length:
        return False
    at = length // 2
    (gradient,) = torch.autograd.grad(_random_sum(logits.select(axis, at)), hidden, retain_graph=True)
    return all(_positions(row, axis) == (at,) for row in gradient)


def _expected(pooling: Pooling, probe: Probe) -> Callable[[Influence], bool] | None:
    claim = _CLAIMS.get(pooling.kind)
    return claim(pooling, probe) if claim else None


def _is_even(execution: Execution, head: HeadSlice, pooling: Pooling) -> bool:
    """For means and maxima: when every position holds the same vector, each counts alike and every row scores alike.

    A mean of equal vectors is that vector however many are padding: a sum, a weighted mean, or a maximum in which zeros
    compete is found out.
    """
    if pooling.kind not in _EVEN:
        return True
    replay = replay_head(execution, head, _constant_hidden(execution, head))
    scores = [logits.detach().flatten(1) for logits in replay.logits if logits.shape[0] == execution.probe.batch]
    if not all(torch.allclose(item, item[:1].expand_as(item), rtol=1e-3, atol=1e-4) for item in scores):
        return False
    axis = _token_axis(execution, head)
    if pooling.kind is PoolingKind.MAX or axis is None:
        return True
    strengths = [row.movedim(axis - 1, 0).flatten(1).abs().sum(1) for row in _row_gradients(replay)]
    kept = [row[row > _NEGLIGIBLE * row.max().clamp(min=1e-30)] for row in strengths]
    return all(torch.allclose(row, row[:1].expand_as(row), rtol=1e-2) for row in kept if len(row))


_EVEN = {PoolingKind.MEAN, PoolingKind.MASKED_MEAN, PoolingKind.SPATIAL_MEAN, PoolingKind.MAX}


def _constant_hidden(execution: Execution, head: HeadSlice) -> dict[int, torch.Tensor]:
    """For each of the hidden states one random vector, the same in every row and at every position."""
    sizes, generator = token_sizes(execution, head.hidden), torch.Generator().manual_seed(5)
    given = {}
    for tensor in head.hidden:
        narrow = [1 if at == 0 or size in sizes else size for at, size in enumerate(tensor.shape)]
        given[id(tensor)] = torch.randn(narrow, generator=generator).expand(tensor.shape).clone()
    return given


Claim = Callable[[Influence], bool]


def _rows_are(positions: tuple[Positions, ...]) -> Claim:
    return lambda influence: influence.rows == positions


def _everywhere(pooling: Pooling, probe: Probe) -> Claim:
    """All positions, or all from the one that `tokens` names (`1:`)."""
    start = pooling.tokens[0].removesuffix(":") if pooling.tokens else ""
    first = int(start) if start.isdigit() else 0
    return lambda influence: all(row == tuple(range(first, influence.length)) for row in influence.rows)


def _first(pooling: Pooling, probe: Probe) -> Claim:
    if "not padding" in pooling.rule:
        return _rows_are(tuple((row.first,) for row in probe.rows))
    return lambda influence: set(influence.rows) == {(0,)}


def _last(pooling: Pooling, probe: Probe) -> Claim:
    return lambda influence: set(influence.rows) == {(influence.length - 1,)}


def _last_non_pad(pooling: Pooling, probe: Probe) -> Claim:
    if pooling.tokens == ("after last non-pad",):
        return _rows_are(tuple((min(row.last + 1, probe.length - 1),) for row in probe.rows))
    return _rows_are(tuple((row.last,) for row in probe.rows))


def _eos(pooling: Pooling, probe: Probe) -> Claim:
    return _rows_are(tuple((row.eos,) for row in probe.rows))


def _token_at(pooling: Pooling, probe: Probe) -> Claim:
    index = int(pooling.tokens[0])
    return lambda influence: set(influence.rows) == {(index % influence.length,)}


def _masked(pooling: Pooling, probe: Probe) -> Claim | None:
    """Exactly the real positions move the scores; for frames their number is the base model's own affair."""
    if not probe.rows:
        return lambda influence: (
            all(row == tuple(range(len(row))) for row in influence.rows)
            and (len({len(row) for row in influence.rows}) > 1)
        )
    return _rows_are(tuple(tuple(range(row.first, row.last + 1)) for row in probe.rows))


def _some(pooling: Pooling, probe: Probe) -> Claim:
    """Of a maximum each feature reads one position: several positions move the scores, which ones is chance."""
    return lambda influence: all(row for row in influence.rows)


def _own(pooling: Pooling, probe: Probe) -> Claim:
    return lambda influence: influence.is_own_only


_CLAIMS: dict[PoolingKind, Callable[[Pooling, Probe], Claim | None]] = {
    PoolingKind.FIRST_TOKEN: _first,
    PoolingKind.LAST_TOKEN: _last,
    PoolingKind.LAST_NON_PAD_TOKEN: _last_non_pad,
    PoolingKind.EOS_TOKEN: _eos,
    PoolingKind.TOKEN_AT: _token_at,
    PoolingKind.MEAN: _everywhere,
    PoolingKind.MASKED_MEAN: _masked,
    PoolingKind.MAX: _some,
    PoolingKind.SPATIAL_MEAN: _everywhere,
    PoolingKind.FLATTEN: _everywhere,
    PoolingKind.NONE: _own,
}


def _tell(influence: Influence, probe: Probe) -> str:
    """The positions in words, from the gradients alone."""
    rows, length = influence.rows, influence.length
    if influence.is_own_only:
        return "the score of each position depends on that position alone"
    for claim, words in _WORDS:
        if probe.rows and rows == tuple(claim(row) for row in probe.rows):
            return words
    if all(row == tuple(range(length)) for row in rows):
        return f"all {length} positions"
    if len(set(rows)) == 1 and len(rows[0]) == 1:
        return "only the first position" if rows[0] == (0,) else f"only position {rows[0][0]} of {length}"
    counts = sorted({len(row) for row in rows})
    return f"{' or '.join(map(str, counts))} of {length} positions a row"


_WORDS: tuple[tuple[Callable[..., Positions], str], ...] = (
    (lambda row: (0,), "only the first position, padding or not"),
    (lambda row: (row.last,), "only the last position that is not padding"),
    (lambda row: (row.eos,), "only the position of the end token"),
    (lambda row: (row.first,), "only the first position that is not padding"),
    (lambda row: tuple(range(row.first, row.last + 1)), "exactly the positions that are not padding"),
)
