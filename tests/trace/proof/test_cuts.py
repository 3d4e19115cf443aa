"""Heads that cut long texts: the limit is named where no traced text is as long."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

import headscope
from tests.trace.heads import IDS, H, Head, Made, Text, bert, column, last_real, rows, trace

CUTTING: list[Head] = [
    lambda s, h, m: s.fc(h[:, :128].mean(1)),
    lambda s, h, m: s.fc(h[:, -128:].mean(1)),
    lambda s, h, m: s.fc(h[:, -128:][:, 0]),
    lambda s, h, m: s.fc((h * column(m))[:, :128].sum(1) / m[:, :128].sum(1, keepdim=True)),
    lambda s, h, m: s.fc(h.gather(1, m.cumsum(1).argmax(1).clamp(max=127)[:, None, None].expand(-1, 1, H)).squeeze(1)),
    lambda s, h, m: s.fc(h[rows(h), last_real(m).clamp(max=127)]),
    lambda s, h, m: s.fc(h[rows(h), last_real(m).clip(0, 127)]),
    lambda s, h, m: s.fc(h[..., :128, :].mean(1)),
    lambda s, h, m: s.fc(h[:, None, :128].mean(2)[:, 0]),
    lambda s, h, m: s.fc(h.transpose(0, 1)[:128].mean(0)),
    lambda s, h, m: s.fc(h.index_select(1, torch.arange(h.shape[1]).clamp(max=127)).mean(1)),
]
COMPUTED: list[Head] = [  # by Python, from the length
    lambda s, h, m: s.fc(h.narrow(1, 0, min(h.shape[1], 128)).mean(1)),
    lambda s, h, m: s.fc(h[:, : min(h.shape[1], 128)].mean(1)),
    lambda s, h, m: s.fc(h[:, 1 : min(h.shape[1], 128)].mean(1)),
    lambda s, h, m: s.fc((h * column(m))[:, : min(h.shape[1], 128)].sum(1) / m[:, :128].sum(1, keepdim=True)),
]
WHOLE: list[Head] = [
    lambda s, h, m: s.fc(h.narrow(1, 0, h.shape[1]).mean(1)),
    lambda s, h, m: s.fc(h[:, -h.shape[1] :].mean(1)),
    lambda s, h, m: s.fc(h[:, : h.shape[1]].mean(1)),
    lambda s, h, m: s.fc(h[:, :].mean(1)),
    lambda s, h, m: s.fc(h[..., :200].mean(1)),
    lambda s, h, m: s.fc(h.mean(1)),
]


def reads_everywhere(head: Head) -> bool:
    """Whether the first, the last or all of 300 positions reach the scores whole, by torch's gradients."""
    model, hidden = Text(head), torch.randn(1, 300, H, requires_grad=True)
    head(model, hidden, torch.ones(1, 300, dtype=torch.long)).sum().backward()
    return bool(hidden.grad.abs().sum(2).all())


@pytest.mark.parametrize(
    ("head", "words"),
    [
        *((head, r" 1(29|30) tokens.* 12[89]") for head in CUTTING),
        *((head, " 129 tokens, .* other scores") for head in COMPUTED),
    ],
)
def test_a_limit_beyond_the_traced_texts_is_named(head: Head, words: str) -> None:
    assert not reads_everywhere(head)
    [gap] = [item for item in trace(Text(head)).not_determined if item.topic == "pooling of long texts"]
    assert re.search(words, gap.reason)


@pytest.mark.parametrize("head", WHOLE)
def test_slices_that_cut_no_text_are_not_named(head: Head) -> None:
    assert reads_everywhere(head)
    assert trace(Text(head)).not_determined == ()


@pytest.mark.parametrize(
    "index",
    [
        lambda m: torch.where(last_real(m) >= 0, last_real(m), 300),
        lambda m: last_real(m.float().clamp(max=200)),  # of numbers that are no positions
        lambda m: last_real(m).clamp(max=3),  # within every text that is traced
    ],
)
def test_a_number_that_bounds_nothing_is_no_limit(index: Callable[[torch.Tensor], torch.Tensor]) -> None:
    traced = trace(Text(lambda s, h, m: s.fc(h[rows(h), index(m)])))
    assert "pooling of long texts" not in [item.topic for item in traced.not_determined]


@pytest.mark.parametrize(("positions", "is_named"), [(512, True), (128, False)])
def test_a_limit_that_no_text_of_the_model_reaches_is_not_named(positions: int, is_named: bool) -> None:
    model = Made(
        lambda s, ids: s.fc(s.bert(ids).last_hidden_state[:, :128].mean(1)),
        bert=bert(max_position_embeddings=positions), fc=torch.nn.Linear(H, 3),
    )  # fmt: skip
    report = headscope.inspect(model, example_inputs=IDS)
    assert ("pooling of long texts" in [item.topic for item in report.not_determined]) is is_named
