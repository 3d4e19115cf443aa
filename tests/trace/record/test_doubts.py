"""Heads of which nothing is claimed, because the recording cannot tell what they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headscope
from headscope.errors import Unsupported
from headscope.facts import HeadTrace, PoolingKind
from tests.trace.heads import IDS, LABELS, PAIRS, Encoder, H, Made, Text, bert, towers, trace, without_first


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


def test_two_encoders_without_a_declared_base() -> None:
    def two(head: Callable[[Any, Tensor, Tensor], Tensor], width: int = H) -> HeadTrace:
        model = Made(
            lambda s, ids, other: head(s, s.encoder(ids), s.second(other)),
            encoder=Encoder(), second=Encoder(), fc=nn.Linear(width, LABELS),
        )  # fmt: skip
        return trace(model, PAIRS)

    both = two(lambda s, a, b: s.fc(torch.cat([a[:, 0], b.mean(1)], -1)), 2 * H)
    assert_open(both, "the hidden states of second as well as on those of encoder")
    assert two(lambda s, a, b: s.fc(a[:, 0])).formula == "logits = fc(h[0])"
    assert trace(towers(lambda s, a, b: s.fc(a[:, 0] - b[:, 0])), PAIRS).not_determined == ()


def large() -> nn.Module:
    """A classifier that is larger than the encoder."""
    return nn.Sequential(nn.Linear(H, 160), nn.ReLU(), nn.Linear(160, LABELS))


def test_a_head_that_is_larger_than_its_encoder() -> None:
    model = Made(lambda s, ids: s.classifier(s.encoder(ids)).mean(1), encoder=Encoder(), classifier=large())
    assert_open(trace(model, IDS), "classifier reads what encoder makes, and no weights come after it")


class Convolutions(nn.Module):
    """A TextCNN that is larger than the encoder, and pools."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(H, 70, width) for width in (2, 3))
        self.out = nn.Linear(140, outputs)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.out(torch.cat([conv(hidden.transpose(1, 2)).relu().amax(2) for conv in self.convs], 1))


def numbers(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_a_textcnn_that_is_larger_than_the_model_of_transformers_below_it() -> None:
    encoder, part = bert(vocab_size=40, max_position_embeddings=32), Convolutions(LABELS)
    assert numbers(part) > numbers(encoder)
    model = Made(lambda s, ids: s.part(s.encoder(ids).last_hidden_state), encoder=encoder, part=part)
    report = headscope.inspect(model, example_inputs=IDS)
    assert report.model.parameters.head == numbers(part)
    assert report.model.parameters.base == numbers(encoder)
    assert report.not_determined == ()


def test_convolutions_in_a_list_are_no_base_model() -> None:
    part = Convolutions(LABELS)
    model = Made(
        lambda s, ids: Convolutions.forward(s, s.encoder(ids)), encoder=Encoder(), convs=part.convs, out=part.out
    )
    report = headscope.inspect(model, example_inputs=IDS)
    assert report.model.parameters.head == numbers(part)
    assert report.head.formula == "logits = out([max(relu(convs.0(h))); max(relu(convs.1(h)))])"


@pytest.mark.parametrize(
    ("outputs", "rest", "why"),
    [(LABELS, nn.Identity(), "no weights come after it"), (16, nn.Linear(16, LABELS), "pools what it makes")],
)
def test_a_textcnn_that_is_larger_than_an_encoder_without_a_type(outputs: int, rest: nn.Module, why: str) -> None:
    model = Made(
        lambda s, ids: s.rest(s.part(s.encoder(ids))), encoder=Encoder(), part=Convolutions(outputs), rest=rest
    )
    assert_open(trace(model, IDS), f"part reads what encoder makes, and {why}")


def test_a_large_head_after_the_token_axis_is_not_doubted() -> None:
    model = Made(lambda s, ids: s.part(s.encoder(ids)[:, 0]), encoder=Encoder(), part=large())
    report = headscope.inspect(model, example_inputs=IDS)
    assert report.model.parameters.head == numbers(large())
    assert report.not_determined == ()


def test_a_second_encoder_is_not_part_of_the_head() -> None:
    one, other, fc = bert(), bert(), nn.Linear(2 * H, LABELS)
    model = Made(
        lambda s, ids: s.fc(torch.cat([s.one(ids)[0][:, 0], s.other(ids)[0][:, 0]], -1)), one=one, other=other, fc=fc
    )
    report = headscope.inspect(model, example_inputs=IDS)
    assert [item.name for item in report.head.parameters] == ["fc.weight", "fc.bias"]
    assert report.model.parameters.head == numbers(fc)
    assert report.model.parameters.base == numbers(one) + numbers(other)
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
