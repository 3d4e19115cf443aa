"""`verify --url` against loopback servers that lie: the right explanation or none, and never green."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from serving import servers
from serving.classifiers import (
    LABELS,
    TEXTS,
    Forward,
    as_it_is,
    cut_to,
    hidden_states,
    saved,
    scorer,
    verified,
    with_other_weights,
)
from serving.servers import FakeServer, serve, shuffled

import headscope
from headscope.errors import Malformed, UsageError
from tests.cli.command import Cli


def leaky(model: Any, given: Any) -> torch.Tensor:
    first = model.pre_classifier(hidden_states(model, given)[:, 0])
    return torch.as_tensor(model.classifier(torch.nn.functional.leaky_relu(first, 1e-3)))


def noisy(model: Any, given: Any) -> torch.Tensor:
    return as_it_is(model, given) + torch.randn(1, len(LABELS)) * 2e-3


@pytest.mark.parametrize(("family", "lie"), [("DistilBert", leaky), ("Bert", with_other_weights), ("Bert", noisy)])
def test_small_lies_are_never_green_and_have_no_explanation(family: str, lie: Forward, tmp_path: Path) -> None:
    folder = saved(family, tmp_path)
    with serve("vllm", scorer(folder, lie), LABELS) as url:
        found = headscope.verify_served(folder, url, text=TEXTS, logits=True).served
        claimed = headscope.verify_served(folder, url, text=TEXTS, logits=True, dtype="float32").served
    assert found.same is not True and found.explanation is None, found
    assert claimed.same is False and claimed.explanation is None, claimed


def test_a_small_difference_is_said_to_be_rounding_or_other_weights(bert: str, cli: Cli) -> None:
    options = [word for text in TEXTS for word in ("--text", text)]
    with serve("vllm", scorer(bert, with_other_weights), LABELS) as url:
        shown = cli("verify", bert, "--url", url, "--logits", *options, code=3).words
        cli("verify", bert, "--url", url, "--logits", *options, "--dtype", "float32", code=1)
    assert "rounding of float16 or bfloat16, or slightly different weights" in shown and "may be rounding" in shown


def test_the_checkpoints_own_model_in_half_precision_is_equal_within_its_rounding(bert: str) -> None:
    with serve("vllm", scorer(bert, lambda model, given: as_it_is(model.bfloat16(), given)), LABELS) as url:
        found = headscope.verify_served(bert, url, text=TEXTS).served
        claimed = headscope.verify_served(bert, url, text=TEXTS, dtype="float32").served
    assert (found.same, found.precision) == (True, "bfloat16"), found
    assert claimed.same is False


def long_texts(words: int) -> list[str]:
    """Texts of this many words, and of some more."""
    return [" ".join(f"w{(5 * at + word) % 94}" for word in range(words + at)) for at in range(6)]


def test_truncation_at_any_length_is_named(bert: str) -> None:
    with serve("vllm", scorer(bert, cut_to(19)), LABELS) as url:
        found = headscope.verify_served(bert, url, text=[*TEXTS, *long_texts(20)])
        short = headscope.verify_served(bert, url, text=TEXTS)
    assert found.served.explanation is not None, found
    assert (found.served.explanation.variant, found.longest) == ("texts cut to 19 tokens", 27)
    assert short.served.same is True and any("longer than" in item for item in short.served.not_looked_at)


def test_a_softmax_on_a_softmax_is_named(bert: str) -> None:
    right = scorer(bert, as_it_is)
    found = verified(bert, lambda text: servers.squashed(right(text)))
    assert "it computes softmax of softmax(classifier(tanh(dense(h[CLS]))))" in " ".join(str(found).split())


@pytest.mark.parametrize("change", [shuffled, lambda rows: rows[:1] * len(rows)], ids=["shuffled", "first only"])
def test_a_server_that_is_wrong_in_batches_alone_is_found_out(
    bert: str, change: Callable[[list[Any]], list[Any]]
) -> None:
    def lying(fake: FakeServer, method: str, path: str, body: Any) -> Any:
        found = servers.tei(fake, method, path, body)
        return change(found) if isinstance(found, list) else found

    found = verified(bert, scorer(bert, as_it_is), lying).served
    assert (found.same, found.explanation) == (False, None)
    assert "a text gets other scores than alone, where they are the checkpoint's" in found.reason


def test_no_limit_is_tried_beyond_the_models_own(bert: str) -> None:
    found = verified(bert, scorer(bert, cut_to(19)), text=[*TEXTS, *long_texts(90)]).served
    assert found.explanation is not None and found.explanation.variant == "texts cut to 19 tokens"


def test_the_precision_of_an_engine_that_is_run_cannot_be_stated(bert: str) -> None:
    with pytest.raises(UsageError, match="requests float32"):
        headscope.verify_served(bert, engine="vllm", dtype="bfloat16")


def test_a_prompt_of_the_checkpoint_is_named(tmp_path: Path) -> None:
    folder = saved("Bert", tmp_path)
    listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    settings = {"model_type": "CrossEncoder", "prompts": {"query": "w1 w2 ", "document": "w3 ", "none": ""}}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    right = scorer(folder, as_it_is)
    for prompt, name in (("w1 w2 ", "the prompt query in front"), ("w3 ", "the prompt document in front"), ("w9 ", "")):
        found = verified(folder, lambda text, prompt=prompt: right((prompt + text[0], *text[1:])), "tei").served
        assert found.same is False and (found.explanation.variant if found.explanation else "") == name, found


def test_a_label_that_contradicts_the_scores_of_vllm_is_said(bert: str) -> None:
    found = verified(bert, scorer(bert, as_it_is), labels=LABELS[::-1]).served
    assert found.same is True and "the engine names class 2 bad, and the checkpoint has bad as class 0" in found.notes
    assert not verified(bert, scorer(bert, as_it_is)).served.notes


@pytest.mark.parametrize(
    ("turned", "words"), [(False, ""), (True, "logits and probabilities whose highest values are of other classes")]
)
def test_of_logits_and_probabilities_the_logits_are_compared(bert: str, turned: bool, words: str) -> None:
    def both(fake: FakeServer, method: str, path: str, body: Any) -> Any:
        found = servers.kserve(fake, method, path, body)
        if not path.endswith("/infer"):
            return found
        rows = [fake.given((text,), True) for text in body["inputs"][0]["data"]]
        rows = [row[::-1] for row in rows] if turned else rows
        [output] = found["outputs"]
        return {"outputs": [output, {**output, "name": "logits", "data": [one for row in rows for one in row]}]}

    if turned:
        with pytest.raises(Malformed, match=words):
            verified(bert, scorer(bert, as_it_is), both)
        return
    found = verified(bert, scorer(bert, as_it_is), both)
    assert (found.served.same, found.requested) == (True, "logits"), found
