"""The faults that were seen in engines, found from the card alone: without the checkpoint, without PyTorch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serving.cards.making import FAULTS, engine_logits, load_model, save_checkpoint

import headscope
from headscope.shared.serving.served_facts import ServedScores

Written = Callable[[str], tuple[str, Path]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The checkpoint and the card of a fault; those with the same settings share them."""
    made: dict[str, tuple[str, Path]] = {}

    def write(fault: str) -> tuple[str, Path]:
        family, settings, *_ = FAULTS[fault]
        key = f"{family} {settings}"
        if key not in made:
            folder = tmp_path_factory.mktemp(family)
            checkpoint = save_checkpoint(family, folder / "model", **settings)
            headscope.write_card(checkpoint, folder / "card.json")
            made[key] = checkpoint, folder / "card.json"
        return made[key]

    return write


def compared(card: Path, logits: Any, name: str = "logits") -> ServedScores:
    scores = card.with_name("scores.json")
    scores.write_text(json.dumps({name: logits}))
    return headscope.verify_card(card, scores=scores).served


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_an_engine_is_named_from_the_card(fault: str, written: Written) -> None:
    _, _, read, forward, name = FAULTS[fault]
    checkpoint, card = written(fault)
    document = json.loads(card.read_text())
    right = compared(card, engine_logits(document, load_model(checkpoint)))
    if fault == "a causal mask left out":  # the first token then reads itself alone, and all texts have one score
        assert right.same is None and "hardly differ" in right.reason
    else:
        assert (right.same, right.precision) == (True, "float32"), right
    found = compared(card, engine_logits(document, load_model(checkpoint, **read), forward))
    assert found.same is False, found
    assert found.explanation is not None, found
    assert (found.explanation.variant, found.explanation.activation) == (name, "none")
