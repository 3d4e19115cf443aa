"""Means and maxima of transformed values that are transformed back: a root of a mean of powers, a negated maximum."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from headscope.facts import PoolingKind
from tests.trace.heads import H, Head, Text, column, masked_mean, trace


def cube_root(value: torch.Tensor) -> torch.Tensor:
    return value.sign() * value.abs().pow(1 / 3)


POWER = 3.0
BACK: dict[str, tuple[Head, str]] = {
    "generalized mean": (lambda s, h, m: h.clamp(min=1e-6).pow(POWER).mean(1).pow(1 / POWER), "pow"),
    "of dense": (lambda s, h, m: s.dense(h).clamp(min=1e-6).pow(POWER).mean(1).pow(1 / POWER), "pow"),
    "learned power": (lambda s, h, m: h.clamp(min=1e-6).pow(s.scale).mean(1).pow(1 / s.scale), "pow"),
    "masked": (lambda s, h, m: masked_mean(h.clamp(min=1e-6).pow(POWER), m.float()).pow(1 / POWER), "pow"),
    "root mean square": (lambda s, h, m: h.square().mean(1).sqrt(), "sqrt"),
    "log of mean exp": (lambda s, h, m: h.exp().mean(1).log(), "log"),
    "harmonic": (lambda s, h, m: 1 / (1 / h).mean(1), "div"),
}
SMALLEST: dict[str, Head] = {
    "max": lambda s, h, m: -(-h).max(1).values,
    "amax": lambda s, h, m: -((-h).amax(1)),
    "by subtraction": lambda s, h, m: (0 - h).amax(1) * -1,
    "of dense": lambda s, h, m: -(-s.dense(h)).amax(1),
}
STILL: dict[str, tuple[Head, PoolingKind]] = {
    "scaled mean": (lambda s, h, m: (h * POWER).mean(1) / POWER, PoolingKind.MEAN),
    "negated mean": (lambda s, h, m: -(-h).mean(1), PoolingKind.MEAN),
    "mean of an activation": (lambda s, h, m: nn.functional.gelu(h).mean(1), PoolingKind.MEAN),
    "activation of a mean": (lambda s, h, m: s.dense(h).mean(1).tanh(), PoolingKind.MEAN),
    "scaled maximum": (lambda s, h, m: (h * POWER).amax(1) / POWER, PoolingKind.MAX),
    "maximum of a growing function": (lambda s, h, m: cube_root(h.pow(3).amax(1)), PoolingKind.MAX),
    "masked mean": (lambda s, h, m: masked_mean(h * 2, m) / 2, PoolingKind.MASKED_MEAN),
}


def scored(pool: Head) -> Text:
    """A pooled vector, and the scores that a layer makes of it."""
    return Text(lambda s, h, m: s.fc(pool(s, h, m)))


@pytest.mark.parametrize("name", BACK)
def test_a_mean_of_transformed_values_is_not_called_one(name: str) -> None:
    pool, by = BACK[name]
    traced = trace(scored(pool))
    assert traced.pooling.kind is PoolingKind.OTHER
    assert traced.pooling.rule.endswith(f" transformed back by {by}")
    assert traced.verification.agrees is None
    assert traced.not_determined == ()


@pytest.mark.parametrize("name", SMALLEST)
def test_a_negated_maximum_is_the_smallest_value(name: str) -> None:
    traced = trace(scored(SMALLEST[name]))
    assert traced.pooling.kind is PoolingKind.OTHER
    assert re.match("smallest .* padding included$", traced.pooling.rule)
    assert traced.not_determined == ()


def test_the_smallest_value_of_the_positions_that_are_not_padding() -> None:
    traced = trace(scored(lambda s, h, m: -(-h).masked_fill(column(m) == 0, -1e9).amax(1)))
    assert re.match("smallest .* the mask keeps$", traced.pooling.rule)


def test_a_part_beside_another_is_renamed_alone() -> None:
    traced = trace(Text(lambda s, h, m: s.fc(torch.cat([h[:, 0], SMALLEST["max"](s, h, m)], -1)), 2 * H))
    assert traced.pooling.kind is PoolingKind.CONCAT
    assert [part.kind for part in traced.pooling.parts] == [PoolingKind.FIRST_TOKEN, PoolingKind.OTHER]
    assert re.search("; smallest [^;]* padding included$", traced.pooling.rule)
    assert "largest" not in traced.pooling.rule


@pytest.mark.parametrize("name", STILL)
def test_what_is_still_a_mean_or_a_maximum_stays_one(name: str) -> None:
    pool, kind = STILL[name]
    traced = trace(scored(pool))
    assert traced.pooling.kind is kind
    assert "transformed" not in traced.pooling.rule
    assert traced.not_determined == ()
