"""Classifiers that were trained for some steps, and the verdicts on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from headscope.facts import HealthVerdict

WIDTH = 128


FRESH, BRIEFLY, TRAINED = HealthVerdict.FRESH, HealthVerdict.BRIEFLY_TRAINED, HealthVerdict.TRAINED
COLLAPSED, OPEN = HealthVerdict.COLLAPSED, HealthVerdict.NOT_DETERMINED


def train(head: nn.Linear, steps: int, rate: float) -> None:
    """The classifier alone, on clusters of features."""
    centers = torch.randn(head.out_features, head.in_features)
    optimizer = torch.optim.AdamW(head.parameters(), rate)
    for _ in range(steps):
        labels = torch.randint(head.out_features, (32,))
        optimizer.zero_grad()
        features = centers[labels] + torch.randn(32, head.in_features)
        loss: Any = nn.functional.cross_entropy(head(features), labels)
        loss.backward()
        optimizer.step()
