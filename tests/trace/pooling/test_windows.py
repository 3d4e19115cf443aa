"""Convolutions over the tokens, and what is read of their windows: a maximum is none of single positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headscope.facts import PoolingKind
from tests.trace.heads import H, Text, trace

FILTERS = 12


def largest(windows: Tensor) -> Tensor:
    return windows.amax(2)


def of_windows(
    reduce: Callable[[Tensor], Tensor], widths: tuple[int, ...] = (3,), *, padding: int = 0, flat: bool = True
) -> Text:
    """Convolutions of several widths over the tokens, without padding unless `padding` is given."""

    def head(s: Any, h: Tensor, m: Tensor) -> Tensor:
        found = (layer(h.transpose(1, 2)) if flat else layer(h.unsqueeze(1)).squeeze(3) for layer in s.convolutions)
        return s.fc(torch.cat([reduce(windows.relu()) for windows in found], -1))

    model = Text(head, FILTERS * len(widths))
    model.convolutions = nn.ModuleList(
        nn.Conv1d(H, FILTERS, width, padding=padding) if flat else nn.Conv2d(1, FILTERS, (width, H)) for width in widths
    )
    return model


LARGEST = "largest value of each feature over the positions, padding included, after conv{} over neighboring positions"
HEADS = [
    (of_windows(largest), "max", "1d"),
    (of_windows(largest, padding=1), "max", "1d"),
    (of_windows(largest, (2,)), "max", "1d"),
    (of_windows(largest, (2, 3, 4)), "max", "1d"),
    (of_windows(largest, (3,), flat=False), "max", "2d"),
    (of_windows(lambda windows: functional.max_pool1d(windows, windows.shape[-1]).squeeze(-1)), "max_pool1d", "1d"),
    (of_windows(lambda windows: functional.adaptive_max_pool1d(windows, 1).squeeze(-1)), "adaptive_max_pool1d", "1d"),
]


@pytest.mark.parametrize(("model", "collapse", "kind"), HEADS)
def test_the_operation_after_the_convolution_takes_the_tokens_away(model: Text, collapse: str, kind: str) -> None:
    pooling = trace(model).pooling
    assert pooling.kind is PoolingKind.OTHER
    assert pooling.rule == LARGEST.format(kind)
    assert [item.operation for item in pooling.evidence[:2]] == [f"conv{kind}", collapse]


def test_the_first_window_is_not_the_first_position() -> None:
    pooling = trace(of_windows(lambda windows: windows[:, :, 0])).pooling
    assert pooling.kind is PoolingKind.OTHER
    assert "(index 0)" in pooling.rule and "after conv1d" in pooling.rule


@pytest.mark.parametrize(
    ("reduce", "kind"),
    [(largest, PoolingKind.MAX), (lambda windows: windows[:, :, 0], PoolingKind.FIRST_TOKEN)],
)
def test_a_convolution_of_width_one_leaves_each_position_alone(
    reduce: Callable[[Tensor], Tensor], kind: PoolingKind
) -> None:
    traced = trace(of_windows(reduce, (1,)))
    assert traced.pooling.kind is kind
    assert traced.not_determined == ()
