"""What the tests of repairs share: models that their seeds tell apart, and states in which they are stored."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from headscope.shell.app import main
from tests.editing.checkpoints import load_whole
from tests.edits import State
from tests.families import FAMILIES

_LABELS = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}


def model_of(seed: int) -> Any:
    """A model whose values are those of its seed alone: `build` has a seed too, which is always the same."""
    model = FAMILIES["bert"].build("BertForSequenceClassification", **_LABELS)
    torch.manual_seed(seed)
    with torch.no_grad():
        for item in model.parameters():
            item.add_(torch.randn(item.shape))
    return model


def state_of(seed: int, prefix: str = "") -> State:
    return {f"{prefix}{key}": value.clone() for key, value in model_of(seed).state_dict().items()}


def configured(folder: Path) -> Path:
    """A folder with the configuration of these models, and no weights."""
    model_of(0).config.save_pretrained(folder)
    return folder


def save(state: Any, path: Path) -> None:
    if path.suffix == ".safetensors":
        save_file(state, path, metadata={"format": "pt"})
    else:
        torch.save(state, path)


def save_ranks(folder: Path, *states: State, **beside: Any) -> Path:
    """What DeepSpeed saves, a file for each model-parallel rank."""
    step = folder / "global_step2"
    step.mkdir(parents=True)
    for rank, state in enumerate(states):
        save({"module": state, "ds_version": "0.19.8", **beside}, step / f"mp_rank_{rank:02d}_model_states.pt")
    return step


def save_peft_state(folder: Path) -> Path:
    """The whole state dict of a PEFT model, from which PEFT's settings are lost."""
    query = "base_model.model.bert.encoder.layer.0.attention.self.query"
    state = state_of(3, "base_model.model.")
    state[f"{query}.base_layer.weight"] = state.pop(f"{query}.weight")
    state[f"{query}.lora_A.default.weight"] = torch.ones(4, 32)
    save(state, configured(folder) / "pytorch_model.bin")
    return folder


def documents(capsys: Any, *arguments: str) -> tuple[int, Any]:
    """The exit code and the JSON document of a command."""
    capsys.readouterr()
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def loads(folder: Path, state: State) -> None:
    """The real load finds every tensor of a model, and no other."""
    real = load_whole("BertForSequenceClassification", folder).state_dict()
    assert real.keys() == state.keys() and all(torch.equal(real[name], value) for name, value in state.items())
