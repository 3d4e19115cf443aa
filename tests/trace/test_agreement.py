"""What one run cannot tell: numbers that equal its sizes, positions that follow the length, values of a caller."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headscope.facts import HeadTrace, PoolingKind, Positions, Where
from headscope.trace.execution import run_forward
from tests.trace.heads import ALL, FIRST, H, Text, trace

K = PoolingKind


def at(index: int) -> Positions:
    return Positions(Where.INDEX, index)


COINCIDENCES = [
    (lambda s, h, m: s.fc(h[:, 0] * 5), K.FIRST_TOKEN, FIRST, "fc(h[0] * 5)"),
    (lambda s, h, m: s.fc(h[:, 0] / 11), K.FIRST_TOKEN, FIRST, "fc(h[0] / 11)"),
    (lambda s, h, m: s.fc(h[:, 0].clamp(-5, 5)), K.FIRST_TOKEN, FIRST, "fc(clamp(h[0], -5, 5))"),
    (lambda s, h, m: s.fc(h.sum(1) / 11), K.OTHER, ALL, "fc(sum(h) / 11)"),
    (lambda s, h, m: s.fc(h.sum(1) / h.shape[1]), K.MEAN, ALL, "fc(mean(h))"),
    (lambda s, h, m: s.fc(h[:, 10]), K.TOKEN_AT, at(10), "fc(h[10])"),
    (lambda s, h, m: s.fc(h[:, :20].mean(1)), K.MEAN, Positions(Where.RANGE, 0, 20), "fc(mean(h[:20]))"),
]


@pytest.mark.parametrize(("head", "kind", "positions", "formula"), COINCIDENCES, ids=[row[3] for row in COINCIDENCES])
def test_a_number_of_the_head_is_no_size_of_a_run(
    head: Any, kind: PoolingKind, positions: Positions, formula: str
) -> None:
    traced = trace(Text(head))
    assert traced.pooling.kind is kind
    assert [part.positions for part in traced.pooling.parts] == [positions]
    assert traced.formula == f"logits = {formula}"
    assert traced.not_determined == ()


BY_LENGTH = [
    lambda s, h, m: s.fc(h[:, h.shape[1] // 2]),
    lambda s, h, m: s.fc(h[:, : h.shape[1] // 2].mean(1)),
    lambda s, h, m: s.fc(h[:, h.shape[1] - 2]),
    lambda s, h, m: s.fc(h[:, int(m[0].sum()) - 1]),
    lambda s, h, m: s.fc(h.sum(1) / math.sqrt(h.shape[1])),
]


@pytest.mark.parametrize("head", BY_LENGTH)
def test_what_depends_on_the_length_is_not_determined(head: Any) -> None:
    traced = trace(Text(head))
    assert traced.formula == ""
    assert [gap.what for gap in traced.not_determined] == ["pooling"]
    assert traced.pooling.parts == ()


def test_a_head_that_changes_its_operations_with_the_length_is_not_determined() -> None:
    traced = trace(Text(lambda s, h, m: s.fc(h[:, 0]) if h.shape[1] > 20 else s.fc(h.mean(1))))
    assert "head path" in [gap.what for gap in traced.not_determined]


def test_a_branch_on_values_is_noticed_in_a_model_with_real_weights() -> None:
    traced = trace(Text(lambda s, h, m: s.fc(h[:, 0]) if h.mean() > -100 else s.fc(h.mean(1))))
    assert "branches on a floating-point value" in traced.not_determined[0].reason


def test_the_largest_number_of_kept_tokens_is_not_the_length() -> None:
    traced = trace(Text(lambda s, h, m: s.fc(h.sum(1) / m.sum(1).max())))
    assert traced.formula != "logits = fc(mean(h))"
    assert traced.pooling.parts == ()


class OfTokens(Text):
    """A head that looks at the token ids, which the caller gave."""

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self, self.encoder(ids), ids)


@pytest.mark.parametrize(
    "head",
    [
        lambda s, h, i: s.fc(h[torch.arange(len(h)), (i != 0).sum(1) - 1]),
        lambda s, h, i: s.fc(h[torch.arange(len(h)), (i == 2).int().argmax(1)]),
    ],
)
def test_positions_found_by_the_callers_own_tokens_have_no_name(head: Any) -> None:
    pooling = trace(OfTokens(head)).pooling
    assert (pooling.kind, [part.positions.where for part in pooling.parts]) == (K.OTHER, [Where.BY_ROW])


def test_a_mean_over_the_callers_own_tokens_is_no_mean_over_all() -> None:
    def head(s: Text, h: Tensor, i: Tensor) -> Tensor:
        kept = i != 0
        return s.fc((h * kept.unsqueeze(-1)).sum(1) / kept.sum(1, keepdim=True))

    assert trace(OfTokens(head)).pooling.kind is K.OTHER


PARTS = [
    lambda s, h, m: s.fc(torch.cat([h.flip(1)[:, 0], h.amax(1)], -1)),
    lambda s, h, m: s.fc(torch.cat([h.roll(1, 1)[:, 0], h.amax(1)], -1)),
]


@pytest.mark.parametrize("head", PARTS)
def test_each_part_is_held_against_its_own_gradients(head: Any) -> None:
    traced = trace(Text(head, 2 * H))
    assert traced.verification is not None
    assert traced.verification.agrees is False
    assert traced.pooling.parts == ()


def test_a_part_without_a_gradient_leaves_the_others_as_they_are() -> None:
    traced = trace(Text(lambda s, h, m: s.fc(torch.cat([h[:, 0], (h > 0).float().mean(1)], -1)), 2 * H))
    assert traced.verification is not None
    assert (traced.verification.agrees, traced.pooling.kind) == (None, K.CONCAT)
    assert "no gradient" in traced.verification.told


def test_a_maximum_over_sums_is_no_maximum_over_positions() -> None:
    traced: HeadTrace = trace(Text(lambda s, h, m: s.fc(h.cumsum(1).amax(1))))
    assert traced.pooling.parts == ()


def test_a_padded_mean_is_no_mean_over_all_positions() -> None:
    traced = trace(Text(lambda s, h, m: s.fc(nn.functional.pad(h, (0, 0, 0, 3)).mean(1))))
    assert traced.pooling.kind is K.OTHER


def test_labels_are_no_sizes() -> None:
    """From 23 labels on, the numbers of the labels once left no size for the probe."""
    from transformers import BertConfig, BertForSequenceClassification

    from headscope.facts import Task
    from headscope.trace import trace_head

    config = BertConfig(
        vocab_size=90, hidden_size=55, num_hidden_layers=1, num_attention_heads=5, intermediate_size=20, num_labels=100
    )
    with torch.device("meta"):
        model = BertForSequenceClassification(config)
    assert trace_head(model, Task.SEQUENCE_CLASSIFICATION).hidden_shape == ("batch", "sequence", 55)


def test_a_twin_of_one_layer_confirms_a_deep_model_without_a_third_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    from headscope.facts import Task
    from headscope.model.reduced_config import shallow_twin
    from headscope.trace import head, trace_head

    depths: list[int] = []

    def run(model: Any, *arguments: Any, **options: Any) -> Any:
        depths.append(len(model.bert.encoder.layer))
        return run_forward(model, *arguments, **options)

    monkeypatch.setattr(head, "run_forward", run)
    config = BertConfig(
        vocab_size=90, hidden_size=32, num_hidden_layers=12, num_attention_heads=4, intermediate_size=20
    )
    with torch.device("meta"):
        model = BertForSequenceClassification(config)
    traced = trace_head(model, Task.SEQUENCE_CLASSIFICATION, twin=lambda: shallow_twin(model))
    assert depths == [12, 1]
    assert (traced.pooling.kind, traced.not_determined) == (K.FIRST_TOKEN, ())
