"""Saves of wrapped models: their keys carry the names of the wrappers."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_model
from states.table.entry import Made, entry
from states.table.small import classifier, configured, one_process
from torch import nn

from tests.saving import save_state

_DDP = "DistributedDataParallel or DataParallel"
BIN, SAFE = "pytorch_model.bin", "model.safetensors"


class Holder(nn.Module):
    """A module of one's own that holds the model, and a weight that is not the model's."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.net = model
        self.temperature = nn.Parameter(torch.ones(1))


class OwnClassifier(nn.Module):
    """A base model under another name, beside a classifier of the usual name."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.backbone = model.base_model
        self.classifier = model.classifier


def _with_compiled_layers(model: nn.Module) -> nn.Module:
    from accelerate.utils import compile_regions

    return compile_regions(model)


def _in_shards(wrapped: nn.Module, folder: Path, **options: Any) -> None:
    save_torch_state_dict(wrapped.state_dict(), folder, max_shard_size="20KB", **options)
    assert list(folder.glob("*.index.json"))


def _in_file(name: str) -> Callable[[nn.Module, Path], None]:
    return lambda wrapped, folder: save_state(wrapped.state_dict(), folder / name)


_IN_BIN = _in_file(BIN)


def _wrapped(
    title: str, code: str, wrap: Callable[[Any], nn.Module], save: Callable[[nn.Module, Path], None] = _IN_BIN,
    *, tool: str, needs: tuple[str, ...] = ("torch",),
) -> None:  # fmt: skip
    """A model of the family that the title begins with, saved from inside a wrapper."""

    @entry(title, "HS802", code, needs=needs, tool=tool)
    def make(folder: Path) -> Made:
        family = title.partition(" ")[0]
        model = classifier(family)
        with one_process(folder):
            save(wrap(model), configured(model, folder))
        return Made(classifier(family))


_ddp, _compiled = nn.parallel.DistributedDataParallel, torch.compile
for _family, _file in (("bert", BIN), ("gpt2", SAFE), ("vit", BIN), ("wav2vec2", SAFE)):
    _how = "torch.save" if _file == BIN else "safetensors.torch.save_file"
    _wrapped(
        f"{_family} in DistributedDataParallel, {_file}",
        f"{_how}(DistributedDataParallel(model).state_dict(), ...)", _ddp,
        _in_file(_file), tool=_DDP,
    )  # fmt: skip
_SHARDED = {"needs": ("torch", "huggingface_hub"), "tool": _DDP}
_OF_HUB = "huggingface_hub.save_torch_state_dict(DataParallel(model).state_dict(), ..., "
_wrapped(
    "roberta in DataParallel, shards of safetensors", f"{_OF_HUB}max_shard_size='20KB')", nn.DataParallel, _in_shards,
    **_SHARDED,
)  # fmt: skip
_wrapped(
    "distilbert in DataParallel, shards of torch.save", f"{_OF_HUB}safe_serialization=False)", nn.DataParallel,
    partial(_in_shards, filename_pattern="pytorch_model{suffix}.bin", safe_serialization=False), **_SHARDED,
)  # fmt: skip
_wrapped("deberta-v2 compiled", "torch.save(torch.compile(model).state_dict(), ...)", _compiled, tool="torch.compile")
_wrapped(
    "vit compiled, safetensors", "safetensors.torch.save_model(torch.compile(model), ...)", _compiled,
    lambda wrapped, folder: save_model(wrapped, str(folder / SAFE)), tool="torch.compile",
)  # fmt: skip
_wrapped(
    "llama with compiled layers", "torch.save(accelerate.utils.compile_regions(model).state_dict(), ...)",
    _with_compiled_layers, needs=("torch", "accelerate"), tool="torch.compile",
)  # fmt: skip
_wrapped(
    "distilbert compiled, then in DistributedDataParallel",
    "torch.save(DistributedDataParallel(torch.compile(model)).state_dict(), ...)",
    lambda model: _ddp(_compiled(model)), tool=f"torch.compile; {_DDP}",
)  # fmt: skip
_wrapped(
    "electra in DistributedDataParallel, then compiled",
    "torch.save(torch.compile(DistributedDataParallel(model)).state_dict(), ...)",
    lambda model: _compiled(_ddp(model)), tool=f"torch.compile; {_DDP}",
)  # fmt: skip
_wrapped(
    "gpt2 inside a module of one's own", "torch.save(Holder(model).state_dict(), ...), self.net = model", Holder,
    tool="another module that holds the model as `self.net`",
)  # fmt: skip
_wrapped(
    "roberta as the backbone of a class of one's own",
    "torch.save(own.state_dict(), ...), self.backbone = AutoModel, self.classifier", OwnClassifier,
    tool="another module that holds the model as `self.backbone`",
)  # fmt: skip
_wrapped(
    "bert averaged", "torch.save(torch.optim.swa_utils.AveragedModel(model).state_dict(), ...)",
    torch.optim.swa_utils.AveragedModel, tool=_DDP,
)  # fmt: skip


@entry(
    "bert in DistributedDataParallel, a whole .bin beside it",
    "HS802",
    "save_file(DistributedDataParallel(model).state_dict(), 'model.safetensors') beside an old pytorch_model.bin",
    tool=_DDP,
)
def _beside(folder: Path) -> Made:
    model = classifier("bert")
    with one_process(folder):
        state = nn.parallel.DistributedDataParallel(model).state_dict()
    save_state(state, configured(model, folder) / SAFE)
    torch.save(state, folder / BIN)
    return Made(model)


@entry(
    "bert unwrapped by accelerate",
    "clean",
    "accelerator.unwrap_model(model).save_pretrained(...)",
    needs=("torch", "accelerate"),
)
def _unwrapped(folder: Path) -> Made:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(classifier("bert"))
    accelerator.unwrap_model(model).save_pretrained(folder, state_dict=accelerator.get_state_dict(model))
    return Made(classifier("bert"))
