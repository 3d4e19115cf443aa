"""A training check of a model whose loss headscope cannot read: not determined, never green."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

import headscope
from headscope.core.facts.verdict import Verdict

LABELS: dict[str, Any] = {"id2label": {0: "no", 1: "yes", 2: "?"}, "label2id": {"no": 0, "yes": 1, "?": 2}}
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


class Focal(BertForSequenceClassification):
    """A loss of the scores that PyTorch has no function for."""

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None, labels: Any = None, **kwargs: Any) -> Any:
        output = super().forward(input_ids=input_ids, attention_mask=attention_mask)
        if labels is not None:
            right = output.logits.softmax(-1).gather(1, labels.reshape(-1, 1))
            output.loss = (-((1 - right) ** 2) * right.log()).mean()
        return output


@pytest.mark.parametrize(
    ("build", "profile", "is_open"),
    [(Focal, "training", True), (Focal, "inference", False), (BertForSequenceClassification, "training", False)],
)
def test_a_loss_that_is_not_known_is_not_green_in_training(build: Any, profile: str, is_open: bool) -> None:
    torch.manual_seed(0)
    model = build(BertConfig(vocab_size=64, **SIZES, **LABELS))
    result = headscope.check(model, profile=profile)
    told = [item.topic for item in result.not_determined if "loss" in item.reason]
    assert told == (["HS204 problem-type"] if is_open else [])
    if profile == "training":
        assert result.verdict is (Verdict.NOT_DETERMINED if is_open else Verdict.PASSED)
