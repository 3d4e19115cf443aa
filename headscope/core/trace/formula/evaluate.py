"""Evaluation of a formula on the hidden states of a replay, by what its text says, and comparison with the head."""

import operator
from collections.abc import Callable
from typing import Any, assert_never

import torch

from headscope.core.facts import Positions, Where
from headscope.core.trace.formula.expression import (
    Applied,
    Arithmetic,
    Cut,
    Expression,
    Hidden,
    Joined,
    Number,
    Pick,
    Pooled,
    Rows,
    Side,
    Sign,
)
from headscope.core.trace.record.randomness import OwnRandomness
from headscope.core.trace.replay.picks import is_mask_of_rows, kept_positions
from headscope.core.trace.replay.replay import MaskKind, Replay
from headscope.errors import first_line

_SIGNS: dict[Sign, Callable[[Any, Any], Any]] = {
    Sign.ADD: operator.add,
    Sign.SUB: operator.sub,
    Sign.MUL: operator.mul,
    Sign.DIV: operator.truediv,
    Sign.MATMUL: operator.matmul,
}
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5
"""Single precision over a few dozen operations, in another order than the head ran them; a wrong term is far larger."""


class Evaluation:
    """Values of expressions on the hidden states of a replay, each computed once; `values` has them by a node's id."""

    def __init__(self, replay: Replay) -> None:
        self.values: dict[int, torch.Tensor] = {}
        self._replay, self._probe = replay, replay.head.execution.probe

    def value(self, node: Expression) -> torch.Tensor:
        """Returns the value of a node."""
        if id(node) not in self.values:
            self.values[id(node)] = self._compute_node(node)
        return self.values[id(node)]

    def _compute_node(self, node: Expression) -> torch.Tensor:  # noqa: PLR0911 - one line for each kind
        value, replay = self.value, self._replay
        match node:
            case Hidden():
                return replay.hidden[node.number].detach()
            case Side():
                return replay.value(node.tensor)
            case Number():
                return torch.tensor(node.value)
            case Pick():
                return self._pick_positions(value(node.of), node)
            case Cut():
                return _cut_positions(value(node.of), node.axis, node.positions)
            case Pooled():
                return self._pool_positions(value(node.of), node)
            case Arithmetic():
                pairs = zip((node.left, node.right), node.recorded, strict=True)
                left, right = (fitted(value(item), getattr(like, "shape", torch.Size())) for item, like in pairs)
                return torch.as_tensor(_SIGNS[node.sign](left, right))
            case Joined():
                parts = [fitted(value(part), like.shape) for part, like in zip(node.parts, node.recorded, strict=True)]
                return torch.cat(parts, node.axis) if node.function == "cat" else torch.stack(parts, node.axis)
            case Applied():
                given = {id(tensor): fitted(value(inner), tensor.shape) for tensor, inner in node.inputs}
                return replay.run_again(node.step.operations, given, node.output)
            case Rows():
                rows = list(node.rows)
                bias = None if node.bias is None else replay.value(node.bias)[rows]
                scores = torch.nn.functional.linear(value(node.of), replay.value(node.weight)[rows], bias)
                return scores[..., 0] if node.is_one else scores
        assert_never(node)

    def _pick_positions(self, value: torch.Tensor, node: Pick) -> torch.Tensor:
        """Picks one position of each row: [rows, tokens, ...] -> [rows, ...]."""
        rows = kept_positions(node.positions, self._probe, value.shape[node.axis])
        # The same position in every row needs no batch axis in its place.
        if len({row[0] for row in rows}) == 1:
            return value.select(node.axis, rows[0][0])
        if value.shape[0] != len(rows):
            raise ValueError("the rows of the batch are not where they are expected")
        return torch.stack([item.select(node.axis - 1, row[0]) for item, row in zip(value, rows, strict=True)])

    def _pool_positions(self, value: torch.Tensor, node: Pooled) -> torch.Tensor:
        """Computes the mean, sum or maximum of each row over the positions that the formula names."""
        if node.positions.where is Where.RANGE:
            value = _cut_positions(value, node.axes[0], node.positions)
        if node.positions.where is not Where.NON_PAD:
            return _reduce_axes(node.function, value, node.axes)
        axis = node.axes[0] - 1
        kept = self._kept_rows(value, node)
        rows = (item.index_select(axis, torch.tensor(row)) for item, row in zip(value, kept, strict=True))
        return torch.stack([_reduce_axes(node.function, row, (axis,)) for row in rows])

    def _kept_rows(self, value: torch.Tensor, node: Pooled) -> list[list[int]]:
        """Lists the positions that are not padding: of texts by the probe, otherwise by the mask."""
        length = value.shape[node.axes[0]]
        mask = None if node.mask is None else self._replay.value(node.mask.tensor)
        if mask is not None and node.mask is not None and node.mask.mask is MaskKind.PADDING:
            mask = mask == 0
        if self._probe.rows:
            # The text says `non-pad`. A mask that keeps other positions would make that false.
            if mask is not None and not is_mask_of_rows(mask, self._probe):
                raise ValueError("the mask does not keep exactly the positions that are not padding")
            return kept_positions(node.positions, self._probe, length)
        if mask is None:
            raise ValueError("no mask says which positions are kept")
        flat = mask.reshape(mask.shape[0], length, -1)[..., 0]
        return [row.nonzero().flatten().tolist() for row in flat]


def equals_head(replay: Replay, logits: tuple[Expression, ...]) -> str:
    """Says why the formulas do not give the head's scores on the replay's hidden states; "" if they do."""
    evaluation = Evaluation(replay)
    try:
        with torch.no_grad(), OwnRandomness():
            values = list(map(evaluation.value, logits))
    except Exception as err:
        return f"it cannot be evaluated ({first_line(err)})"
    for value, expected in zip(values, replay.logits, strict=True):
        try:
            found = fitted(value, expected.shape)
        except ValueError as err:
            return str(err)
        # The largest rounding error to accept is in relation to the largest score.
        finite = expected.detach()[expected.isfinite()]
        error = _ABSOLUTE * max(float(finite.abs().max()), 1.0) if finite.numel() else _ABSOLUTE
        if not torch.allclose(found.float(), expected.detach().float(), rtol=_RELATIVE, atol=error):
            return "what it gives on random hidden states differs from the head"
    return ""


def _cut_positions(value: torch.Tensor, axis: int, positions: Positions) -> torch.Tensor:
    """Cuts out a run of positions along one axis."""
    return value.movedim(axis, 0)[positions.index : positions.stop].movedim(0, axis)


def _reduce_axes(function: str, value: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    if function == "mean":
        return value.mean(axes)
    return value.sum(axes) if function == "sum" else value.amax(axes)


def fitted(value: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Brings the value into the recorded layout: axes of size 1 come and go, all others stay in their order.

    Raises ValueError if more than that differs.
    """
    if value.shape == shape:
        return value
    if [size for size in value.shape if size != 1] != [size for size in shape if size != 1]:
        raise ValueError(f"it gives the shape {tuple(value.shape)} where the head has {tuple(shape)}")
    return value.reshape(shape)
