"""Models of texts and images that run on no text alone: the probe gives them an image."""

from __future__ import annotations

import torch
from transformers import ViltConfig, ViltForTokenClassification

import headscope
from headscope.facts import PoolingKind


def test_each_token_of_a_text_with_an_image_has_its_score() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 4}
    torch.manual_seed(0)
    model = ViltForTokenClassification(ViltConfig(vocab_size=100, image_size=64, num_labels=3, **sizes)).eval()
    given = {"input_ids": torch.arange(3, 12)[None], "pixel_values": torch.rand(1, 3, 64, 64)}
    with torch.no_grad():
        hidden = model.vilt(**given).last_hidden_state
        assert hidden.shape[1] > 9  # the patches follow the text
        assert torch.allclose(model(**given).logits, model.classifier(hidden[:, :9]))
    report = headscope.inspect(model, prove=True)
    assert report.head.pooling.kind is PoolingKind.NONE
    assert report.head.verification.agrees is True
    assert [item.name for item in report.head.parameters] == ["classifier.weight", "classifier.bias"]
    assert report.not_determined == ()
