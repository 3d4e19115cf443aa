"""Loaders whose library has changed, and wrappers whose heads are stored beside a model."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import headscope
from headscope.core.upstream import loaders
from headscope.errors import Unsupported
from tests.families import FAMILIES


class _WithValueHead(nn.Module):
    """As TRL's wrapper has it: names of its own before the model's, and a head that is stored under its own name."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.pretrained_model = model
        self.v_head = nn.Linear(32, 1)


def test_a_model_beside_a_head_is_matched_by_its_own_names(tmp_path: Path) -> None:
    family = FAMILIES["gpt2"]
    model = family.build(family.classifier, **family.pad_token)
    wrapper = _WithValueHead(model)
    model.config.save_pretrained(tmp_path)
    state = dict(model.state_dict()) | {f"v_head.{name}": value for name, value in wrapper.v_head.state_dict().items()}
    save_file({key: value.clone() for key, value in state.items()}, tmp_path / "model.safetensors", {"format": "pt"})
    found = headscope.verify(wrapper, tmp_path, offline=True)
    assert not [item.id for item in found.findings if item.id in ("HS705", "HS706", "HS707")], str(found)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    found = headscope.verify(wrapper, tmp_path, offline=True)
    assert {"HS701", "HS705"} & {item.id for item in found.findings}


def test_a_library_without_the_class_is_named_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trl", ModuleType("trl"))
    monkeypatch.setattr(loaders, "version", lambda name: "1.16.0")
    with pytest.raises(Unsupported, match=r"trl 1\.16\.0 has no AutoModelForCausalLMWithValueHead"):
        loaders.load_with("trl", loaders.LoadRequest("nowhere", {}, {}))
