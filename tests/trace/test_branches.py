"""Forwards that take another path where nothing is padded, or where there is one token: the branch is named."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headscope.facts import PoolingKind
from tests.trace.heads import Head, Text, trace


def first_where_full(model: Text, hidden: Tensor, mask: Tensor) -> Tensor:
    if mask.all():
        return model.fc(hidden.mean(1))
    return model.fc(hidden[:, 0])


def first_of_one(model: Text, hidden: Tensor, mask: Tensor) -> Tensor:
    if hidden.shape[1] == 1:
        return model.fc(model.dense(hidden[:, 0]))
    return model.fc(hidden.mean(1))


def always_first(model: Text, hidden: Tensor, mask: Tensor) -> Tensor:
    assert mask.any()
    return model.fc(hidden[:, 0])


FULL, ONE = "head path without padding", "head path of a single token"


def changes(head: Head, tokens: int, *, padded: bool) -> bool:
    """Whether the scores of such a batch follow a position after the first, or a layer that others don't, by torch."""
    model, hidden = Text(head), torch.randn(2, tokens, 8)
    mask = torch.ones(2, tokens, dtype=torch.long)
    if padded:
        mask[1, -1] = 0
    with torch.no_grad():
        return not torch.allclose(head(model, hidden, mask), model.fc(hidden[:, 0]), atol=1e-5)


@pytest.mark.parametrize(
    ("head", "kind", "where"),
    [
        (first_where_full, PoolingKind.FIRST_TOKEN, [FULL]),
        (first_of_one, PoolingKind.MEAN, [ONE]),
        (always_first, PoolingKind.FIRST_TOKEN, []),
    ],
)
def test_the_path_of_padded_rows_is_shown_and_the_other_is_named(
    head: Head, kind: PoolingKind, where: list[str]
) -> None:
    traced = trace(Text(head))
    assert traced.pooling.kind is kind
    assert [item.what for item in traced.not_determined] == where
    assert all("test_branches.py:" in item.reason for item in traced.not_determined)


def test_torch_takes_the_branches_too() -> None:
    assert changes(first_where_full, 6, padded=False)
    assert not changes(first_where_full, 6, padded=True)
    assert changes(first_of_one, 1, padded=False)
    assert not changes(always_first, 6, padded=False)
