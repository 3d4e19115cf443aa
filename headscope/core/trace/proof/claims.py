"""Claims of a pooling about the gradients: which positions move the scores, and which can't."""

from collections.abc import Callable
from dataclasses import dataclass

from headscope.core.facts import Pooling, PoolingKind, PoolingPart, Where
from headscope.core.trace.batch.inputs import ProbeRow
from headscope.core.trace.batch.probe_batch import ProbeBatch
from headscope.core.trace.replay.changed_inputs import PositionNumbers
from headscope.core.trace.replay.picks import kept_positions


@dataclass(frozen=True, slots=True)
class Influence:
    """Positions whose hidden state moves the scores, for each row of the probe.

    `axis` of the hidden states has `length` positions.
    """

    rows: tuple[PositionNumbers, ...]
    length: int
    axis: int
    is_own_only: bool


def fits_claim(  # noqa: PLR0911 - one line for each kind
    pooling: Pooling, influence: Influence, probe: ProbeBatch
) -> bool | None:
    """True if gradients show what a pooling claims; None if its parts do not name their positions."""
    rows = influence.rows
    match pooling.kind:
        case PoolingKind.NONE:
            return influence.is_own_only
        case PoolingKind.MAX:  # each feature reads one position, and which ones these are is chance
            return all(rows)
        case PoolingKind.MASKED_MEAN if probe.rows:
            return rows == real_positions(probe)
        # For frames of audio the base model decides how many are real, and the probe doesn't know the number.
        case PoolingKind.MASKED_MEAN:
            return all(row == tuple(range(len(row))) for row in rows) and len({len(row) for row in rows}) > 1
    kinds = {part.kind for part in pooling.parts}
    if not kinds or kinds & {*NO_CLAIM, PoolingKind.MAX}:
        return None
    if any(part.positions.where not in PLACES_TOLD for part in pooling.parts):
        return None
    try:
        return rows == claimed_rows(pooling.parts, probe, influence.length)
    except ValueError:
        return False


def real_positions(probe: ProbeBatch) -> tuple[PositionNumbers, ...]:
    """Lists for each row of texts the positions that are not padding."""
    return tuple(tuple(range(row.first, row.last + 1)) for row in probe.rows)


def claimed_rows(parts: tuple[PoolingPart, ...], probe: ProbeBatch, length: int) -> tuple[PositionNumbers, ...]:
    """Lists for each row all positions that one of the parts reads."""
    rows = [kept_positions(part.positions, probe, length) for part in parts]
    return tuple(tuple(sorted({at for part in rows for at in part[row]})) for row in range(len(rows[0])))


NO_CLAIM = {PoolingKind.WEIGHTED, PoolingKind.OTHER, PoolingKind.NONE}
PLACES_TOLD = {
    Where.INDEX, Where.RANGE, Where.FIRST_NON_PAD, Where.LAST_NON_PAD, Where.AFTER_LAST_NON_PAD, Where.EOS, Where.ALL,
    Where.NON_PAD,
}  # fmt: skip


def tell_influence(influence: Influence, probe: ProbeBatch) -> str:
    """Names the positions in words, from the gradients alone."""
    rows, length = influence.rows, influence.length
    if influence.is_own_only:
        return "the score of each position depends on that position alone"
    for claim, words in _WORDS:
        # Code that reads one past the end clamps there, so the last position counts instead.
        claimed = tuple(tuple(min(at, length - 1) for at in claim(row, length)) for row in probe.rows)
        if probe.rows and rows == claimed:
            return words
    if all(row == tuple(range(length)) for row in rows):
        return f"all {length} positions"
    if len(set(rows)) == 1 and len(rows[0]) == 1:
        ends = {(0,): "only the first position", (length - 1,): "only the last position"}
        return ends.get(rows[0], f"only position {rows[0][0]} of {length}")
    counts = sorted({len(row) for row in rows})
    return f"{' or '.join(map(str, counts))} of {length} positions a row"


_WORDS: tuple[tuple[Callable[[ProbeRow, int], PositionNumbers], str], ...] = (
    (lambda row, length: (0,), "only the first position, padding or not"),
    (lambda row, length: (length - 1,), "only the last position, padding or not"),
    (lambda row, length: (row.last,), "only the last position that is not padding"),
    (lambda row, length: (row.eos,), "only the position of the end token"),
    (lambda row, length: (row.last + 1,), "only the position after the last that is not padding"),
    (lambda row, length: (row.first,), "only the first position that is not padding"),
    (lambda row, length: tuple(range(row.first, row.last + 1)), "exactly the positions that are not padding"),
)
