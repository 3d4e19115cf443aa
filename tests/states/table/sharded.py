"""Saves that are split: torch.distributed.checkpoint with and without FSDP2, DeepSpeed, the layouts of Megatron."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed.checkpoint as dcp
from states.table.entry import Made, entry
from states.table.processes import run
from states.table.small import classifier, configured, stepped
from torch.distributed.checkpoint.stateful import Stateful


@entry("vit by torch.distributed.checkpoint", "HS805", "dcp.save(model.state_dict(), checkpoint_id=folder)")
def _plain(folder: Path) -> Made:
    model = classifier("vit")
    dcp.save(model.state_dict(), checkpoint_id=configured(model, folder))
    return Made(model)


class _App(Stateful):
    """Model and optimizer as one thing that saves itself, as PyTorch's tutorial has it."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """What is saved."""
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing."""


@entry(
    "bert and its optimizer by torch.distributed.checkpoint, as a Stateful",
    "HS805",
    "dcp.save({'app': AppState(model, optimizer)}, checkpoint_id=folder)",
)
def _stateful(folder: Path) -> Made:
    model = classifier("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    stepped(model, optimizer)
    dcp.save({"app": _App(model, optimizer)}, checkpoint_id=configured(model, folder))
    return Made(model)


class Settings:
    """Objects of one's own beside the weights."""

    depth = 2


@entry(
    "gpt2 beside other objects, by torch.distributed.checkpoint",
    "HS805",
    "dcp.save({'model': model.state_dict(), 'settings': Settings(), 'path': Path('run')}, checkpoint_id=folder)",
    said=("loading it imports",),
)
def _objects(folder: Path) -> Made:
    model = classifier("gpt2")
    held = {"model": model.state_dict(), "settings": Settings(), "path": Path("run"), "epoch": 3}
    dcp.save(held, checkpoint_id=configured(model, folder))
    return Made(model)


def _by_processes(name: str, title: str, code: str, kind: str = "HS805", *, ranks: int = 2, **rest: Any) -> None:
    """A model of the family that the title begins with, saved by several processes."""

    @entry(title, kind, code, **rest)
    def make(folder: Path) -> Made:
        run(name, folder, ranks)
        model = classifier(title.partition(" ")[0])
        configured(model, folder)
        return Made(model)


_by_processes("fsdp2_model", "bert under FSDP2 in 2 processes", "dcp.save(fully_shard(model).state_dict(), ...)")
_by_processes(
    "fsdp2_both",
    "distilbert under FSDP2 in 2 processes, with its optimizer",
    "dcp.save({'model': ..., 'optim': ..., 'epoch': 3, 'path': Path('run')}, ...)",
)
_by_processes(
    "fsdp2_full",
    "roberta under FSDP2 in 2 processes, full state dict",
    "torch.save(get_model_state_dict(model, StateDictOptions(full_state_dict=True)), ...)",
    "clean",
)
_OF_ACCELERATE = "accelerate.utils.save_fsdp_model(plugin, accelerator, model, folder), state_dict_type="
_by_processes(
    "accelerate_sharded",
    "gpt2 by accelerate with its FSDP2 plugin in 2 processes",
    f"{_OF_ACCELERATE}'SHARDED_STATE_DICT'",
    needs=("torch", "accelerate"),
    tool="FSDP (torch.distributed.checkpoint)",
)
_by_processes(
    "accelerate_full",
    "bert by accelerate with its FSDP2 plugin, one file",
    f"{_OF_ACCELERATE}'FULL_STATE_DICT'",
    "HS807",
    ranks=1,
    needs=("torch>=2.7", "accelerate"),  # before, one process can't split on a CPU
)

_ZERO: dict[str, Any] = {"kind": "HS804", "needs": ("torch", "deepspeed")}
_ON_CPU = "engine.save_checkpoint(folder), zero stage "
_by_processes("deepspeed_0", "bert by DeepSpeed without ZeRO", f"{_ON_CPU}0", ranks=1, **_ZERO)
_by_processes("deepspeed_1", "distilbert by DeepSpeed ZeRO-1 in 2 processes", f"{_ON_CPU}1", **_ZERO)
_by_processes("deepspeed_2", "gpt2 by DeepSpeed ZeRO-2 in 2 processes", f"{_ON_CPU}2", **_ZERO)
_by_processes("deepspeed_3", "bert by DeepSpeed ZeRO-3 in 2 processes", f"{_ON_CPU}3", **_ZERO)
_by_processes(
    "deepspeed_tied",
    "bart with its tied weights by DeepSpeed ZeRO-2, accelerate's tag",
    "engine.save_checkpoint(folder, tag='pytorch_model'), zero stage 2",
    **_ZERO,
)
_EMPTY: dict[str, Any] = {
    "kind": "HS801",
    "ranks": 1,
    "needs": ("torch", "deepspeed"),
    "rules": (),
    "findings": ("HS801",),
    "repaired": "the file holds no values: the training checkpoint does",
}
_SAVED = "torch.save(engine.module.state_dict(), ...)"
_by_processes("deepspeed_3_saved", "roberta under ZeRO-3, saved without gathering", _SAVED, **_EMPTY)
_by_processes(
    "deepspeed_3_pretrained",
    "distilbert under ZeRO-3, save_pretrained without gathering",
    "engine.module.save_pretrained(folder)",
    **_EMPTY,
)


@entry(
    "a step folder of DeepSpeed, alone",
    "HS804",
    "engine.save_checkpoint(folder), then global_step1 copied elsewhere",
    needs=("torch", "deepspeed"),
)
def _step(folder: Path) -> Made:
    run("deepspeed_2", folder, 1)
    model = classifier("gpt2")
    configured(model, folder / "global_step1")
    (folder / "zero_to_fp32.py").unlink()
    return Made(model, at="global_step1")


def _megatron_layout(title: str, ranks: tuple[str, ...], iteration: str) -> None:
    @entry(
        title,
        "HS806",
        f"the files of Megatron-LM's checkpointing.py, written by hand: {iteration}/{ranks[0]}/model_optim_rng.pt",
        tool="Megatron-LM",
    )
    def make(folder: Path) -> Made:
        for rank in ranks:
            (folder / iteration / rank).mkdir(parents=True)
            held = {"model": {"language_model": {}}, "iteration": 500, "checkpoint_version": 3.0}
            torch.save(held, folder / iteration / rank / "model_optim_rng.pt")
        (folder / "latest_checkpointed_iteration.txt").write_text(iteration.removeprefix("iter_").lstrip("0"))
        return Made()


_megatron_layout("2 ways by tensor, Megatron-LM", ("mp_rank_00", "mp_rank_01"), "iter_0000500")
_megatron_layout(
    "2 ways by tensor and 2 by layer, Megatron-LM",
    ("mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_000", "mp_rank_01_001"),
    "iter_0001000",
)
_megatron_layout("a release of Megatron-LM", ("mp_rank_00",), "release")


@entry(
    "a distributed checkpoint of Megatron Core",
    "HS806",
    "megatron.core.dist_checkpointing.save({'model.weight': ShardedTensor...}, 'iter_0000500')",
    needs=("torch", "megatron"),
    tool="Megatron Core",
)
def _megatron_core(folder: Path) -> Made:
    from megatron.core import dist_checkpointing
    from states.table.small import one_process

    place = folder / "iter_0000500"
    place.mkdir()
    with one_process(folder), patch("torch.cuda.synchronize"), patch("torch.cuda.current_device", return_value="cpu"):
        tensor = dist_checkpointing.ShardedTensor.from_rank_offsets
        names = (
            "embedding.word_embeddings.weight",
            "decoder.layers.self_attention.linear_qkv.weight",
            "output_layer.weight",
        )
        state = {f"model.{name}": tensor(f"model.{name}", torch.ones(4, 4)) for name in names}
        dist_checkpointing.save(state | {"iteration": 500, "args": None}, str(place))
    (folder / "latest_checkpointed_iteration.txt").write_text("500")
    return Made()
