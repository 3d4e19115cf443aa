"""Positions that the values of the hidden states choose: no plain maximum or mean over all of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headscope.facts import PoolingKind
from tests.trace.heads import Head, Text, trace


def put(hidden: Tensor, at: Tensor) -> Tensor:
    changed = hidden.clone()
    changed[at] = -1e9
    return changed


CHOSEN: dict[str, Head] = {
    "filled": lambda s, h, m: s.fc(h.masked_fill(s.attention(h) > 0, -1e9).amax(1)),
    "filled where few numbers reach": lambda s, h, m: s.fc(h.masked_fill(s.attention(h) > 50, -1e9).amax(1)),
    "filled with the padding": lambda s, h, m: s.fc(
        h.masked_fill((m == 0).unsqueeze(-1) | (s.attention(h) > 0), -1e9).amax(1)
    ),
    "put": lambda s, h, m: s.fc(put(h, s.attention(h).squeeze(-1) > 0).amax(1)),
    "where": lambda s, h, m: s.fc(torch.where(s.attention(h) < 0, h, -1e9).amax(1)),
    "subtracted": lambda s, h, m: s.fc((h - 1e9 * (s.attention(h) > 0)).amax(1)),
    "multiplied": lambda s, h, m: s.fc((h * (s.attention(h) > 0).float()).amax(1)),
    "mean": lambda s, h, m: s.fc(h.masked_fill(s.attention(h) > 0, 0).mean(1)),
    "sum": lambda s, h, m: s.fc(h.masked_fill(s.attention(h) > 0, 0).sum(1) / 11),
    "deviation": lambda s, h, m: s.fc(h.masked_fill(s.attention(h) > 0, 0).std(1)),
}
PLAIN: dict[str, tuple[Head, PoolingKind]] = {
    "maximum": (lambda s, h, m: s.fc(h.amax(1)), PoolingKind.MAX),
    "maximum of positive entries": (lambda s, h, m: s.fc(torch.where(h > 0, h, 0.0).amax(1)), PoolingKind.MAX),
    "mean of positive entries": (lambda s, h, m: s.fc(h.masked_fill(h < 0, 0).mean(1)), PoolingKind.MEAN),
}


def drops_its_largest(head: Head) -> bool:
    """Whether the scores of a row don't depend on the position of its largest entry, by torch alone."""
    hidden = (100 * torch.randn(64, 11, 8, generator=torch.Generator().manual_seed(1))).requires_grad_()
    head(Text(head), hidden, torch.ones(64, 11, dtype=torch.long)).sum().backward()
    largest = hidden.detach().amax(-1).argmax(1)
    return bool((hidden.grad.abs().sum(-1)[torch.arange(64), largest] == 0).any())


@pytest.mark.parametrize("name", CHOSEN)
def test_positions_chosen_by_values_are_not_called_all_positions(name: str) -> None:
    assert drops_its_largest(CHOSEN[name])
    pooling = trace(Text(CHOSEN[name])).pooling
    assert pooling.kind is PoolingKind.OTHER
    assert "choose" in pooling.rule


def test_the_formula_shows_what_is_chosen() -> None:
    traced = trace(Text(CHOSEN["filled where few numbers reach"]))
    assert traced.formula == "logits = fc(max(masked_fill(h, gt(attention(h), 50), -1e+09)))"


@pytest.mark.parametrize("name", PLAIN)
def test_entries_changed_one_by_one_choose_no_positions(name: str) -> None:
    head, kind = PLAIN[name]
    assert not drops_its_largest(head)
    traced = trace(Text(head))
    assert (traced.pooling.kind, traced.not_determined) == (kind, ())


def test_a_maximum_of_weighed_positions_names_the_weights() -> None:
    traced = trace(Text(lambda s, h, m: s.fc((h * s.attention(h).sigmoid()).amax(1))))
    assert "weight" in traced.pooling.rule


def test_entries_multiplied_by_their_own_truth_choose_no_positions() -> None:
    """The same values as `where(h > 0, h, 0)`."""
    head: Head = lambda s, h, m: s.fc((h * (h > 0).to(h.dtype)).amax(1))  # noqa: E731
    assert not drops_its_largest(head)
    assert "choose" not in trace(Text(head)).pooling.rule


def test_values_that_choose_between_two_positions_make_no_plain_mean() -> None:
    """Each entry is its own or that of the position opposite, so the positions don't count alike."""
    pooling = trace(Text(lambda s, h, m: s.fc(torch.where(h > 0, h, h.flip(1)).mean(1)))).pooling
    assert pooling.kind is not PoolingKind.MEAN
