"""Heads of which nothing is claimed, because the recording cannot tell what they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

import headscope
from headscope.errors import Unsupported
from headscope.facts import HeadTrace, PoolingKind
from tests.trace.heads import LABELS, Encoder, H, Text, Towers, trace, without_first

IDS = torch.arange(3, 15).reshape(2, 6)


def assert_open(traced: HeadTrace, reason: str) -> None:
    assert traced.formula == ""
    assert traced.pooling.kind is PoolingKind.OTHER
    assert traced.pooling.tokens == ()
    assert [item.topic for item in traced.not_determined] == ["head path"]
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


class Convolutions(nn.Module):
    """A TextCNN that is larger than the encoder, and pools."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(H, 70, width) for width in (2, 3))
        self.out = nn.Linear(140, outputs)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.out(torch.cat([conv(hidden.transpose(1, 2)).relu().amax(2) for conv in self.convs], 1))


class Pooling(nn.Module):
    """A head in modules of its own on an encoder."""

    def __init__(self, encoder: nn.Module, *head: nn.Module, first: bool = False) -> None:
        super().__init__()
        self.encoder, self.part = encoder, head[0]
        self.rest = head[1] if len(head) > 1 else None
        self.first = first

    def forward(self, ids: Tensor) -> Tensor:
        found = self.encoder(ids)
        hidden = found if isinstance(found, Tensor) else found.last_hidden_state
        scores = self.part(hidden[:, 0] if self.first else hidden)
        return scores if self.rest is None else self.rest(scores)


def bert() -> BertModel:
    sizes = {"hidden_size": H, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    return BertModel(BertConfig(vocab_size=40, max_position_embeddings=32, **sizes))


def numbers(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_a_textcnn_that_is_larger_than_the_model_of_transformers_below_it() -> None:
    model = Pooling(bert(), Convolutions(LABELS))
    assert numbers(model.part) > numbers(model.encoder)
    report = headscope.inspect(model, example_inputs={"ids": IDS})
    assert report.model.parameters.head == numbers(model.part)
    assert report.model.parameters.base == numbers(model.encoder)
    assert report.not_determined == ()


def test_convolutions_in_a_list_are_no_base_model() -> None:
    class Listed(Convolutions):
        def __init__(self) -> None:
            super().__init__(LABELS)
            self.encoder = Encoder()

        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(self.encoder(ids))

    model = Listed()
    report = headscope.inspect(model, example_inputs={"ids": IDS})
    assert report.model.parameters.head == numbers(model.convs) + numbers(model.out)
    assert report.head.formula == "logits = out([max(relu(convs.0(h))); max(relu(convs.1(h)))])"


@pytest.mark.parametrize(
    ("rest", "why"), [((), "no weights come after it"), ((nn.Linear(16, LABELS),), "pools what it makes")]
)
def test_a_textcnn_that_is_larger_than_an_encoder_without_a_type(rest: tuple[nn.Module, ...], why: str) -> None:
    model = Pooling(Encoder(), Convolutions(16 if rest else LABELS), *rest)
    assert_open(trace(model, {"ids": IDS}), f"part reads what encoder makes, and {why}")


def test_a_large_head_after_the_token_axis_is_not_doubted() -> None:
    large = nn.Sequential(nn.Linear(H, 160), nn.ReLU(), nn.Linear(160, LABELS))
    model = Pooling(Encoder(), large, first=True)
    report = headscope.inspect(model, example_inputs={"ids": IDS})
    assert report.model.parameters.head == numbers(large)
    assert report.not_determined == ()


def test_a_second_encoder_is_not_part_of_the_head() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other, self.fc = bert(), bert(), nn.Linear(2 * H, LABELS)

        def forward(self, ids: Tensor) -> Tensor:
            return self.fc(torch.cat([self.one(ids)[0][:, 0], self.other(ids)[0][:, 0]], -1))

    model = Pair()
    report = headscope.inspect(model, example_inputs={"ids": IDS})
    assert [item.name for item in report.head.parameters] == ["fc.weight", "fc.bias"]
    assert report.model.parameters.head == numbers(model.fc)
    assert report.model.parameters.base == numbers(model) - numbers(model.fc)
    assert re.search(r"\bof other\b.*\bof one\b", report.not_determined[0].reason)


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


@pytest.mark.parametrize(
    "head",
    [
        lambda s, h, m: s.fc(torch.nested.as_nested_tensor(h).to_padded_tensor(0.0)[:, 0]),
        lambda s, h, m: s.fc(torch.nested.nested_tensor(list(h)).to_padded_tensor(0.0)[:, 0]),
    ],
)
def test_nested_tensors_are_refused_in_a_sentence(head: Any) -> None:
    with pytest.raises(Unsupported, match=r"test_doubts.py:\d+ makes a nested tensor"):
        trace(Text(head))


@pytest.mark.parametrize(
    "head",
    [
        lambda s, h, m: s.fc(h[:, 0] // 0.1),
        lambda s, h, m: s.fc(torch.heaviside(h, torch.tensor(0.0))).mean(1),
    ],
)
def test_functions_of_which_torch_has_no_gradient_are_not_verified(head: Any) -> None:
    model, hidden = Text(head), torch.randn(2, 6, H, requires_grad=True)
    with pytest.raises(RuntimeError, match="derivative"):
        head(model, hidden, None).sum().backward()
    verification = trace(model).verification
    assert verification.agrees is None
    assert "gradient" in verification.told
