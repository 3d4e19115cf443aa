"""`edit` that only renames classes: no weight is rewritten, and bytes and names are the proof."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

import headscope
from headscope.copies.facts import EditedLabel, LabelOrigin
from headscope.copies.proving import ProofTask, prove_here
from headscope.slices.edit import checkpoint_edit
from tests.editing.ending import disturb
from tests.edits import edit_json

NAMES = ("negative", "positive")
pytestmark = pytest.mark.usefixtures("proofs_apart")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small BERT of the usual layout, whose structure headscope ships."""
    config = transformers.BertConfig(vocab_size=99, hidden_size=128, num_hidden_layers=2, num_attention_heads=2)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "source")
    return tmp_path / "source"


def test_a_rename_rewrites_no_weights(source: Path, tmp_path: Path) -> None:
    found = headscope.edit(source, tmp_path / "new", labels=NAMES)
    assert found.verdict.value == "proven" and found.tensors == ()
    assert found.proof.holds and found.proof.kept_rows_equal and found.proof.inputs == 0
    weights = [(folder / "model.safetensors").read_bytes() for folder in (source, tmp_path / "new")]
    assert weights[0] == weights[1]
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path / "new"))
    assert {name for name in before | after if before.get(name) != after.get(name)} == {"id2label", "label2id"}
    model, info = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "new", output_loading_info=True)
    assert model.config.id2label == dict(enumerate(NAMES)) and not info["missing_keys"]
    assert "the record no longer fits" not in str(headscope.inspect(tmp_path / "new"))


def test_a_rename_needs_no_torch(source: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from headscope.shell import main; assert main(sys.argv[1:]) == 0;"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'transformers')))"
    )
    arguments = ["edit", str(source), "-o", str(tmp_path / "new"), "--labels", ",".join(NAMES), "-q"]
    environment = os.environ | {"HEADSCOPE_NO_CACHE": "", "HEADSCOPE_CACHE": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, env=environment)


@pytest.mark.parametrize("at", [-1, -(1 << 18)])
def test_a_byte_that_changed_refuses_the_rename(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    def damage(old: Path, new: Path, *_: Any) -> None:
        data = bytearray((new / "model.safetensors").read_bytes())
        data[at] ^= 1
        (new / "model.safetensors").write_bytes(data)

    disturb(monkeypatch, checkpoint_edit, "copy_files", damage)
    found = headscope.edit(source, tmp_path / "new", rename={"LABEL_0": "negative"})
    assert found.verdict.value == "refused" and found.proof.base_unchanged is False
    assert not (tmp_path / "new").exists()


def test_names_that_the_result_lacks_refuse_the_rename(source: Path, tmp_path: Path) -> None:
    headscope.edit(source, tmp_path / "new", labels=NAMES)
    labels = tuple(EditedLabel(name, LabelOrigin.KEPT, at, name) for at, name in enumerate(("negative", "neutral")))
    task = ProofTask(
        str(source), str(tmp_path / "new"), "BertForSequenceClassification", labels, (), 1.0, is_default_class=True
    )
    assert prove_here(task).proof.reason == "the result names other classes"
    edit_json(tmp_path / "new" / "config.json", {"hidden_act": "relu"})
    # Another setting may change the scores: they are compared, as after any other edit.
    named = tuple(replace(item, name=name) for item, name in zip(labels, NAMES, strict=True))
    changed = prove_here(replace(task, labels=named))
    assert changed.proof.inputs > 0
