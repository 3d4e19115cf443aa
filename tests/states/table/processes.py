"""What has to run in a process of its own: ranks of a group, DeepSpeed's engine, plugins of accelerate.

`python -m states.table.processes NAME FOLDER RANK RANKS`, with a FileStore beside the folder.
"""

import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from states.table.small import classifier, stepped

ROOT = Path(__file__).parents[3]
BIN = "pytorch_model.bin"


def run(name: str, folder: Path, ranks: int = 1) -> None:
    """Runs a save in so many processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "states.table.processes", name, str(folder)],
            env=os.environ | group | {"RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    said = [process.communicate(timeout=240)[0] for process in started]
    assert not any(process.returncode for process in started), "\n".join(said)[-4000:]


def _sharded(name: str) -> Any:
    """A model whose parameters FSDP2 splits, after a step of training, with its optimizer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = classifier(name)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    stepped(model, optimizer)
    return model, optimizer


def fsdp2_model(folder: Path) -> None:
    """The sharded state dict alone."""
    import torch.distributed.checkpoint as dcp

    model, _ = _sharded("bert")
    dcp.save(model.state_dict(), checkpoint_id=folder)


def fsdp2_both(folder: Path) -> None:
    """Model and optimizer, as the tutorial of PyTorch saves them, with the numbers of the run."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = _sharded("distilbert")
    held, kept = get_state_dict(model, optimizer)
    dcp.save({"model": held, "optim": kept, "epoch": 3, "path": Path("run")}, checkpoint_id=folder)


def fsdp2_full(folder: Path) -> None:
    """The full state dict on the first rank."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    model, _ = _sharded("roberta")
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)
    if torch.distributed.get_rank() == 0:
        torch.save(state, folder / BIN)


def _accelerated(folder: Path, family: str, kind: str) -> None:
    """accelerate gives no plugin of FSDP to a group on CPUs, so that its functions are called as `save_state` does."""
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
    from accelerate.utils import save_fsdp_model, save_fsdp_optimizer

    accelerator = Accelerator(cpu=True)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type=kind, cpu_ram_efficient_loading=False)
    model, optimizer = _sharded(family)
    accelerator.state.distributed_type, accelerator.state.fsdp_plugin = DistributedType.FSDP, plugin
    save_fsdp_model(plugin, accelerator, model, str(folder))
    save_fsdp_optimizer(plugin, accelerator, optimizer, model, str(folder))


def _engine(family: str, stage: int) -> Any:
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    backend = importlib.import_module("deepspeed.comm.torch")
    backend.build_shm_op = lambda: None  # a kernel that would be compiled for minutes
    settings = {
        "train_batch_size": 2 * int(os.environ["WORLD_SIZE"]),
        # Small weights stay whole on every process, and these are small.
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.0, "torch_adam": True}},
        "zero_allow_untested_optimizer": True,
    }  # fmt: skip
    model = classifier(family)
    deepspeed.init_distributed("gloo")
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    rows = torch.randint(5, 40, (2, 6))
    rows[:, -1] = 2  # BART reads the last end of a text
    engine.backward(engine(input_ids=rows, labels=torch.tensor([0, 1])).loss)
    engine.step()
    return engine


SAVES: dict[str, Callable[[Path], Any]] = {
    "fsdp2_model": fsdp2_model,
    "fsdp2_both": fsdp2_both,
    "fsdp2_full": fsdp2_full,
    "accelerate_sharded": lambda folder: _accelerated(folder, "gpt2", "SHARDED_STATE_DICT"),
    "accelerate_full": lambda folder: _accelerated(folder, "bert", "FULL_STATE_DICT"),
    "deepspeed_0": lambda folder: _engine("bert", 0).save_checkpoint(str(folder)),
    "deepspeed_1": lambda folder: _engine("distilbert", 1).save_checkpoint(str(folder)),
    "deepspeed_2": lambda folder: _engine("gpt2", 2).save_checkpoint(str(folder)),
    "deepspeed_3": lambda folder: _engine("bert", 3).save_checkpoint(str(folder)),
    # under the tag that accelerate gives
    "deepspeed_tied": lambda folder: _engine("bart", 2).save_checkpoint(str(folder), tag="pytorch_model"),
    # without gathering: every tensor is empty
    "deepspeed_3_saved": lambda folder: torch.save(_engine("roberta", 3).module.state_dict(), folder / BIN),
    "deepspeed_3_pretrained": lambda folder: _engine("distilbert", 3).module.save_pretrained(str(folder)),
}


if __name__ == "__main__":
    SAVES[sys.argv[1]](Path(sys.argv[2]))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
