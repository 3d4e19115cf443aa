"""Engines in half precision, right ones and wrong ones, judged from the card by headscope and by the readers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from serving.cards.making import Program, Row, engine_logits, judged_by_card, softmax
from serving.classifiers import as_it_is, hidden_states, load_model

PASS, FAIL, OPEN = 0, 1, 3
VERDICTS = {True: PASS, False: FAIL, None: OPEN}
Finish = Callable[[list[Row]], list[Row]]


def last_token(model: Any, given: Any) -> torch.Tensor:
    last = hidden_states(model, given)[:, int(given["attention_mask"][0].nonzero().max())]
    return torch.as_tensor(model.classifier(model.bert.pooler.dense(last).tanh()))


ENGINES: dict[str, tuple[dict[str, Any], Callable[[Any, Any], torch.Tensor], Finish, int, str]] = {
    "right": ({}, as_it_is, softmax, PASS, ""),
    "right, with another attention": ({"attn_implementation": "eager"}, as_it_is, softmax, OPEN, ""),
    "the last token": ({}, last_token, softmax, OPEN, ""),  # moves the scores by less than four times the rounding
    "another order": ({}, as_it_is, lambda rows: [row[::-1] for row in softmax(rows)], FAIL, "softmax"),
    "softmax twice": ({}, as_it_is, lambda rows: softmax(softmax(rows)), FAIL, "softmax of softmax"),
    "no softmax": ({}, as_it_is, lambda rows: rows, FAIL, "none"),
    "half of the logits": ({}, as_it_is, lambda rows: softmax([[one / 2 for one in row] for row in rows]), FAIL, ""),
}
"""Settings of the model, what it computes, what is put on the logits, the verdict, and the function to be named."""


@pytest.fixture(scope="module")
def answers(checkpoint: str, card: Path) -> dict[str, list[Row]]:
    """What each engine gives in bfloat16."""
    document, found = json.loads(card.read_text()), {}
    for name, (settings, forward, finish, *_) in ENGINES.items():
        model = load_model(checkpoint, dtype=torch.bfloat16, **settings)
        found[name] = finish(engine_logits(document, model, forward))
    return found


def test_a_reader_judges_half_precision_by_its_rounding(
    reader: Program, card: Path, answers: dict[str, list[Row]], tmp_path: Path
) -> None:
    scores = tmp_path / "scores.json"
    for name, rows in answers.items():
        scores.write_text(json.dumps(rows))
        code, line = reader(card, scores, "bfloat16")
        assert code == ENGINES[name][3], (name, line)
        assert (": rounding of bfloat16, or slightly other weights" in line) is (code == OPEN), line
        assert reader(card, scores, "float32")[0] == FAIL, name


@pytest.mark.parametrize("dtype", ["", "bfloat16"])
@pytest.mark.parametrize("engine", ENGINES)
def test_headscope_names_functions_and_orders_in_half_precision(
    engine: str, dtype: str, card: Path, answers: dict[str, list[Row]], tmp_path: Path
) -> None:
    found = judged_by_card(card, tmp_path, {"scores": answers[engine], "dtype": dtype or None})
    *_, code, function = ENGINES[engine]
    assert VERDICTS[found.same] == code, found
    named = found.explanation and (found.explanation.variant, found.explanation.activation, found.explanation.order)
    order = (2, 1, 0) if engine == "another order" else (0, 1, 2)
    assert named == (("as it is", function, order) if function else None), found
    if function or code == PASS:
        assert found.precision == "bfloat16"
