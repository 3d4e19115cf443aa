"""Forwards that take another path where nothing is padded, or where there is one token: the branch is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import LlamaForSequenceClassification

import headscope
from headscope.facts import PoolingKind
from tests.families import FAMILIES
from tests.trace.heads import Head, Text, trace


def first_where_full(model: Text, hidden: Tensor, mask: Tensor) -> Tensor:
    if mask.all():
        return model.fc(hidden.mean(1))
    return model.fc(hidden[:, 0])


def first_of_one(model: Text, hidden: Tensor, mask: Tensor) -> Tensor:
    if hidden.shape[1] == 1:
        return model.fc(model.dense(hidden[:, 0]))
    return model.fc(hidden.mean(1))


def first_or_last_on_one_line(model: Text, hidden: Tensor, mask: Tensor) -> Tensor:
    return model.fc(hidden[:, 0 if (mask == 0).any() else -1])


def over_a_count(model: Text, hidden: Tensor, mask: Tensor) -> Tensor:
    return model.fc(hidden[:, 0]) / int(mask.sum())


def always_first(model: Text, hidden: Tensor, mask: Tensor) -> Tensor:
    assert mask.any()
    return model.fc(hidden[:, 0])


FULL, ONE, OTHER = "head path without padding", "head path of a single token", "head path on other inputs"


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
        (first_where_full, PoolingKind.OTHER, [FULL, OTHER]),  # the example inputs have no padding
        (first_of_one, PoolingKind.MEAN, [ONE]),
        (first_or_last_on_one_line, PoolingKind.OTHER, [FULL, OTHER]),
        (over_a_count, PoolingKind.FIRST_TOKEN, []),
        (always_first, PoolingKind.FIRST_TOKEN, []),
    ],
)
def test_the_path_of_padded_rows_is_shown_and_the_other_is_named(
    head: Head, kind: PoolingKind, where: list[str]
) -> None:
    traced = trace(Text(head))
    assert traced.pooling.kind is kind
    assert [item.topic for item in traced.not_determined] == where
    assert all("test_branches.py:" in item.reason for item in traced.not_determined if "runs other" in item.reason)


class MeanWhereFull(LlamaForSequenceClassification):
    """Without a pad token it refuses a batch of several texts, and takes their mean where none is padded."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        if self.config.pad_token_id is None and len(input_ids) > 1:
            raise ValueError("no padding token")
        hidden = self.model(input_ids, attention_mask=attention_mask).last_hidden_state
        return {"logits": self.score(hidden.mean(1) if attention_mask.all() else hidden[:, 0])}


@pytest.mark.parametrize("pad", [None, 0])
def test_a_model_without_a_pad_token_is_compared_too(pad: int | None) -> None:
    report = headscope.inspect(MeanWhereFull(FAMILIES["llama"].build_config(num_labels=3, pad_token_id=pad)))
    assert FULL in [item.topic for item in report.not_determined]


COUNTED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "add": lambda scores, count: scores + count,
    "sub": lambda scores, count: scores - count,
    "mul": lambda scores, count: scores * count,
    "div": lambda scores, count: scores / count,
    "pow": lambda scores, count: scores**count,
    "floor_divide": lambda scores, count: scores // count,
    "remainder": lambda scores, count: scores % count,
    "full": lambda scores, count: scores * torch.full((len(scores), 1), count),
    "clamp": lambda scores, count: scores.clamp(max=count),
}


@pytest.mark.parametrize("name", COUNTED)
def test_arithmetic_with_the_number_of_tokens_is_no_other_path(name: str) -> None:
    traced = trace(Text(lambda s, h, m: COUNTED[name](s.fc(h[:, 0]), int(m.sum()))))
    assert [item.topic for item in traced.not_determined if item.topic in (FULL, ONE)] == []


def test_a_position_that_is_counted_is_another_path() -> None:
    traced = trace(Text(lambda s, h, m: s.fc(h[:, int(m[0].sum()) - int(m.sum()) // len(m)])))
    assert FULL in [item.topic for item in traced.not_determined]


def test_a_forward_that_fails_without_padding_is_named() -> None:
    def fails_where_full(model: Text, hidden: Tensor, mask: Tensor) -> Tensor:
        if mask.all():
            raise ValueError("a batch without padding")
        return model.fc(hidden[:, 0])

    (gap,) = trace(Text(fails_where_full)).not_determined
    assert gap.topic == FULL
    assert "a batch without padding" in gap.reason


def test_torch_takes_the_branches_too() -> None:
    assert changes(first_where_full, 6, padded=False)
    assert not changes(first_where_full, 6, padded=True)
    assert changes(first_or_last_on_one_line, 6, padded=False)
    assert not changes(first_or_last_on_one_line, 6, padded=True)
    assert changes(first_of_one, 1, padded=False)
    assert not changes(always_first, 6, padded=False)
