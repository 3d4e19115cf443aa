"""Checkpoints of DeepSpeed: `global_step*/` with the parts of every process, `latest`, `zero_to_fp32.py`."""

import re
from pathlib import PurePath
from typing import Any

from headscope.checkpoints.formats.torch_file import headers_of, read_torch_value
from headscope.checkpoints.states.place import Found, StatePlace
from headscope.checkpoints.states.training_file import WRITTEN, code_to_save, on_imports
from headscope.errors import HeadscopeError
from headscope.facts import CheckpointState, Repair, StateKind, TensorHeader
from headscope.facts.counting import counted, few_of

_STEP = re.compile(r"global_step(\d{1,18})")
_MODEL, _OPTIMIZER = "_model_states.pt", "_optim_states.pt"
_SCRIPT = "zero_to_fp32.py"


def find_deepspeed(place: StatePlace) -> Found | None:
    """The state of a place that holds a checkpoint of DeepSpeed, or is one of its step folders."""
    steps = [folder for folder in place.folders() if _STEP.fullmatch(folder) and _parts(place.inside(folder))]
    if not steps and _parts(place.top()):
        return _found(place, place, "", ("it is a step folder of a DeepSpeed checkpoint",))
    if not steps:
        return None
    latest = place.text("latest").decode("utf-8", "replace").strip()
    step = latest if latest in steps else max(steps, key=lambda name: int(name.removeprefix("global_step")))
    said = [f"there {'is' if len(steps) == 1 else 'are'} {few_of(steps)}"]
    said += [f"`latest` names {step}"] if latest == step else []
    said += [f"{_SCRIPT} is beside {'it' if len(steps) == 1 else 'them'}"] if _SCRIPT in place.top() else []
    return _found(place, place.within(step), step, tuple(said))


def _parts(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name.endswith(_MODEL)]


def _found(place: StatePlace, step: StatePlace, tag: str, said: tuple[str, ...]) -> Found:
    models = sorted(_parts(step.names))
    optimizers = [name for name in step.names if name.endswith(_OPTIMIZER)]
    stage = "ZeRO-3" if any(name.startswith("zero_pp_rank_") for name in models) else "ZeRO-1 or 2"
    stage = stage if optimizers else "no ZeRO"
    held = f"{counted(len(models), '*' + _MODEL + ' file')} and {counted(len(optimizers), '*' + _OPTIMIZER + ' file')}"
    tensors, imported = _read_partition(step, models)
    state = CheckpointState(
        StateKind.DEEPSPEED,
        tool="DeepSpeed",
        sentence="The weights are a training checkpoint of DeepSpeed, split across processes: from_pretrained does not "
        "read them.",
        evidence=(*said, f"{tag or 'the folder'} holds {held} ({stage})", *on_imports(imported)),
        repair=_repair(place, tag, models, split=bool(optimizers)),
    )
    return Found(state, tensors, WRITTEN)


def _repair(place: StatePlace, tag: str, models: list[str], *, split: bool) -> Repair:
    """DeepSpeed's own script if the weights are split, otherwise the state dict in the one file."""
    if not split:
        file = f"{tag}/{models[0]}" if tag else models[0]
        code = code_to_save(file, ("module",), weights_only=False)
        return Repair("If you trust the file (loading it runs code of DeepSpeed), save the weights alone:", code)
    if tag and _SCRIPT in place.top():
        code = f"python {_SCRIPT} . . --safe_serialization --tag {tag}"
        return Repair(
            "If you trust the checkpoint (this runs the script in it and unpickles its files), put the weights "
            "together with the script that DeepSpeed left (needs deepspeed):",
            code,
            "sh",
        )
    folder, name = (".", tag) if tag else ("..", PurePath(place.name).name)
    code = (
        "from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict\n"
        f"convert_zero_checkpoint_to_fp32_state_dict({folder!r}, '.', tag={name!r}, safe_serialization=True)"
    )
    return Repair(
        "If you trust the checkpoint (DeepSpeed unpickles its files, which can run code), put the weights together "
        "with DeepSpeed:",
        code,
    )


def _read_partition(step: StatePlace, models: list[str]) -> tuple[tuple[TensorHeader, ...] | None, tuple[str, ...]]:
    """The tensors that the parts belong to, and what loading the file of the first process imports."""
    try:
        value, imported = read_torch_value(step.open(models[0]))
    except HeadscopeError:
        return None, ()
    return (_tensors(value) if isinstance(value, dict) else None), tuple(sorted(imported))


def _tensors(value: dict[Any, Any]) -> tuple[TensorHeader, ...] | None:
    """The tensors with their shapes as the first process wrote them, and what it holds whole."""
    held = value.get("module")
    found = headers_of(held, WRITTEN) if isinstance(held, dict) else ()
    headers = {item.key: item for item in found if 0 not in item.shape}
    headers |= {item.key: item for item in _promised(value.get("param_shapes"))}
    headers |= {item.key: item for item in _promised([value.get("frozen_param_shapes")])}
    return tuple(headers.values()) or None


def _promised(groups: Any) -> list[TensorHeader]:
    """The tensors whose whole shapes are written down, a dict for each group of the optimizer."""
    dicts = [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []
    return [
        TensorHeader(key, "float32", shape, WRITTEN)
        for group in dicts
        for key, shape in group.items()
        if isinstance(key, str) and isinstance(shape, tuple) and all(type(size) is int for size in shape)
    ]
