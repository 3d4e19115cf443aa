"""A small engine in the language of each reader, right and with seeded bugs, judged from the card alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from serving.cards.making import Program, engine_logits
from serving.classifiers import load_model

import headscope
from headscope.shell.app import main

DOCS = Path(__file__).parents[3] / "docs" / "card.md"
HONEST = ""
IN_ORDER = (0, 1, 2)
BUGS: dict[str, tuple[str, tuple[int, ...]]] = {
    "no pooler": ("without dense and tanh", IN_ORDER),
    "no tanh": ("without tanh", IN_ORDER),
    "last token": ("last token that is not padding", IN_ORDER),
    "mean of the tokens": ("mean over the tokens that are not padding", IN_ORDER),
    "segments ignored": ("segment IDs 0", IN_ORDER),
    "labels in another order": ("as it is", (2, 1, 0)),
    "mask ignored": ("", ()),
    "tanh GELU": ("", ()),
    "sigmoid GELU": ("", ()),
}
"""Each bug of the engines, with the name and the order of the classes that are to be found; "" where it stays open."""


@pytest.fixture(scope="module")
def own_scores(checkpoint: str, card: Path) -> Any:
    """What Transformers gives for the inputs of the card."""
    return torch.tensor(engine_logits(json.loads(card.read_text()), load_model(checkpoint))).softmax(1).numpy()


@pytest.fixture
def engine(language: str, built: Callable[[str], Program]) -> Program:
    return built(f"engine.{language}")


@pytest.mark.parametrize("bug", [HONEST, *BUGS], ids=lambda bug: bug or "honest")
def test_a_bug_is_found_in_its_language(
    bug: str, engine: Program, reader: Program, checkpoint: str, card: Path, *, own_scores: Any, tmp_path: Path
) -> None:
    scores = tmp_path / "scores.json"
    assert engine(checkpoint, card, scores, bug)[0] == 0
    off = float(np.abs(np.asarray(json.loads(scores.read_text())["scores"]) - own_scores).max())
    code, line = reader(card, scores)
    assert main(["verify", "--card", str(card), "--scores", str(scores)]) == code
    found = headscope.verify_card(card, scores=scores).served
    if bug == HONEST:
        assert off < 1e-5 and code == 0 and line.startswith("PASS") and found.same is True, (off, line, found)
        return
    name, order = BUGS[bug]
    cause = f"{name}, then softmax" if name else "cause not in the card"
    cause += "" if order in ((), IN_ORDER) else f", classes in the order {list(order)}"
    assert code == 1 and line.split(";")[0].strip().endswith(f": {cause}"), (off, line)
    explained = found.explanation and (found.explanation.variant, found.explanation.activation, found.explanation.order)
    assert found.same is False and explained == ((name, "softmax", order) if name else None), found


def test_the_page_has_the_table_of_the_bugs() -> None:
    rows = []
    for bug, (name, order) in BUGS.items():
        classes = "" if order in ((), IN_ORDER) else f", classes in the order {list(order)}"
        rows.append(f"| {bug} | {f'`{name}`' if name else 'other scores, no name'}{classes} |")
    assert "\n".join(["| bug | result |", "|---|---|", *rows, ""]) in DOCS.read_text(encoding="utf-8")
