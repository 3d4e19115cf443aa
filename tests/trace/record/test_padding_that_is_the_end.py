"""Padding that is the end of a text: traced without padding where that is what fails, and as usual elsewhere."""

from typing import Any

import pytest
import transformers

from headscope.core.trace import trace_head
from headscope.core.upstream.torch import on_meta
from headscope.errors import Unsupported
from headscope.facts import Task
from tests.families import FAMILIES


def _bart(pad: int) -> Any:
    with on_meta():
        return FAMILIES["bart"].build("BartForSequenceClassification", pad_token_id=pad, eos_token_id=2)


def test_a_batch_that_fails_by_its_padding_is_traced_without() -> None:
    trace = trace_head(_bart(2), Task.SEQUENCE_CLASSIFICATION).trace
    (note,) = (item for item in trace.notes if "seen without padding" in item)
    assert "same number of <eos> tokens" in note and trace.pooling.kind.value == "eos_token"
    plain = trace_head(_bart(1), Task.SEQUENCE_CLASSIFICATION).trace
    assert not any("without padding" in item for item in plain.notes) and plain.pooling.kind is trace.pooling.kind


def test_another_failure_is_not_blamed_on_padding() -> None:
    model = _bart(2)
    model.forward = lambda **given: 1 / 0
    with pytest.raises(Unsupported, match="ZeroDivisionError"):
        trace_head(model, Task.SEQUENCE_CLASSIFICATION)


def test_a_model_without_a_mask_that_fails_is_said() -> None:
    config: Any = transformers.FNetConfig
    settings = config(vocab_size=99, hidden_size=16, num_hidden_layers=1, intermediate_size=16, pad_token_id=3,
                      eos_token_id=3, max_position_embeddings=4)  # fmt: skip
    with on_meta():
        model = transformers.FNetForSequenceClassification(settings).eval()
    with pytest.raises(Unsupported, match="forward of FNetForSequenceClassification fails"):
        trace_head(model, Task.SEQUENCE_CLASSIFICATION)
