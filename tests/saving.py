"""Checkpoints on disk in every format that `from_pretrained` reads, written from a model."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from safetensors.torch import save_file
from transformers import PreTrainedModel

from headscope.facts import WeightDiff


def save_state(state: dict[str, torch.Tensor], path: Path) -> None:
    """A state dict in a file of the format that its name says."""
    if path.suffix == ".safetensors":
        save_file({key: value.clone() for key, value in state.items()}, path, metadata={"format": "pt"})
    else:
        torch.save(state, path)


def save_safetensors(model: PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(folder)


def save_sharded_safetensors(model: PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(folder, max_shard_size="20KB")
    assert (folder / "model.safetensors.index.json").exists()


def save_torch_zip(model: PreTrainedModel, folder: Path) -> None:
    model.config.save_pretrained(folder)
    torch.save(dict(model.state_dict()), folder / "pytorch_model.bin")


def save_torch_older_zip(model: PreTrainedModel, folder: Path) -> None:
    """The zip layout of PyTorch 1.6: only `data.pkl`, `data/*` and `version`, under `archive/`."""
    save_torch_zip(model, folder)
    path = folder / "pytorch_model.bin"
    with zipfile.ZipFile(path) as archive:
        members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as older:
        for name, content in members.items():
            if name in {"data.pkl", "version"} or name.startswith("data/"):
                older.writestr(f"archive/{name}", content)


def save_torch_legacy(model: PreTrainedModel, folder: Path) -> None:
    """The format before zip: a row of pickles, then the raw storages."""
    model.config.save_pretrained(folder)
    torch.save(dict(model.state_dict()), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def save_sharded_torch(model: PreTrainedModel, folder: Path) -> None:
    model.config.save_pretrained(folder)
    items = list(model.state_dict().items())
    half = len(items) // 2
    weight_map: dict[str, str] = {}
    for number, part in enumerate((items[:half], items[half:]), start=1):
        name = f"pytorch_model-0000{number}-of-00002.bin"
        torch.save(dict(part), folder / name)
        weight_map |= dict.fromkeys((key for key, _ in part), name)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index), encoding="utf-8")


FORMATS: dict[str, Callable[[PreTrainedModel, Path], None]] = {
    "safetensors": save_safetensors,
    "sharded-safetensors": save_sharded_safetensors,
    "torch-zip": save_torch_zip,
    "torch-older-zip": save_torch_older_zip,
    "torch-legacy": save_torch_legacy,
    "sharded-torch": save_sharded_torch,
}


def assert_as_loaded(found: WeightDiff, info: dict[str, Any]) -> None:
    """The diff is what a real load tells, with `output_loading_info=True` and `ignore_mismatched_sizes=True`."""
    assert set(found.new) == set(info["missing_keys"])
    assert set(found.unused) == set(info["unexpected_keys"])
    mismatched = {(item.parameter, item.checkpoint_shape, item.model_shape) for item in found.mismatched}
    assert mismatched == {(name, tuple(one), tuple(other)) for name, one, other in info["mismatched_keys"]}


def skip_without_native_adapters() -> None:
    """Skips a test where Transformers refuses to add adapters with the PEFT that is installed."""
    peft = pytest.importorskip("peft")
    from transformers.integrations import peft as of_transformers

    needed = getattr(of_transformers, "MIN_PEFT_VERSION", "0")
    if Version(peft.__version__) < Version(needed):
        pytest.skip(f"this Transformers adds adapters with PEFT {needed} or later")
