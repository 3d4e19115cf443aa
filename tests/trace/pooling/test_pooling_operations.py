"""Poolings from tiny modules: which kind an operation makes of the tokens, windows, and masks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from headscope.facts import PoolingKind
from tests.trace.heads import EXAMPLES, Encoder, H, Head, Made, Text, column, image, pixels
from tests.trace.pooling.readings import BY_OPERATIONS, K, across, seen

WINDOWS: tuple[Head, ...] = (
    lambda s, h, m: s.fc(functional.conv1d(across(h), s.conv.weight).mean(2)),
    lambda s, h, m: s.fc(h.unfold(1, 3, 1).mean(-1).mean(1)),
    lambda s, h, m: s.fc(functional.max_pool1d(across(h), 3, 1).mean(2)),
    lambda s, h, m: s.fc(functional.avg_pool1d(across(h), 3, 1).mean(2)),
    lambda s, h, m: s.fc(functional.interpolate(across(h), 4).mean(2)),
    lambda s, h, m: s.fc(functional.interpolate(across(h), 2).tanh().mean(2)),
)
MAP_WINDOWS: tuple[Any, ...] = (
    lambda s, h: s.fc(functional.conv2d(h, torch.ones(H, H, 2, 2)).mean((2, 3))),
    lambda s, h: s.fc(functional.max_pool2d(h, 2, 1).mean((2, 3))),
    lambda s, h: s.fc(functional.avg_pool2d(h, 2, 1).mean((2, 3))),
)


@pytest.mark.parametrize(
    ("module", "examples"),
    [
        *((Text(head), EXAMPLES) for head in WINDOWS),
        *((image(head, as_tokens=False), pixels(4, 4)) for head in MAP_WINDOWS),
    ],
)
def test_windows_over_the_tokens_leave_a_token_axis_of_another_size(module: nn.Module, examples: Any) -> None:
    """The tokens disappear in the mean after them."""
    pooling = seen(module, examples)
    assert [evidence.operation for evidence in pooling.evidence] == ["mean"]
    assert pooling.kind in {K.MEAN, K.SPATIAL_MEAN}


WHOLE: tuple[tuple[Any, PoolingKind, str], ...] = (
    (lambda s, h, m: s.fc(functional.adaptive_avg_pool1d(across(h), 1).squeeze(2)), K.MEAN, "adaptive_avg_pool1d"),
    (lambda s, h, m: s.fc(functional.avg_pool1d(across(h), h.shape[1]).squeeze(2)), K.MEAN, "avg_pool1d"),
    (lambda s, h, m: s.fc(functional.adaptive_max_pool1d(across(h), 1).squeeze(2)), K.MAX, "adaptive_max_pool1d"),
    (lambda s, h, m: s.fc(functional.max_pool1d(across(h), h.shape[1]).squeeze(2)), K.MAX, "max_pool1d"),
    (lambda s, h, m: s.fc(h.var(1)), K.OTHER, "var"),
    (lambda s, h, m: s.fc(h.tensor_split([1], 1)[0].squeeze(1)), K.FIRST_TOKEN, "tensor_split"),
    (lambda s, h, m: s.fc(h.chunk(h.shape[1], 1)[0].squeeze(1)), K.FIRST_TOKEN, "chunk"),
    (lambda s, h, m: s.fc(nn.MultiheadAttention(H, 2, batch_first=True)(s.query.expand(len(h), 1, H), h, h)[0][:, 0]),
     K.WEIGHTED, "multi_head_attention_forward"),
    (lambda s, h, m: s.fc(nn.GRU(H, H, batch_first=True)(h)[1][0]), K.OTHER, "gru"),
    (lambda s, h, m: s.fc(nn.RNN(H, H, batch_first=True)(h)[1][0]), K.OTHER, "rnn_tanh"),
    (lambda s, h, m: s.fc(nn.RNN(H, H, nonlinearity="relu", batch_first=True)(h)[1][0]), K.OTHER, "rnn_relu"),
)  # fmt: skip
WHOLE_MAPS: tuple[tuple[Any, PoolingKind, str], ...] = (
    (lambda s, h: s.fc(functional.avg_pool2d(h, 4).flatten(1)), K.SPATIAL_MEAN, "avg_pool2d"),
    (lambda s, h: s.fc(functional.max_pool2d(h, 4).flatten(1)), K.MAX, "max_pool2d"),
    (lambda s, h: s.fc(functional.adaptive_avg_pool3d(h.unsqueeze(2), 1).flatten(1)), K.MEAN, "adaptive_avg_pool3d"),
)


@pytest.mark.parametrize(
    ("module", "examples", "kind", "operation"),
    [
        *((Text(head), EXAMPLES, kind, name) for head, kind, name in WHOLE),
        *((image(head, as_tokens=False), pixels(4, 4), kind, name) for head, kind, name in WHOLE_MAPS),
    ],
    ids=[name for _, _, name in (*WHOLE, *WHOLE_MAPS)],
)
def test_one_operation_may_take_all_the_tokens(
    module: nn.Module, examples: Any, kind: PoolingKind, operation: str
) -> None:
    pooling = seen(module, examples)
    assert pooling.kind is kind
    assert [evidence.operation for evidence in pooling.evidence] == [operation]
    assert "not recognized" not in pooling.rule


@pytest.mark.parametrize(("head", "kind"), BY_OPERATIONS)
def test_the_kind_is_what_the_operations_do(head: Head, kind: PoolingKind) -> None:
    assert seen(Text(head)).kind is kind


@pytest.mark.parametrize(
    ("module", "begins"),
    [
        (Text(lambda s, h, m: s.fc(torch.cat([h[:, 0], h.mean(1)], -1).tanh()), 2 * H), "side by side: first position"),
        (Text(lambda s, h, m: s.fc(torch.stack([h[:, 0], h[:, 1]]).mean(0))), "stacked: first position"),
        (Text(lambda s, h, m: s.fc((h[:, 0] + h[:, 1]) * h[:, 2])), "added and multiplied: first position"),
        # a product of a position with itself joins nothing
        (Text(lambda s, h, m: s.fc(h[:, 0] * h[:, 0] - h[:, 1])), "subtracted: first position"),
        (Text(lambda s, h, m: s.fc(torch.atan2(h[:, 0], h[:, 1]))), "joined by atan2: first position"),
        (
            Text(lambda s, h, m: {"start_logits": s.fc(h[:, 0]), "end_logits": s.fc(h[:, 1])}),
            "together: first position",
        ),
        (Text(lambda s, h, m: s.fc(h)), "one score per token: nothing is pooled"),
        (Text(lambda s, h, m: s.fc(s.lstm(h)[0])), "one score per token, computed from other positions too"),
    ],
)
def test_the_rule_says_how_the_positions_come_together(module: nn.Module, begins: str) -> None:
    assert seen(module).rule.startswith(begins)


@pytest.mark.parametrize(
    ("weigh", "rule"),
    [
        (lambda ids, strength, types: (ids != 1).float(), "sum over the positions that the mask keeps"),
        (lambda ids, strength, types: strength, "weighted sum of the positions"),
        (lambda ids, strength, types: types.float(), "sum over some positions, by a rule not recognized"),
    ],
)
def test_only_a_mask_of_the_padding_masks(weigh: Any, rule: str) -> None:
    """A sum of the tokens, each times something that is made from the named inputs."""
    ids = torch.arange(3, 15).reshape(2, 6)
    examples = {"input_ids": ids, "strength": torch.rand(2, 6), "token_type_ids": (ids > 8).long()}
    model = Made(
        lambda s, **inputs: s.fc((s.encoder(inputs["input_ids"]) * column(weigh(*inputs.values()))).sum(1)),
        encoder=Encoder(), fc=nn.Linear(H, 3), config=SimpleNamespace(pad_token_id=1),
    )  # fmt: skip
    assert seen(model, examples).rule == rule
