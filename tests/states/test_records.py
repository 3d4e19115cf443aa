"""What a tool recorded of a training says which of several checkpoints is meant."""

from pathlib import Path
from typing import Any

import pytest
import torch

import headscope
from tests.families import FAMILIES
from tests.states.refusal import Model, refused
from tests.states.test_states_of_files import lightning_file


def test_the_only_whole_checkpoint_of_a_trainer_is_taken(model: Model, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "checkpoint-4")
    model.config.save_pretrained(tmp_path / "checkpoint-8")
    (tmp_path / "checkpoint-8" / "optimizer.pt").write_bytes(b"")
    found = refused(tmp_path)
    assert "only checkpoint-4 is complete" in found.evidence and "checkpoint-4" in found.repair.code


def lightning_record(best: str, step: int, monitor: str | None) -> Any:
    """What Lightning's ModelCheckpoint keeps in a file."""
    return {
        "global_step": step,
        "callbacks": {"ModelCheckpoint{}": {"monitor": monitor, "best_model_path": f"/r/{best}"}},
    }


@pytest.mark.parametrize(
    ("monitor", "steps", "other", "chosen"),
    [
        ("loss", (8, 12), "", "epoch=1.ckpt"),
        (None, (12, 12), "", "epoch=1.ckpt"),
        (None, (8, 12), "", ""),
        ("loss", (8, 12), "swa.pt", ""),
        ("gone", (8, 12), "", ""),
    ],
)
def test_the_record_in_the_latest_file_of_lightning_names_the_best(
    monitor: str | None, steps: tuple[int, int], other: str, chosen: str, tmp_path: Path
) -> None:
    model = FAMILIES["bert"].build(FAMILIES["bert"].classifier)
    model.config.save_pretrained(tmp_path)
    best = "epoch=0.ckpt" if monitor == "gone" else "epoch=1.ckpt"
    for name, step in zip(("epoch=1.ckpt", "last.ckpt"), steps, strict=True):
        torch.save(lightning_file(model) | lightning_record(best, step, monitor), tmp_path / name)
    if other:
        torch.save(model.state_dict(), tmp_path / other)
    (state, *_) = headscope.inspect(str(tmp_path), offline=True).checkpoint.states
    assert state.is_ambiguous is not bool(chosen)
    if chosen:
        assert state.candidates[0].take == chosen and f"names {chosen}" in state.evidence[-1]
