"""docs/changes.md: what differs between the heads of two versions, from the data that is kept of each."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from transformers import BioGptConfig, BioGptForSequenceClassification

from scripts.pages import write_changes as script

ROOT = Path(__file__).parents[2]

HEAD = {
    "kind": "first_token", "rule": "first position", "formula": "logits = classifier(h[CLS])", "loss": "none",
    "positions": [{"where": "index", "index": 0, "token": "[CLS]", "of": [{"text": "h", "layer": -1}]}],
    "parameters": {"classifier.weight": [2, "hidden"]}, "not used": [],
}  # fmt: skip


def row_of(**change: object) -> str:
    """The row of the table for one head that changed, or "" where there is none."""
    page = script.changes_page({"5.1": {"Some": HEAD}, "5.2": {"Some": HEAD | change}})
    return next((line for line in page.splitlines() if line.startswith("| `Some`")), "")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, ""),
        ({"kind": "last_token", "rule": "last position"}, "positions | first position | last position |"),
        ({"rule": "where <s> is"}, ""),
        ({"formula": "logits = classifier(h[<s>])"}, ""),
        ({"formula": "logits = fc(a | b)"}, "formula | `logits = classifier(h[CLS])` | `logits = fc(a \\| b)` |"),
        ({"formula": ""}, ""),
        ({"kind": "other", "rule": "by a rule not recognized"}, ""),
        (
            {"parameters": {"classifier.weight": [3, "hidden"]}},
            "parameters | `classifier.weight 2xhidden` | `classifier.weight 3xhidden` |",
        ),
        ({"not used": ["classifier.weight"]}, "parameters without effect | none | `classifier.weight` |"),
        ({"loss": ""}, "loss | none | not determined |"),
    ],
)
def test_a_change_of_a_head_is_a_row(change: dict[str, object], told: str) -> None:
    assert row_of(**change) == (f"| `Some` | {told}" if told else "")


def test_classes_that_come_and_go_are_listed() -> None:
    gone, failed = {"Old": HEAD}, {"reason": "it fails"}
    page = script.changes_page(
        {"5.1": gone | {"Mended": failed, "Broken": HEAD}, "5.2": {"Mended": HEAD, "Broken": failed}}
    )
    assert "### Traced in 5.2, not in 5.1\n\n- `Mended`: in 5.1, it fails" in page
    assert "### Traced in 5.1, not in 5.2\n\n- `Broken`: in 5.2, it fails" in page
    assert "### Removed classes\n\n- `Old`" in page
    assert "New classes" not in page


def test_a_head_that_is_read_in_one_version_alone_is_listed() -> None:
    page = script.changes_page({"5.1": {"Some": HEAD | {"kind": "other"}}, "5.2": {"Some": HEAD}})
    assert "### Read in 5.2, not in 5.1\n\n- `Some`: `logits = classifier(h[CLS])`; first position" in page
    assert "No head changed" in page


def test_the_page_is_that_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--check"]) == 0
    assert capsys.readouterr().out.strip() == ""


def test_biogpt_reads_another_position_than_before_where_padding_is_on_the_left() -> None:
    """Until 2026 it took the position before the first pad token it counted; the page lists it as read since then."""
    assert "- `BioGptForSequenceClassification`: `logits = score(h)[last non-pad]`" in script.PAGE.read_text("utf-8")
    ids = torch.tensor([[1, 1, 5, 6, 7]])  # 1 is the pad token
    before = ids.ne(1).sum(-1) - 1
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = BioGptForSequenceClassification(BioGptConfig(vocab_size=9, pad_token_id=1, **sizes)).eval()
    with torch.no_grad():
        each = model.score(model.biogpt(ids).last_hidden_state)
        scores = model(ids).logits
    assert torch.allclose(scores, each[:, -1], atol=1e-6)
    assert not torch.allclose(scores, each[:, int(before)], atol=1e-6)
    data = json.loads((script.PAGE.parent / "versions" / f"{transformers.__version__}.json").read_text("utf-8"))
    assert data["BioGptForSequenceClassification"]["kind"] == "last_non_pad_token"
