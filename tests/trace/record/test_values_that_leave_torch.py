"""Values that leave PyTorch on the way to the scores: no graph tells where they go, so nothing is claimed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import headscope
from headscope.facts import PoolingKind
from tests.trace.heads import EXAMPLES, LABELS, H, Head, Text, trace

LEAVING: dict[str, tuple[Head, str]] = {
    "numpy": (lambda s, h, m: s.fc(torch.from_numpy(h.detach().numpy().mean(1))), "numpy"),
    "numpy of each token": (lambda s, h, m: s.fc(torch.from_numpy(h.detach().numpy()))[:, 0], "numpy"),
    "an array": (lambda s, h, m: s.fc(torch.as_tensor(np.asarray(h.detach())[:, 0])), "__array__"),
    "a list": (lambda s, h, m: s.fc(torch.tensor(h.detach().tolist())[:, 0]), "tolist"),
    "dlpack": (lambda s, h, m: s.fc(torch.from_dlpack(h.detach())[:, 0]), "__dlpack__"),
    "beside what stays": (lambda s, h, m: s.fc(torch.from_numpy(h.detach().numpy()).mean(1) + h[:, 0]), "numpy"),
    "which is largest": (
        lambda s, h, m: s.fc(h[:, 0]) + torch.tensor(h.argmax(1).tolist()).float()[:, :LABELS],
        "tolist",
    ),
    "truth values": (lambda s, h, m: s.fc((h * torch.from_numpy((s.attention(h) > 0).numpy())).sum(1)), "numpy"),
    "a parameter": (lambda s, h, m: s.fc(h[:, 0] * torch.tensor(s.query.tolist())[0, 0]), "tolist"),
    "a number of a parameter": (lambda s, h, m: s.fc(h[:, 0] * s.query.norm().item()), "item"),
    "a number": (lambda s, h, m: s.fc(h[:, 0] * h.norm().item()), "item"),
}


def moves_the_scores(head: Head) -> bool:
    """Whether the scores follow the last position of the hidden states, by torch alone."""
    model, mask = Text(head), EXAMPLES["attention_mask"]
    hidden = torch.randn(2, 6, H, generator=torch.Generator().manual_seed(3))
    changed = hidden.clone()
    changed[:, -1] += 5
    with torch.no_grad():
        return not torch.equal(head(model, hidden, mask), head(model, changed, mask))


@pytest.mark.parametrize("name", LEAVING)
def test_nothing_is_claimed_of_values_that_leave(name: str) -> None:
    head, call = LEAVING[name]
    traced = trace(Text(head))
    assert (traced.pooling.kind, traced.pooling.rule) == (PoolingKind.OTHER, "not determined")
    assert traced.formula == ""
    assert any(f"PyTorch ({call})" in item.reason for item in traced.not_determined)
    assert "encoder" not in [item.path for item in traced.unused_modules]


@pytest.mark.parametrize("name", ["numpy", "beside what stays", "a number"])
def test_the_scores_depend_on_what_left(name: str) -> None:
    assert moves_the_scores(LEAVING[name][0])


def kept_for_a_log(model: Text, hidden: Tensor, mask: Tensor) -> Tensor:
    scores = model.fc(hidden[:, 0])
    model.seen = float(scores.mean()), scores.softmax(-1).detach().numpy()  # type: ignore[assignment]
    return scores


def counted(model: Text, hidden: Tensor, mask: Tensor) -> Tensor:
    assert mask.sum(1).tolist()
    return model.fc(hidden[:, 0])


@pytest.mark.parametrize("head", [kept_for_a_log, counted])
def test_scores_and_counts_may_leave(head: Head) -> None:
    traced = trace(Text(head))
    assert (traced.pooling.kind, traced.formula) == (PoolingKind.FIRST_TOKEN, "logits = fc(h[0])")
    assert traced.not_determined == ()


def test_the_sentence_says_that_no_head_was_found() -> None:
    report = headscope.inspect(Text(LEAVING["numpy"][0]), example_inputs=EXAMPLES)
    assert str(report).startswith("No head found")
    assert "head path" in [item.topic for item in report.not_determined]
