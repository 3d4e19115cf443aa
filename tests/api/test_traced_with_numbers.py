"""Models whose forward decides by its values, which a skeleton does not have: experts that are chosen by `tolist`."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from transformers import JetMoeConfig, JetMoeForSequenceClassification

import headscope
from headscope.core.checkpoints.reading import read_manifest
from headscope.core.facts.stored.location import Location
from headscope.core.model.classes.model_request import Choice, ModelRequest, choose
from headscope.core.model.loading.loader import Loaded, load_skeleton
from headscope.core.source.reading.tracing import trace_checkpoint, traced_with_numbers
from headscope.core.trace import TokenNames, trace_head
from headscope.errors import Unsupported
from headscope.facts import Task

SMALL = {
    "vocab_size": 60, "hidden_size": 16, "num_key_value_heads": 2, "kv_channels": 8, "intermediate_size": 16,
    "num_local_experts": 4, "num_experts_per_tok": 2, "num_labels": 3, "pad_token_id": 0,
}  # fmt: skip
LACK = "tolist() shouldn't be called on a tensor with unallocated storage"


def saved(folder: Path, **more: object) -> JetMoeForSequenceClassification:
    model = JetMoeForSequenceClassification(JetMoeConfig(**SMALL | {"num_hidden_layers": 3} | more))
    model.save_pretrained(folder)
    return model


def loaded(folder: Path) -> tuple[Choice, Loaded]:
    manifest = read_manifest(Location(str(folder)))
    choice = choose(manifest.config, ModelRequest())
    return choice, load_skeleton(choice, manifest)


def test_the_head_of_experts_istraced_with_numbers(tmp_path: Path) -> None:
    model = saved(tmp_path).eval()
    report = headscope.inspect(tmp_path)
    assert [item.name for item in report.head.parameters] == ["score.weight"]
    assert report.head.parameters[0].shape == tuple(model.score.weight.shape)
    assert report.head.formula == "logits = score(h)[last non-pad]"
    ids = torch.randint(1, 60, (2, 7))
    with torch.no_grad():
        hidden = model.model(ids).last_hidden_state
        assert torch.allclose(model(ids).logits, model.score(hidden)[:, -1], atol=1e-5)
    assert report.head.hidden_shape == ("batch", "sequence", 16)
    assert report.head.not_live == ()
    assert any("values" in note for note in report.notes)
    assert not any(item.topic == "head path" for item in report.not_determined)


def test_tokens_of_such_a_model(tmp_path: Path) -> None:
    kind = getattr(transformers, "OpenAIPrivacyFilterForTokenClassification", None)
    if kind is None:
        pytest.skip("this Transformers has no OpenAIPrivacyFilter")
    config = kind.config_class(
        vocab_size=60, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=32,
        intermediate_size=32, num_local_experts=4, num_labels=3, pad_token_id=0,
    )  # fmt: skip
    kind(config).save_pretrained(tmp_path)
    report = headscope.inspect(tmp_path)
    assert report.head.formula == "logits = score(h)"


@pytest.mark.parametrize("words", [LACK, "another failure"])
def test_only_a_failure_for_lack_of_numbers_is_followed_by_a_smaller_model(words: str, tmp_path: Path) -> None:
    saved(tmp_path)
    choice, skeleton = loaded(tmp_path)
    with pytest.raises(Unsupported) as failure:
        trace_head(skeleton.model, choice.task)
    assert LACK in failure.value.message
    failure.value.message = failure.value.message.replace(LACK, words)
    found = traced_with_numbers(skeleton.model, choice, TokenNames("", ""), failure.value)
    assert (found is not None) == (words == LACK)


def test_a_model_that_fails_with_numbers_too_keeps_its_reason(tmp_path: Path) -> None:
    saved(tmp_path)
    choice, skeleton = loaded(tmp_path)
    broken = replace(choice, task=Task.MULTIPLE_CHOICE)  # five rows of three choices, which the forward does not take
    traced = trace_checkpoint(skeleton.model, broken)
    assert traced.trace is None
    assert traced.gaps[0].topic == "head path"
