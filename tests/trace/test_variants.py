"""Variants of real heads, held against the same change made by hand in the model, and named by them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedModel,
)

from headscope.core.facts.heads.head import AS_IT_IS
from headscope.core.trace import variants
from headscope.core.trace.variants import head_variants
from headscope.shared.serving import reference_scores
from headscope.shared.serving.explaining import explain_scores

_TEXTS, _LENGTH, _FEWEST = 10, 12, 3


def _bert() -> PreTrainedModel:
    config = BertConfig(
        vocab_size=99, num_labels=3, hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=31
    )
    return BertForSequenceClassification(config)


def _distilbert() -> PreTrainedModel:
    config = DistilBertConfig(vocab_size=99, num_labels=3, dim=24, n_layers=1, n_heads=2, hidden_dim=31)
    return DistilBertForSequenceClassification(config)


def _gpt2() -> PreTrainedModel:
    config = GPT2Config(
        vocab_size=99, num_labels=3, n_embd=24, n_layer=1, n_head=2, pad_token_id=0, bos_token_id=1, eos_token_id=1
    )
    return GPT2ForSequenceClassification(config)


def _made(make: Callable[[], PreTrainedModel]) -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
    """A model with numbers large enough to tell variants apart, and padded texts of different lengths."""
    torch.manual_seed(3)
    model = make().train(False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.4)
    mask = torch.zeros(_TEXTS, _LENGTH, dtype=torch.long)
    for row in range(_TEXTS):
        mask[row, : _FEWEST + row % (_LENGTH - _FEWEST + 1)] = 1
    return model, {"input_ids": torch.randint(5, 99, mask.shape) * mask, "attention_mask": mask}


def _hidden(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.as_tensor(model.base_model(**inputs).last_hidden_state)


def _mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def _bert_pooled(model: Any, pooled: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(model.classifier(torch.tanh(model.bert.pooler.dense(pooled))))


BY_HAND: dict[str, tuple[Callable[[], PreTrainedModel], str, Callable[[Any, torch.Tensor, torch.Tensor], Any]]] = {
    "BERT, no pooler": (_bert, "without dense and tanh", lambda model, hidden, mask: model.classifier(hidden[:, 0])),
    "BERT, mean": (
        _bert,
        "mean over the tokens that are not padding",
        lambda model, hidden, mask: _bert_pooled(model, _mean(hidden, mask)),
    ),
    "BERT, mean without pooler": (
        _bert,
        "mean over the tokens that are not padding, without dense and tanh",
        lambda model, hidden, mask: model.classifier(_mean(hidden, mask)),
    ),
    "BERT, ReLU": (
        _bert,
        "relu for tanh",
        lambda model, hidden, mask: model.classifier(model.bert.pooler.dense(hidden[:, 0]).relu()),
    ),
    "DistilBERT, tanh": (
        _distilbert,
        "tanh for relu",
        lambda model, hidden, mask: model.classifier(model.pre_classifier(hidden[:, 0]).tanh()),
    ),
    "GPT-2, last token": (_gpt2, "last token", lambda model, hidden, mask: model.score(hidden[:, -1])),
    "GPT-2, mean": (_gpt2, "mean over all tokens", lambda model, hidden, mask: model.score(hidden.mean(1))),
    "GPT-2": (
        _gpt2,
        AS_IT_IS,
        lambda model, hidden, mask: model.score(hidden[torch.arange(_TEXTS), mask.sum(1) - 1]),
    ),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_a_variant_is_the_model_changed_by_hand(case: str) -> None:
    make, name, changed = BY_HAND[case]
    model, inputs = _made(make)
    with torch.no_grad():
        expected = changed(model, _hidden(model, inputs), inputs["attention_mask"])
    found = head_variants(model, inputs)
    torch.testing.assert_close(found[name].logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", BY_HAND)
def test_a_change_is_named_from_the_scores_alone(case: str) -> None:
    make, name, changed = BY_HAND[case]
    model, inputs = _made(make)
    with torch.no_grad():
        given = changed(model, _hidden(model, inputs), inputs["attention_mask"]).softmax(-1)
    variants = {item: variant.logits.double().numpy() for item, variant in head_variants(model, inputs).items()}
    found = explain_scores(variants, np.asarray(given.double().numpy()))
    assert found.explanation is not None, found
    assert (found.explanation.variant, found.explanation.function) == (name, "softmax")


@pytest.mark.parametrize("make", [_bert, _distilbert, _gpt2])
def test_variants_that_are_alike_are_one(make: Callable[[], PreTrainedModel]) -> None:
    model, inputs = _made(make)
    with torch.no_grad():
        own = model(**inputs).logits
    found = head_variants(model, inputs)
    torch.testing.assert_close(found[AS_IT_IS].logits, own, rtol=1e-4, atol=1e-4)
    values = [variant.logits for variant in found.values()]
    assert all(not torch.equal(one, other) for at, one in enumerate(values) for other in values[:at])


@pytest.mark.parametrize("make", [_bert, _distilbert, _gpt2])
def test_a_batch_of_as_many_texts_as_tokens_has_variants_too(make: Callable[[], PreTrainedModel]) -> None:
    model, inputs = _made(make)
    square = {name: value[:, :_TEXTS] for name, value in inputs.items()}
    assert square["input_ids"].shape == (_TEXTS, _TEXTS)
    with torch.no_grad():
        own = model(**square).logits
    torch.testing.assert_close(head_variants(model, square)[AS_IT_IS].logits, own, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("is_close", "make"), [(variants._is_close, torch.tensor), (reference_scores._is_close, np.array)]
)
def test_logits_that_are_minus_infinity_are_close_to_each_other(
    is_close: Callable[..., bool], make: Callable[[Any], Any]
) -> None:
    rows = [[1.0, -np.inf], [2.0, -np.inf]]
    assert is_close(make(rows), make([[1.0, -np.inf], [2.0 + 1e-9, -np.inf]]), 1e-6)
    assert not is_close(make(rows), make([[1.0, -np.inf], [2.1, -np.inf]]), 1e-6)
    assert not is_close(make(rows), make([[1.0, -np.inf], [2.0, 0.0]]), 1e-6)
