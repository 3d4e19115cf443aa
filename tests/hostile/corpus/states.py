"""Folders that look like the states of checkpoints, cut, lying or hostile: told without running or writing anything."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from hostile.corpus.case import CONFIG, Build, Case, folder_of
from hostile.corpus.foreign import Payload, saved

_EVIL = "x\x1b[2J\u202e[bold]"


def _bare(files: Callable[[Path], dict[str, bytes]]) -> Build:
    """Without a configuration."""
    return folder_of(files, "--details")


def _of(files: Callable[[Path], dict[str, bytes]]) -> Build:
    return _bare(lambda folder: {"config.json": json.dumps(CONFIG).encode()} | files(folder))


def _metadata(content: bytes) -> Callable[[Path], dict[str, bytes]]:
    return lambda folder: {".metadata": content, "__0_0.distcp": b"\0" * 40}


def _zero(value: Callable[[Path], Any]) -> Callable[[Path], dict[str, bytes]]:
    return lambda folder: {
        "latest": b"global_step1", "global_step1/mp_rank_00_model_states.pt": saved(value(folder), folder),
        "global_step1/zero_pp_rank_0_mp_rank_00_optim_states.pt": b"",
    }  # fmt: skip


def _lightning(beside: Callable[[Path], Any]) -> Callable[[Path], dict[str, bytes]]:
    def files(folder: Path) -> dict[str, bytes]:
        value = {"state_dict": {_EVIL: torch.zeros(1)}, "pytorch-lightning_version": _EVIL, _EVIL: beside(folder)}
        return {"last.ckpt": saved(value, folder)}

    return files


def _metadata_that_runs(folder: Path) -> dict[str, bytes]:
    return _metadata(pickle.dumps(Payload(folder)))(folder)


def _cut(folder: Path) -> dict[str, bytes]:
    return {"last.ckpt": _lightning(str)(folder)["last.ckpt"][:300]}


def _trainer(state: bytes) -> dict[str, bytes]:
    weights = save({"a": torch.zeros(1)})
    return {"checkpoint-1/config.json": b"{}", "checkpoint-1/model.safetensors": weights,
            "checkpoint-1/trainer_state.json": state}  # fmt: skip


_HUGE = json.dumps({"best_model_checkpoint": "checkpoint-1", "best_metric": 10**400}).encode()
_ELSEWHERE = json.dumps({"best_model_checkpoint": "/etc;rm -rf ~", "best_metric": "x"}).encode()
_NOT_RUN = "which is not allowed"
CASES = (
    Case("metadata runs code", _of(_metadata_that_runs), (3,), (_NOT_RUN,)),
    Case("metadata is cut", _of(_metadata(pickle.dumps({"a": 1})[:-3])), (3,), ("HS805",)),
    Case("metadata is empty", _of(_metadata(b"")), (3,), ("HS805",)),
    Case("metadata is a list", _of(_metadata(pickle.dumps([1, 2]))), (3,), ("HS805",)),
    Case("metadata without configuration", _bare(_metadata(b"\x80\x04.")), (3,), ("HS805",)),
    Case("metadata of large numbers", _of(_metadata(pickle.dumps({"x": 10**5000}))), (3,), ("HS805",)),
    Case("shapes of ZeRO lie", _of(_zero(lambda folder: {"param_shapes": [{_EVIL: (-1, 2**70)}]})), (3,), ("HS804",)),
    Case("shapes of ZeRO are texts", _of(_zero(lambda folder: {"param_shapes": "abc", "module": 7})), (3,), ("HS804",)),
    Case("states of ZeRO run code", _of(_zero(Payload)), (3,), ("HS804",)),
    Case("latest leads elsewhere", _of(lambda folder: {**_zero(lambda _: {})(folder), "latest": b"../../etc"}), (3,)),
    Case("hostile names in a training file", _of(_lightning(lambda folder: 1)), (3,), ("HS807",)),
    Case("a training file runs code", _of(_lightning(Payload)), (3,)),
    Case("a training file that is cut", _of(_cut), (3,)),
    Case("a Trainer's state is no object", _bare(lambda _: _trainer(b"[1")), words=("HS808",)),
    Case("a Trainer's best leads elsewhere", _bare(lambda _: _trainer(_ELSEWHERE)), words=("HS808", "checkpoint-1")),
    Case("a Trainer's metric is huge", _bare(lambda _: _trainer(_HUGE)), words=("HS808",)),
    Case("steps with huge numbers", _bare(lambda _: {f"checkpoint-{'9' * 200}/config.json": b"{}"})),
    Case("ranks with hostile names", _bare(lambda _: {f"{_EVIL}/mp_rank_00/model_optim_rng.pt": b""}),
         words=("HS806",)),
    Case(
        "weights with hostile keys and no configuration",
        _bare(lambda folder: {"weights.pt": saved({_EVIL: torch.zeros(1), "9" * 400: torch.zeros(1)}, folder)}),
        words=("HS809",),
    ),
    Case(
        "layers with numbers that are none",
        _of(lambda folder: {"pytorch_model.bin": saved({f"v_head.{part}.weight": torch.zeros(1, 2)
                                                         for part in ("9" * 5000, "\u00b2")}, folder)}),
        (3,),
    ),
    Case(
        "a wrapper with a hostile name",
        _of(lambda folder: {"pytorch_model.bin": saved({f"{_EVIL}.{key}": torch.zeros(1) for key in "ab"}, folder)}),
        (0,),
    ),
)  # fmt: skip
