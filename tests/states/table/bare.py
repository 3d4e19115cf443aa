"""Weights without a config.json: accelerate's `save_state` and `save_model`, and state dicts of one's own."""

from pathlib import Path
from typing import Any

import torch
from states.table.entry import Made, entry
from states.table.small import classifier, stepped
from states.table.wrapped import BIN, SAFE

from tests.saving import save_state

_HEADS = (
    (r"(num_attention_heads|n_heads?)=\d+", r"\1=4"),
    (r"(GPT2Config\(.*)\*\*assumed\)", r"\1**(assumed | {'pad_token_id': 0}))"),
)
"""What a reader sets: numbers of heads, and the token that pads."""


def bare(model: Any, **rest: Any) -> Made:
    """The save of a model whose sizes a reader of the repair fills in where no shape tells them."""
    config = model.config
    heads = next(name for name in ("num_attention_heads", "n_heads", "n_head") if name in config.to_dict())
    pad = ("--set", "pad_token_id=0") if config.model_type == "gpt2" else ()
    return Made(model, filled=_HEADS, given=("--set", f"{heads}=4", *pad, "--defaults"), **rest)


def _accelerated(family: str, code: str) -> None:
    """What a call leaves, as it is written, where `accelerator`, `model` and `folder` have those names."""

    @entry(f"{family} by accelerate, {code}", "HS809", code, needs=("torch", "accelerate"))
    def make(folder: Path) -> Made:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        model = classifier(family)
        optimizer = torch.optim.AdamW(model.parameters())
        prepared, optimizer = accelerator.prepare(model, optimizer)
        stepped(prepared, optimizer)
        eval(code, {"accelerator": accelerator, "model": prepared, "folder": folder})
        return bare(model)


_accelerated("bert", "accelerator.save_state(folder)")
_accelerated("distilbert", "accelerator.save_state(folder, safe_serialization=False)")
_accelerated("roberta", "accelerator.save_model(model, folder)")
_accelerated("electra", "accelerator.save_model(model, folder, max_shard_size='20KB')")


def _alone(family: str, file: str, code: str, prefix: str = "") -> None:
    @entry(f"{family} without config.json, {file}{prefix and f', keys begin with {prefix}'}", "HS809", code)
    def make(folder: Path) -> Made:
        model = classifier(family)
        save_state({f"{prefix}{key}": value for key, value in model.state_dict().items()}, folder / file)
        return bare(model)


_alone("gpt2", SAFE, "safetensors.torch.save_file(model.state_dict(), ...)")
_alone("vit", BIN, "torch.save(model.state_dict(), ...)")
_alone("deberta-v2", "weights.pt", "torch.save(model.state_dict(), 'weights.pt')")
_alone("bert", BIN, "torch.save(DataParallel(model).state_dict(), ...)", "module.")
_alone("distilbert", "model.pth", "torch.save(compiled.state_dict(), 'model.pth')", "_orig_mod.")
