"""Variants of real heads, held against the same change made by hand in the model, and named by them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from headscope.core.facts.heads.head import AS_IT_IS
from headscope.core.trace import variants
from headscope.core.trace.variants import head_variants
from headscope.shared.serving import reference_scores
from headscope.shared.serving.explaining import explain_scores
from tests.families import FAMILIES
from tests.trace.heads import last_real, masked_mean, rows

_TEXTS, _LENGTH, _FEWEST = 10, 12, 3


def _made(name: str) -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
    """A model with numbers large enough to tell variants apart, and padded texts of different lengths."""
    family = FAMILIES[name]
    model = family.build(family.classifier, num_labels=3, **family.pad_token)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.4)
    mask = torch.zeros(_TEXTS, _LENGTH, dtype=torch.long)
    for row in range(_TEXTS):
        mask[row, : _FEWEST + row % (_LENGTH - _FEWEST + 1)] = 1
    return model, {"input_ids": torch.randint(5, 99, mask.shape) * mask, "attention_mask": mask}


Change = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]
BY_HAND: tuple[tuple[str, str, Change], ...] = (
    ("bert", "without dense and tanh", lambda model, hidden, mask: model.classifier(hidden[:, 0])),
    ("bert", "mean over the tokens that are not padding",
     lambda model, hidden, mask: model.classifier(model.bert.pooler(masked_mean(hidden, mask)[:, None]))),
    ("bert", "mean over the tokens that are not padding, without dense and tanh",
     lambda model, hidden, mask: model.classifier(masked_mean(hidden, mask))),
    ("bert", "relu for tanh",
     lambda model, hidden, mask: model.classifier(model.bert.pooler.dense(hidden[:, 0]).relu())),
    ("distilbert", "tanh for relu",
     lambda model, hidden, mask: model.classifier(model.pre_classifier(hidden[:, 0]).tanh())),
    ("gpt2", "last token", lambda model, hidden, mask: model.score(hidden[:, -1])),
    ("gpt2", "mean over all tokens", lambda model, hidden, mask: model.score(hidden.mean(1))),
    ("gpt2", AS_IT_IS, lambda model, hidden, mask: model.score(hidden[rows(mask), last_real(mask)])),
)  # fmt: skip


@pytest.mark.parametrize(("family", "name", "changed"), BY_HAND, ids=[f"{row[0]}, {row[1]}" for row in BY_HAND])
def test_a_variant_is_the_model_changed_by_hand_and_named_from_the_scores_alone(
    family: str, name: str, changed: Change
) -> None:
    model, inputs = _made(family)
    with torch.no_grad():
        expected = changed(model, model.base_model(**inputs).last_hidden_state, inputs["attention_mask"])
    made = head_variants(model, inputs)
    torch.testing.assert_close(made[name].logits, expected, rtol=1e-4, atol=1e-4)
    logits = {item: variant.logits.double().numpy() for item, variant in made.items()}
    found = explain_scores(logits, np.asarray(expected.softmax(-1).double().numpy()))
    assert found.explanation is not None, found
    assert (found.explanation.variant, found.explanation.function) == (name, "softmax")


@pytest.mark.parametrize("length", [_LENGTH, _TEXTS], ids=["", "as many texts as tokens"])
@pytest.mark.parametrize("family", ["bert", "distilbert", "gpt2"])
def test_variants_that_are_alike_are_one(family: str, length: int) -> None:
    model, inputs = _made(family)
    inputs = {name: value[:, :length] for name, value in inputs.items()}
    with torch.no_grad():
        own = model(**inputs).logits
    found = head_variants(model, inputs)
    torch.testing.assert_close(found[AS_IT_IS].logits, own, rtol=1e-4, atol=1e-4)
    values = [variant.logits for variant in found.values()]
    assert all(not torch.equal(one, other) for at, one in enumerate(values) for other in values[:at])


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
