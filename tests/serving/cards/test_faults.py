"""The faults that were seen in engines, found from the card alone: without the checkpoint, without PyTorch."""

import json
from pathlib import Path

import pytest
from serving.cards.making import FAULTS, engine_logits, judged_by_card, save_checkpoint
from serving.classifiers import load_model

import headscope


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_an_engine_is_named_from_the_card(fault: str, tmp_path: Path) -> None:
    family, settings, read, forward, name = FAULTS[fault]
    checkpoint, card = save_checkpoint(family, tmp_path / "model", **settings), tmp_path / "card.json"
    headscope.write_card(checkpoint, card)
    document = json.loads(card.read_text())
    right = judged_by_card(card, tmp_path, {"logits": engine_logits(document, load_model(checkpoint))})
    if fault == "a causal mask left out":  # the first token then reads itself alone, and all texts have one score
        assert right.same is None and "hardly differ" in right.reason
    else:
        assert (right.same, right.precision) == (True, "float32"), right
    logits = engine_logits(document, load_model(checkpoint, **read), forward)
    found = judged_by_card(card, tmp_path, {"logits": logits})
    assert found.same is False, found
    assert found.explanation is not None, found
    assert (found.explanation.variant, found.explanation.activation) == (name, "none")
