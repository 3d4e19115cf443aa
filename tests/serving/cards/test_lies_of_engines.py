"""Every lie of an engine, told to `verify_card` and to each of the readers in docs/card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from serving.cards.making import Program, Row, engine_logits, judged_by_card, softmax
from serving.classifiers import as_it_is, load_model, softsign_pooler, without_pooler
from transformers import AutoTokenizer

PASS, FAIL, UNUSABLE = 0, 1, 3
WORDS = {PASS: "PASS", FAIL: "FAIL", UNUSABLE: "UNUSABLE"}


@pytest.fixture(scope="module")
def answers(checkpoint: str, card: Path) -> dict[str, Any]:
    """What each engine gives: one that is right, and those that lie."""
    document, model = json.loads(card.read_text()), load_model(checkpoint)
    right = engine_logits(document, model)
    scores = softmax(right)
    ids = [item["input_ids"] for item in document["inputs"]]
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    def cut(limit: int) -> list[Row]:
        pairs = [tuple(filter(None, (item["text"], item["text_pair"]))) for item in document["inputs"]]
        given = [tokenizer(*pair, truncation=True, max_length=limit, return_tensors="pt") for pair in pairs]
        with torch.no_grad():
            return softmax([as_it_is(model, dict(one))[0].tolist() for one in given])

    return {
        "scores": scores,
        "logits": {"logits": right},
        "other order": [row[::-1] for row in scores],
        "no activation": right,
        "softmax twice": softmax(scores),
        "sigmoid for softmax": [[float(1 / (1 + np.exp(-value))) for value in row] for row in right],
        "cut to 128 tokens": cut(128),
        "cut to 100 tokens": cut(100),
        "only the first of each batch": [scores[at // 4 * 4] for at in range(len(scores))],
        "without pooler": softmax(engine_logits(document, model, without_pooler)),
        "unknown function": softmax(engine_logits(document, model, softsign_pooler)),
        "other tokenizer": {"scores": [scores[0], *scores[:1], *scores[2:]], "input_ids": [ids[0], ids[0], *ids[2:]]},
        "own tokenizer": {"scores": scores, "input_ids": ids},
        "other tokenizer, without pooler": {
            "logits": engine_logits(document, model, without_pooler), "input_ids": [ids[1], *ids[1:]]
        },
        "one row less": scores[1:],
        "bfloat16": {"logits": engine_logits(document, load_model(checkpoint).bfloat16())},
    }  # fmt: skip


LIES: dict[str, tuple[int, str]] = {
    "scores": (PASS, "the same scores within float32"),
    "logits": (PASS, "the same logits within float32"),
    "own tokenizer": (PASS, "the same scores"),
    "other order": (FAIL, "as it is, then softmax, classes in the order [2, 1, 0]"),
    "no activation": (FAIL, "as it is, then none"),
    "softmax twice": (FAIL, "as it is, then softmax of softmax"),
    "sigmoid for softmax": (FAIL, "as it is, then sigmoid"),
    "cut to 128 tokens": (FAIL, "texts cut to 128 tokens, then softmax"),
    "cut to 100 tokens": (FAIL, "cause not in the card"),
    "only the first of each batch": (FAIL, "cause not in the card"),
    "without pooler": (FAIL, "without dense and tanh, then softmax"),
    "unknown function": (FAIL, "cause not in the card"),
    "other tokenizer": (FAIL, "the tokenizer differs on inputs [1]; the same scores"),
    "other tokenizer, without pooler": (FAIL, "the tokenizer differs on inputs [0]; other logits"),
    "one row less": (UNUSABLE, "32 rows of 3 numbers were expected"),
    "bfloat16": (FAIL, "cause not in the card; within the rounding of bfloat16"),
}


def test_a_reader_tells_every_lie(reader: Program, card: Path, answers: dict[str, Any], tmp_path: Path) -> None:
    scores = tmp_path / "scores.json"
    for lie, (code, words) in LIES.items():
        scores.write_text(json.dumps(answers[lie]))
        found = reader(card, scores, "float32")
        assert found[0] == code and words in found[1], (lie, found)
        assert found[1].startswith(WORDS[code]), (lie, found)
    scores.write_text(json.dumps(answers["other tokenizer, without pooler"]))
    assert ": without dense and tanh, then none" in reader(card, scores, "float32")[1]
    scores.write_text(json.dumps(answers["bfloat16"]))
    assert reader(card, scores, "bfloat16")[0] == PASS
    labels = json.loads(card.read_text())["labels"]
    others = json.dumps({"scores": answers["scores"], "labels": labels[1:] + labels[:1]})
    for text in (others, "\n".join(map(json.dumps, answers["scores"]))):
        scores.write_text(text)
        assert reader(card, scores, "float32")[0] == UNUSABLE, text[:40]
    assert reader(scores.with_name("missing.json"), scores, "float32")[0] == UNUSABLE


EXPLAINED: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "other order": ("as it is", "softmax", (2, 1, 0)),
    "no activation": ("as it is", "none", (0, 1, 2)),
    "softmax twice": ("as it is", "softmax of softmax", (0, 1, 2)),
    "sigmoid for softmax": ("as it is", "sigmoid", (0, 1, 2)),
    "cut to 128 tokens": ("texts cut to 128 tokens", "softmax", (0, 1, 2)),
    "without pooler": ("without dense and tanh", "softmax", (0, 1, 2)),
    "other tokenizer, without pooler": ("without dense and tanh", "none", (0, 1, 2)),
}


@pytest.mark.parametrize("lie", [lie for lie in LIES if LIES[lie][0] != UNUSABLE])
def test_verify_card_tells_every_lie(lie: str, card: Path, answers: dict[str, Any], tmp_path: Path) -> None:
    found = judged_by_card(card, tmp_path, answers[lie])
    is_rounding = lie == "bfloat16"
    assert found.same is (LIES[lie][0] == PASS or is_rounding), found
    assert found.precision == ("bfloat16" if is_rounding else "float32")
    explained = found.explanation and (found.explanation.variant, found.explanation.activation, found.explanation.order)
    assert explained == EXPLAINED.get(lie), found
    told = " ".join((found.reason, *found.notes))
    assert ("the tokenizer gives other IDs for 1 of 32 inputs" in told) is lie.startswith("other tokenizer")


def test_bfloat16_is_different_where_an_engine_says_that_it_computes_in_float32(
    card: Path, answers: dict[str, Any], tmp_path: Path
) -> None:
    assert judged_by_card(card, tmp_path, answers["bfloat16"], dtype="float32").same is False
    assert judged_by_card(card, tmp_path, {**answers["bfloat16"], "dtype": "float32"}).same is False


def test_no_alternative_of_a_card_gets_another_name(card: Path, tmp_path: Path) -> None:
    for item in json.loads(card.read_text())["alternatives"]:
        found = judged_by_card(card, tmp_path, {"logits": item["logits"]})
        assert found.same is False, item["name"]
        if found.explanation is not None:
            assert found.explanation.variant == item["name"], found
        elif "gelu" in item["name"]:  # both forms of it are within the tolerance of each other
            assert found.reason == "several explanations fit"
        else:  # the first token reads itself alone
            assert item["name"] == "with a causal mask" and "hardly differ" in found.reason, found
