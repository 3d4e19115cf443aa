"""Parts of a pooling that are only nearly what they look like, beside one that is right: each is proven by itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headscope.facts import PoolingKind
from tests.trace.heads import H, Head, Text, column, masked_mean, trace


def masked(h: Tensor, m: Tensor) -> Tensor:
    return h * column(m)


RIGHT: dict[str, tuple[Head, str]] = {
    "mean": (lambda s, h, m: h.mean(1), "mean over all positions, padding included"),
    "sum by their number": (lambda s, h, m: h.sum(1) / h.shape[1], "mean over all positions, padding included"),
    "masked mean": (lambda s, h, m: masked_mean(h, m.float()), "mean over the positions that the mask"),
    "masked mean of dense": (
        lambda s, h, m: (s.dense(h) * column(m)).sum(1) / column(m).float().sum(1).clamp(min=1e-9),
        "mean over the positions",
    ),
    "max": (lambda s, h, m: h.amax(1), "largest value of each feature over the positions, padding included"),
    "filled max": (
        lambda s, h, m: h.masked_fill(column(m) == 0, -1e9).amax(1),
        "over the positions that the mask keeps",
    ),
    "added max": (lambda s, h, m: (h + (1 - column(m)) * -1e4).amax(1), "over the positions that the mask keeps"),
    "subtracted max": (lambda s, h, m: (h - (1 - column(m)) * 1e9).amax(1), "over the positions that the mask keeps"),
    "max with log of mask": (lambda s, h, m: (h + column(m).log()).amax(1), "over the positions that the mask keeps"),
}
WRONG: dict[str, Head] = {
    "root of their number": lambda s, h, m: masked(h, m).sum(1) / column(m).sum(1).sqrt(),
    "one more": lambda s, h, m: masked(h, m).sum(1) / (column(m).sum(1) + 1),
    "the number of rows": lambda s, h, m: masked(h, m).sum(1) / torch.tensor(float(len(h))),
    "a parameter": lambda s, h, m: h.sum(1) / s.scale,
    "its norm": lambda s, h, m: masked(h, m).sum(1) / masked(h, m).sum(1).norm(),
    "dense after the mask": lambda s, h, m: s.dense(masked(h, m)).sum(1) / column(m).sum(1),
    "zeros compete": lambda s, h, m: masked(h, m).amax(1),
    "zeros filled in": lambda s, h, m: h.masked_fill(column(m) == 0, 0).amax(1),
    "minus one filled in": lambda s, h, m: h.masked_fill(column(m) == 0, -1).amax(1),
}


def beside_the_first(part: Head) -> Text:
    return Text(lambda s, h, m: s.fc(torch.cat([h[:, 0], part(s, h, m)], -1)), 2 * H)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_part_stands(name: str) -> None:
    part, rule = RIGHT[name]
    traced = trace(beside_the_first(part))
    assert traced.pooling.kind is PoolingKind.CONCAT
    assert rule in traced.pooling.rule
    assert traced.not_determined == ()


@pytest.mark.parametrize("name", WRONG)
def test_a_part_that_is_nearly_one_is_not_claimed(name: str) -> None:
    traced = trace(beside_the_first(WRONG[name]))
    assert "mean over" not in traced.pooling.rule
    assert "largest value" not in traced.pooling.rule
    assert [item.topic for item in traced.not_determined] == ["pooling"]


MIXERS: dict[str, Head] = {
    "gru": lambda s, h, m: s.fc(s.gru(h)[0][:, 0]),
    "attention": lambda s, h, m: s.fc(s.heads(h, h, h, need_weights=False)[0][:, 0]),
    "softmax over rows": lambda s, h, m: s.fc((h * s.attention(h).softmax(0)).sum(1)),
    "less the mean of the batch": lambda s, h, m: s.fc(h[:, 0] - h.mean((0, 1))),
}


@pytest.mark.parametrize("name", MIXERS)
def test_rows_that_are_mixed_are_no_positions(name: str) -> None:
    """Without `batch_first` a module takes the rows of the batch for the positions of a text."""
    model = Text(MIXERS[name])
    model.gru, model.heads = nn.GRU(H, H), nn.MultiheadAttention(H, 2)
    traced = trace(model)
    reasons = " ".join(item.reason for item in traced.not_determined)
    assert "other rows" in reasons
    assert traced.pooling.rule == "not determined"


def test_a_mask_that_was_divided_weighs() -> None:
    traced = trace(Text(lambda s, h, m: s.fc((h * column(m / m.sum(1, keepdim=True))).sum(1))))
    assert traced.pooling.rule == "weighted sum of the positions, padding left out"


SCRAMBLED: dict[str, Head] = {
    "features for positions": lambda s, h, m: s.fc(h.reshape(len(h), H, -1).mean(-1)),
    "their maximum": lambda s, h, m: s.fc(h.reshape(len(h), H, -1).amax(-1)),
    "the first of them": lambda s, h, m: s.fc(h.reshape(len(h), H, -1)[:, :, 0]),
    "positions for rows": lambda s, h, m: s.fc(h.reshape(h.shape[1], len(h), H)[0]),
}


@pytest.mark.parametrize("name", SCRAMBLED)
def test_no_formula_hides_a_reshape_that_cuts_vectors_apart(name: str) -> None:
    traced = trace(Text(SCRAMBLED[name]))
    assert traced.formula == ""
    assert traced.not_determined or traced.pooling.kind is PoolingKind.OTHER


def test_reshapes_that_only_merge_or_split_axes_stay_silent() -> None:
    traced = trace(Text(lambda s, h, m: s.fc(h.reshape(-1, H).view(len(h), -1, 2, H // 2).flatten(2)[:, 0])))
    assert traced.formula == "logits = fc(h[0])"
