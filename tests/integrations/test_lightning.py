"""The callback for Lightning in real fits: healthy checkpoints pass, and each fault is caught."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import headscope
from headscope.errors import CheckFailed
from tests import warm
from tests.integrations.small import Texts, ids


def test_importing_headscope_imports_no_lightning() -> None:
    code = "import sys, headscope.integrations.trainer; assert not {'lightning', 'pytorch_lightning'} & {*sys.modules}"
    subprocess.run([*warm.python(anew=True), "-c", code], check=True)


pl: Any = pytest.importorskip("lightning.pytorch")


class Module(pl.LightningModule):  # type: ignore[misc]
    """A model of Transformers, trained by Lightning."""

    def __init__(self, model: Any, rate: float = 1e-2) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["model"])
        self.model = model

    def forward(self, **inputs: Any) -> Any:
        return self.model(**inputs)

    def training_step(self, batch: Any, index: int) -> Any:
        return self(**batch).loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW((item for item in self.parameters() if item.requires_grad), lr=self.hparams.rate)


class Dropping(Module):
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name in [name for name in checkpoint["state_dict"] if "classifier" in name]:
            del checkpoint["state_dict"][name]


class Renaming(Module):
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["state_dict"]
        checkpoint["state_dict"] = {name.replace("model.", "network.", 1): item for name, item in state.items()}


class Older(Module):
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["state_dict"] = {name: item - 1e-3 for name, item in checkpoint["state_dict"].items()}


def fitted(module: Any, folder: Path, callback: Any, *others: Any, **given: Any) -> Any:
    saving = pl.callbacks.ModelCheckpoint(dirpath=folder / "out", every_n_train_steps=1, save_top_k=-1)
    usual = {
        "max_steps": 3,
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
        "callbacks": [callback, *(others or (saving,))],
    }
    trainer = pl.Trainer(**(usual | given))
    trainer.fit(module, DataLoader(Texts(), batch_size=2))
    return trainer


def callback_for(**given: Any) -> Any:
    from headscope.integrations.lightning import HeadscopeCallback

    return HeadscopeCallback(**given)


def without_notes(callback: Any) -> list[str]:
    """The labels are not in a `.ckpt`, which is a note."""
    results = [*callback.saves, callback.trained]
    return [item.id for result in results for item in result.findings if item.severity.value != "note"]


def test_healthy_checkpoints_pass(model: Any, tmp_path: Path) -> None:
    callback = callback_for()
    trainer = fitted(Module(model), tmp_path, callback)
    assert len(callback.saves) == 3
    assert {result.verdict.value for result in callback.saves} == {"passed"}
    assert not without_notes(callback)
    assert callback.trained.verdict.value == "passed"
    stored = torch.load(trainer.checkpoint_callback.best_model_path or callback.saves[-1].reference, weights_only=True)
    assert "model.classifier.weight" in stored["state_dict"]


def test_the_default_checkpoint_at_the_end_passes(model: Any, tmp_path: Path) -> None:
    callback = callback_for()
    saving = pl.callbacks.ModelCheckpoint(dirpath=tmp_path / "out")
    fitted(Module(model), tmp_path, callback, saving, max_steps=-1, max_epochs=2)
    assert {result.verdict.value for result in callback.saves} == {"passed"}
    assert not without_notes(callback)


def test_a_checkpoint_by_hand_is_verified_by_one_call(model: Any, tmp_path: Path) -> None:
    module = Module(model)
    trainer = fitted(module, tmp_path, callback_for())
    trainer.save_checkpoint(tmp_path / "hand.ckpt")
    assert headscope.verify_save(module, tmp_path / "hand.ckpt").verdict.value == "passed"
    with torch.no_grad():
        model.classifier.bias += 1
    assert "HS713" in [item.id for item in headscope.verify_save(module, tmp_path / "hand.ckpt").findings]


@pytest.mark.parametrize(("kind", "rule"), [(Dropping, "HS711"), (Renaming, "HS712"), (Older, "HS713")])
def test_a_bad_checkpoint_fails_at_the_end(kind: Any, rule: str, model: Any, tmp_path: Path) -> None:
    callback = callback_for()
    with pytest.raises(CheckFailed, match=rule):
        fitted(kind(model), tmp_path, callback)
    assert len(callback.saves) == 3
    assert rule in ids(callback)


def test_a_frozen_head_is_named(model: Any, tmp_path: Path) -> None:
    model.classifier.requires_grad_(False)
    callback = callback_for(on_fail="warn")
    fitted(Module(model), tmp_path, callback)
    assert "HS718" in ids(callback)
    assert "requires_grad is False" in callback.trained.findings[0].message
