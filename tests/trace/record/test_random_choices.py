"""Heads that choose by random values: nothing is claimed of what one call read."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from headscope.facts import PoolingKind
from tests.trace.heads import EXAMPLES, Encoder, Head, Text, trace


def scores_of_seeds(model: Text) -> list[Tensor]:
    """The scores of the same text after each of several seeds, by torch alone."""
    found = []
    for seed in range(6):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        with torch.no_grad():
            found.append(model(**EXAMPLES))
    return found


RANDOM: list[Head] = [
    lambda s, h, m: s.fc(h[:, torch.randint(0, h.shape[1], (1,)).item()]),
    lambda s, h, m: s.fc(h[:, torch.randperm(h.shape[1])][:, 0]),
    lambda s, h, m: s.fc(h[:, 0] if torch.rand(1).item() < 0.5 else h.mean(1)),
    lambda s, h, m: s.fc((h * torch.bernoulli(torch.full(h.shape[:2], 0.5)).unsqueeze(-1)).mean(1)),
    lambda s, h, m: s.fc((h * torch.empty(h.shape[:2]).uniform_().unsqueeze(-1)).mean(1)),
    lambda s, h, m: s.fc(h[:, random.randrange(h.shape[1])]),
    lambda s, h, m: s.fc(h[:, int(np.random.randint(h.shape[1]))]),
]
FIXED: list[Head] = [
    lambda s, h, m: s.fc(functional.dropout(h[:, 0], 0.5, training=s.training)),
    lambda s, h, m: s.fc(h[:, 0]) + 0 * len(torch.rand(3)),
]


@pytest.mark.parametrize("head", RANDOM)
def test_random_choices_leave_the_head_path_open(head: Head) -> None:
    model = Text(head).eval()
    one, *others = scores_of_seeds(model)
    assert not all(torch.equal(one, other) for other in others)
    traced = trace(model)
    assert traced.pooling.kind is PoolingKind.OTHER
    assert traced.formula == ""
    assert any(item.topic == "head path" and "random numbers" in item.reason for item in traced.not_determined)


@pytest.mark.parametrize("head", FIXED)
def test_random_numbers_that_reach_no_score_are_not_doubted(head: Head) -> None:
    model = Text(head).eval()
    one, *others = scores_of_seeds(model)
    assert all(torch.equal(one, other) for other in others)
    traced = trace(model)
    assert traced.pooling.kind is PoolingKind.FIRST_TOKEN
    assert traced.not_determined == ()


class Drawing(Encoder):
    """Draws as the encoders of audio do for the layers that they drop, in evaluation too."""

    def forward(self, ids: Tensor) -> Tensor:
        hidden = super().forward(ids)
        return hidden if torch.rand([]) >= 0 else ids


def test_random_numbers_of_the_base_model_are_its_own() -> None:
    model = Text(lambda s, h, m: s.fc(h[:, 0]))
    model.encoder = Drawing()
    assert trace(model).not_determined == ()
