"""docs/changes.md: what differs between the heads of two versions, from the data that is kept of each."""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

script = import_module("write_changes")

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
        ({"rule": "where <s> is"}, "name of the token | first position | where &lt;s> is |"),
        ({"formula": "logits = classifier(h[<s>])"}, ""),
        ({"formula": ""}, "formula | `logits = classifier(h[CLS])` | no formula is printed |"),
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
    assert "### Traced in 5.2, not in 5.1\n\n- `Mended`: it fails" in page
    assert "### Traced in 5.1, not in 5.2\n\n- `Broken`: it fails" in page
    assert "### Removed classes\n\n- `Old`" in page
    assert "New classes" not in page


def test_the_page_is_that_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--check"]) == 0
    assert capsys.readouterr().out.strip() == ""


def test_a_change_that_transformers_made_is_on_the_page() -> None:
    """BioGPT looked for its last token by a rule of its own until 2026."""
    assert "| `BioGptForSequenceClassification` | positions |" in script.PAGE.read_text(encoding="utf-8")
    newest = json.loads((script.PAGE.parent / "versions" / "5.23.0.json").read_text(encoding="utf-8"))
    assert newest["BioGptForSequenceClassification"]["kind"] == "last_non_pad_token"
