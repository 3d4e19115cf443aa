"""Runs of a head on hidden states that were changed on purpose: equal everywhere, or far larger in the padding.

Gradients say which positions move a tensor; they don't say that these count alike, nor which ones a maximum could read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from headscope.core.facts import PoolingKind
from headscope.core.trace.batch.probe_batch import ProbeBatch
from headscope.core.trace.replay.replay import Replay, replay_head
from headscope.core.trace.slice.axes import TokenAxes
from headscope.core.trace.slice.head_slice import HeadSlice

PositionNumbers = tuple[int, ...]
EVEN = {PoolingKind.MEAN, PoolingKind.MASKED_MEAN, PoolingKind.SPATIAL_MEAN, PoolingKind.MAX}
"""Kinds that make the same vector of equal vectors."""
_LOUD, _LESS_LOUD = 100.0, 10.0
"""How much larger padding is made: enough to win any maximum that it takes part in, and less where that overflows."""

_OTHER = 30.0
"""How much larger the numbers at one position are made, with the other sign."""


@dataclass(frozen=True)
class ChangedInputs:
    """Runs of one head on changed hidden states, each made when it is first used. `usual` is the plain run."""

    axes: TokenAxes
    usual: Replay

    @property
    def head(self) -> HeadSlice:
        """Head that runs."""
        return self.usual.head

    @property
    def probe(self) -> ProbeBatch:
        """Inputs on which the head was recorded."""
        return self.usual.head.execution.probe

    @cached_property
    def constant(self) -> Replay:
        """Run in which every position of every row holds the same random vector."""
        return replay_head(self.head, constant_hidden(self.head, self.axes))

    @cached_property
    def loud(self) -> tuple[Replay, ...]:
        """Two runs in which the padding holds far larger numbers, of either sign: a gate may close for one of them."""
        return self._with_padding_times(_LOUD), self._with_padding_times(-_LOUD)

    def loud_for(self, tensor: torch.Tensor) -> tuple[Replay, ...]:
        """Returns the runs with loud padding in which `tensor` is finite; empty if there are none."""
        if _are_finite(self.loud, tensor):
            return self.loud
        # An exponential of the larger numbers overflows.
        runs = self._with_padding_times(_LESS_LOUD), self._with_padding_times(-_LESS_LOUD)
        return runs if _are_finite(runs, tensor) else ()

    def depends_on(self, tensors: tuple[torch.Tensor, ...], at: int, axis: int) -> tuple[bool, ...]:
        """Returns for each row whether recorded tensors change if the numbers at one position of every row change.

        The numbers are changed in their sign and their size, which shows through a rounding and a comparison too.
        """
        given = {}
        for tensor, value in zip(self.head.hidden, self.usual.hidden, strict=True):
            changed = value.detach().clone()
            if changed.shape[: axis + 1] == self.usual.hidden[0].shape[: axis + 1]:
                changed.select(axis, at).mul_(-_OTHER)
            given[id(tensor)] = changed
        other = replay_head(self.head, given)
        rows = zip(*(self._changed_rows(tensor, other) for tensor in tensors), strict=True)
        return tuple(any(row) for row in rows)

    def _changed_rows(self, tensor: torch.Tensor, other: Replay) -> list[bool]:
        pair = (run.differentiable(tensor).detach() for run in (self.usual, other))
        return [not _are_close(one, two) for one, two in zip(*pair, strict=True)]

    def _with_padding_times(self, factor: float) -> Replay:
        """Runs the head with the numbers in the padding of each row multiplied by `factor`."""
        given = {}
        for tensor, value in zip(self.head.hidden, self.usual.hidden, strict=True):
            changed = value.detach().clone()
            for at, row in enumerate(self.probe.rows):
                if changed.shape[1:2] == (self.probe.length,) and at < len(changed):
                    changed[at, : row.first] *= factor
                    changed[at, row.last + 1 :] *= factor
            given[id(tensor)] = changed
        return replay_head(self.head, given)


def constant_hidden(head: HeadSlice, axes: TokenAxes) -> dict[int, torch.Tensor]:
    """Draws one random vector for each of the hidden states, the same in every row and at every position."""
    generator = torch.Generator().manual_seed(5)
    given = {}
    for tensor in head.hidden:
        counted = axes.of(tensor)
        # The same vector in every row too: then the scores of all rows must be equal, whatever their padding.
        narrow = [1 if at == 0 or at in counted else size for at, size in enumerate(tensor.shape)]
        given[id(tensor)] = torch.randn(narrow, generator=generator).expand(tensor.shape).clone()
    return given


def keeps_equal_vectors(
    before: torch.Tensor, after: torch.Tensor, where: tuple[int, ...], claimed: tuple[PositionNumbers, ...]
) -> bool:
    """True if each row of `after` is the vector that all claimed positions of `before` hold, as in a mean or a maximum.

    `where` are the token axes of `before`. True as well if that is unknown: the positions hold different vectors,
    or the shapes don't let them be matched.
    """
    if not where or 0 in where or len(before) != len(claimed) or len(after) != len(claimed):
        return True
    flat = before.movedim(where, tuple(range(1, len(where) + 1))).flatten(1, len(where))
    for row, result, positions in zip(flat, after, claimed, strict=True):
        if len(row) > max(positions, default=-1) and len(row) != len(positions):
            row = row[list(positions)]  # noqa: PLW2901 - the same row, without the others
        elif len(row) != len(positions) and len(where) == 1:
            continue
        if not len(row) or row[0].numel() != result.numel() or not _are_close(row, row[:1].expand_as(row)):
            continue
        if not _are_close(result.flatten(), row[0].flatten()):
            return False
    return True


def _are_finite(runs: tuple[Replay, ...], tensor: torch.Tensor) -> bool:
    return all(bool(run.differentiable(tensor).isfinite().all()) for run in runs)


def _are_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4)
