"""Saves of wrapped models: their keys carry the names of the wrappers."""

from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file, save_model
from states.table.entry import Made, entry
from states.table.small import classifier, configured, one_process
from torch import nn

_DDP = "DistributedDataParallel or DataParallel"
BIN, SAFE = "pytorch_model.bin", "model.safetensors"


def _save(state: Any, path: Path) -> None:
    if path.suffix == ".bin":
        torch.save(state, path)
    else:
        save_file({key: value.clone() for key, value in state.items()}, path, metadata={"format": "pt"})


def _ddp(family: str, file: str) -> None:
    how = "torch.save" if file == BIN else "safetensors.torch.save_file"

    @entry(
        f"{family} in DistributedDataParallel, {file}",
        "HS802",
        f"{how}(DistributedDataParallel(model).state_dict(), ...)",
        tool=_DDP,
    )
    def make(folder: Path) -> Made:
        model = classifier(family)
        with one_process(folder):
            _save(nn.parallel.DistributedDataParallel(model).state_dict(), configured(model, folder) / file)
        return Made(model)


for _family, _file in (("bert", BIN), ("gpt2", SAFE), ("vit", BIN), ("wav2vec2", SAFE)):
    _ddp(_family, _file)


@entry(
    "roberta in DataParallel, shards of safetensors",
    "HS802",
    "huggingface_hub.save_torch_state_dict(DataParallel(model).state_dict(), ..., max_shard_size='20KB')",
    needs=("torch", "huggingface_hub"),
    tool=_DDP,
)
def _roberta(folder: Path) -> Made:
    model = classifier("roberta")
    save_torch_state_dict(nn.DataParallel(model).state_dict(), configured(model, folder), max_shard_size="20KB")
    assert list(folder.glob("*.index.json"))
    return Made(model)


@entry(
    "distilbert in DataParallel, shards of torch.save",
    "HS802",
    "huggingface_hub.save_torch_state_dict(DataParallel(model).state_dict(), ..., safe_serialization=False)",
    needs=("torch", "huggingface_hub"),
    tool=_DDP,
)
def _distilbert(folder: Path) -> Made:
    model = classifier("distilbert")
    state = nn.DataParallel(model).state_dict()
    configured(model, folder)
    save_torch_state_dict(
        state, folder, filename_pattern="pytorch_model{suffix}.bin", max_shard_size="20KB", safe_serialization=False
    )
    assert list(folder.glob("*.index.json"))
    return Made(model)


@entry("deberta-v2 compiled", "HS802", "torch.save(torch.compile(model).state_dict(), ...)", tool="torch.compile")
def _deberta(folder: Path) -> Made:
    model = classifier("deberta-v2")
    torch.save(torch.compile(model).state_dict(), configured(model, folder) / BIN)
    return Made(model)


@entry(
    "vit compiled, safetensors",
    "HS802",
    "safetensors.torch.save_model(torch.compile(model), ...)",
    tool="torch.compile",
)
def _vit(folder: Path) -> Made:
    model = classifier("vit")
    save_model(torch.compile(model), str(configured(model, folder) / SAFE))
    return Made(model)


@entry(
    "llama with compiled layers",
    "HS802",
    "torch.save(accelerate.utils.compile_regions(model).state_dict(), ...)",
    needs=("torch", "accelerate"),
    tool="torch.compile",
)
def _llama(folder: Path) -> Made:
    from accelerate.utils import compile_regions

    model = classifier("llama")
    torch.save(compile_regions(model).state_dict(), configured(model, folder) / BIN)
    return Made(classifier("llama"))


@entry(
    "distilbert compiled, then in DistributedDataParallel",
    "HS802",
    "torch.save(DistributedDataParallel(torch.compile(model)).state_dict(), ...)",
    tool=f"torch.compile; {_DDP}",
)
def _both(folder: Path) -> Made:
    model = classifier("distilbert")
    with one_process(folder):
        wrapped = nn.parallel.DistributedDataParallel(torch.compile(model))
        torch.save(wrapped.state_dict(), configured(model, folder) / BIN)
    return Made(model)


@entry(
    "electra in DistributedDataParallel, then compiled",
    "HS802",
    "torch.save(torch.compile(DistributedDataParallel(model)).state_dict(), ...)",
    tool=f"torch.compile; {_DDP}",
)
def _both_turned(folder: Path) -> Made:
    model = classifier("electra")
    with one_process(folder):
        wrapped = torch.compile(nn.parallel.DistributedDataParallel(model))
        torch.save(wrapped.state_dict(), configured(model, folder) / BIN)
    return Made(model)


class Holder(nn.Module):
    """A module of one's own that holds the model, and a weight that is not the model's."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.net = model
        self.temperature = nn.Parameter(torch.ones(1))


@entry(
    "gpt2 inside a module of one's own",
    "HS802",
    "torch.save(Holder(model).state_dict(), ...), self.net = model",
    tool="another module that holds the model as `self.net`",
)
def _holder(folder: Path) -> Made:
    model = classifier("gpt2")
    torch.save(Holder(model).state_dict(), configured(model, folder) / BIN)
    return Made(model)


class _OwnClassifier(nn.Module):
    """A base model under another name, beside a classifier of the usual name."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.backbone = model.roberta
        self.classifier = model.classifier


@entry(
    "roberta as the backbone of a class of one's own",
    "HS802",
    "torch.save(own.state_dict(), ...), self.backbone = AutoModel, self.classifier",
    tool="another module that holds the model as `self.backbone`",
)
def _backbone(folder: Path) -> Made:
    model = classifier("roberta")
    torch.save(_OwnClassifier(model).state_dict(), configured(model, folder) / BIN)
    return Made(model)


@entry("bert averaged", "HS802", "torch.save(torch.optim.swa_utils.AveragedModel(model).state_dict(), ...)", tool=_DDP)
def _averaged(folder: Path) -> Made:
    model = classifier("bert")
    torch.save(torch.optim.swa_utils.AveragedModel(model).state_dict(), configured(model, folder) / BIN)
    return Made(model)


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
    _save(state, configured(model, folder) / SAFE)
    torch.save(state, folder / BIN)
    return Made(model)


@entry(
    "bert unwrapped by accelerate",
    "clean",
    "accelerator.unwrap_model(model).save_pretrained(...)",
    needs=("torch", "accelerate"),
    exits=(0, 0),
)
def _unwrapped(folder: Path) -> Made:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(classifier("bert"))
    accelerator.unwrap_model(model).save_pretrained(folder, state_dict=accelerator.get_state_dict(model))
    return Made(classifier("bert"))
