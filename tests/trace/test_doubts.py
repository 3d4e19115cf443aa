"""Heads of which nothing is claimed, because the recording cannot tell what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headscope.facts import HeadTrace, PoolingKind
from tests.trace.heads import LABELS, Encoder, H, Text, Towers, trace

IDS = torch.arange(3, 15).reshape(2, 6)


def assert_open(traced: HeadTrace, reason: str) -> None:
    assert traced.formula == ""
    assert traced.pooling.kind is PoolingKind.OTHER
    assert traced.pooling.tokens == ()
    assert [item.what for item in traced.not_determined] == ["head path"]
    assert reason in traced.not_determined[0].reason


@pytest.mark.parametrize(
    "head",
    [
        lambda s, h, m: s.fc(torch.stack([h[i][m[i].bool()].mean(0) for i in range(len(h))])),
        lambda s, h, m: s.fc(torch.stack([row[kept.bool()].mean(0) for row, kept in zip(h, m, strict=True)])),
        lambda s, h, m: s.fc(torch.stack([row[0] for row in h.unbind()])),
        lambda s, h, m: s.fc(h[0, 0]).expand(len(h), -1),
    ],
)
def test_rows_that_are_read_one_by_one(head: Any) -> None:
    assert_open(trace(Text(head)), "takes single rows out of the batch")


class TwoEncoders(nn.Module):
    def __init__(self, head: Callable[[TwoEncoders, Tensor, Tensor], Tensor], width: int = H) -> None:
        super().__init__()
        self.encoder, self.second, self.fc = Encoder(), Encoder(), nn.Linear(width, LABELS)
        self.head = head

    def forward(self, ids: Tensor, other: Tensor) -> Tensor:
        return self.head(self, self.encoder(ids), self.second(other))


def test_two_encoders_without_a_declared_base() -> None:
    both = TwoEncoders(lambda s, a, b: s.fc(torch.cat([a[:, 0], b.mean(1)], -1)), 2 * H)
    assert_open(trace(both, {"ids": IDS, "other": IDS}), "the hidden states of second as well as on those of encoder")
    one = TwoEncoders(lambda s, a, b: s.fc(a[:, 0]))
    assert trace(one, {"ids": IDS, "other": IDS}).formula == "logits = fc(h[0])"
    same = Towers(lambda s, a, b: s.fc(a[:, 0] - b[:, 0]))
    assert trace(same, {"ids": IDS, "other": IDS}).not_determined == ()


class LargeHead(nn.Module):
    """A classifier of each token that is larger than the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.classifier = nn.Sequential(nn.Linear(H, 160), nn.ReLU(), nn.Linear(160, LABELS))

    def forward(self, ids: Tensor) -> Tensor:
        return self.classifier(self.encoder(ids)).mean(1)


def test_a_head_that_is_larger_than_its_encoder() -> None:
    assert_open(trace(LargeHead(), {"ids": IDS}), "classifier reads what encoder makes, and no weights come after it")


def without_first(mask: Tensor) -> Tensor:
    """The mask without the first position of each row."""
    kept = mask.clone()
    kept[:, 0] = 0
    return kept.unsqueeze(-1)


@pytest.mark.parametrize(
    "head",
    [
        lambda s, h, m: s.fc(h.masked_fill(without_first(m) == 0, -1e9).amax(1)),
        lambda s, h, m: s.fc((h * without_first(m)).sum(1) / without_first(m).sum(1)),
        lambda s, h, m: s.fc((h * (m * 0 + torch.arange(11) > 3).unsqueeze(-1)).sum(1)),
        lambda s, h, m: s.fc(h.flatten(0, 1).mean(0, keepdim=True)).expand(len(h), -1),
        lambda s, h, m: s.fc(h[:, ::2].sum(1) / 6),
    ],
)
def test_other_positions_are_not_those_that_the_mask_keeps(head: Any) -> None:
    pooling = trace(Text(head)).pooling
    assert pooling.kind not in {PoolingKind.MASKED_MEAN, PoolingKind.MEAN, PoolingKind.MAX}
    assert "mask keeps" not in pooling.rule
    assert "all positions" not in pooling.rule
