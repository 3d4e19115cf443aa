"""Checkpoints of DeepSpeed: a folder for each step with the parts of every process, `latest`, `zero_to_fp32.py`."""

import re
import shlex
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any

from headscope.core.checkpoints.formats.torch_file import headers_of, read_torch_value, torch_places
from headscope.core.checkpoints.states.held_tensors import groups_but, tensor_groups
from headscope.core.checkpoints.states.place import Found, ReadyAction, StatePlace, found_between, repair_by
from headscope.core.checkpoints.states.training_file import WRITTEN, SaveInside, on_imports
from headscope.core.facts import CheckpointState, Repair, StateKind, TensorHeader
from headscope.core.facts.counting import counted, few_of
from headscope.errors import HeadscopeError, Unsupported

_RANK = re.compile(r"(?:zero_pp_rank_\d{1,9}_)?mp_rank_\d{1,9}_model_states\.pt")
_MODEL, _OPTIMIZER = "_model_states.pt", "_optim_states.pt"
_SCRIPT = "zero_to_fp32.py"


def find_deepspeed(place: StatePlace) -> Found | None:
    """Finds the state of a place that holds a checkpoint of DeepSpeed, or is one of its step folders.

    A step folder has any name: `global_step8` (DeepSpeed), `pytorch_model` (accelerate), `checkpoint` (Lightning).
    """
    steps = sorted({str(path.parent) for name in place.names if _RANK.fullmatch((path := PurePath(name)).name)})
    if not steps:
        return None
    several = CheckpointState(StateKind.DEEPSPEED, "DeepSpeed", "Here are several checkpoints of DeepSpeed.", ())
    if "." in steps:
        option = (".", _describe_step(place, place, "", ("it is a step folder of a DeepSpeed checkpoint",)))
        return found_between([option], several)
    latest = {step: place.text(str(PurePath(step).with_name("latest"))) for step in steps}
    named = [step for step in steps if latest[step].decode("utf-8", "replace").strip() == PurePath(step).name]
    options = []
    for step in steps if place.read is None else named or steps:  # in a repository, each is a request
        said = [f"there {'is' if len(steps) == 1 else 'are'} {few_of(steps)}"]
        said += [f"`latest` names {PurePath(step).name}"] if step in named else []
        said += [f"{_SCRIPT} is beside {'it' if len(steps) == 1 else 'them'}"] if _has_script(place, step) else []
        options.append((step, _describe_step(place, place.within(step), step, tuple(said))))
    return found_between(options, several, named[0] if len(named) == 1 else "")


def without_deepspeed(place: StatePlace) -> StatePlace:
    """Gives the place without the files of DeepSpeed in it, and without the folders that hold some."""
    tops = {name.partition("/")[0] for name in place.names if _RANK.fullmatch(PurePath(name).name)}
    parts = (_MODEL, _OPTIMIZER)
    left = (name for name in place.names if name.partition("/")[0] not in tops and not name.endswith(parts))
    return replace(place, names=tuple(left))


def rank_files(step: Path) -> tuple[list[str], list[str]]:
    """Lists the files of a step folder by process, with the weights and with ZeRO's optimizer.

    Raises Unsupported if the weights are also split by tensor or by experts.
    """

    def by_numbers(name: str) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d{1,18})", name)]

    # Rank 10 comes after rank 2: the order of the files is that of the parts.
    names = sorted((path.name for path in step.iterdir()), key=by_numbers)
    models = [name for name in names if _RANK.fullmatch(name)]
    if len({name.partition("mp_rank_")[2] for name in models}) > 1 or any("_expert_" in name for name in names):
        raise Unsupported(
            "the weights are split by tensor or by experts, which headscope doesn't put together",
            "use the script of the framework that trained the model",
        )
    return models, [name for name in names if name.endswith(_OPTIMIZER)]


def _has_script(place: StatePlace, step: str) -> bool:
    return bool(step) and str(PurePath(step).with_name(_SCRIPT)) in place.names


def _describe_step(place: StatePlace, inside: StatePlace, step: str, said: tuple[str, ...]) -> Found:
    models = sorted(name for name in inside.top() if _RANK.fullmatch(name))
    optimizers = [name for name in inside.top() if name.endswith(_OPTIMIZER)]
    stage = "ZeRO-3" if any(name.startswith("zero_pp_rank_") for name in models) else "ZeRO-1 or 2"
    stage = stage if optimizers else "no ZeRO"
    held = f"{counted(len(models), '*' + _MODEL + ' file')} and {counted(len(optimizers), '*' + _OPTIMIZER + ' file')}"
    tensors, imported, left_out = _read_partition(inside, models)
    state = CheckpointState(
        StateKind.DEEPSPEED,
        tool="DeepSpeed",
        sentence="The weights are a training checkpoint of DeepSpeed, split across processes: from_pretrained does not "
        "read them.",
        evidence=(*said, f"{step or 'the folder'} holds {held} ({stage})", *on_imports(imported)),
        repair=_build_repair(place, step, models, split=bool(optimizers)),
    )
    if reason := _why_not_joined(inside, models, has_optimizer=bool(optimizers)):
        return Found(replace(state, repair=None, remedy=_OWN_TOOL, evidence=(*state.evidence, reason)))
    return Found(state, tensors, WRITTEN, left_out)


_OWN_TOOL = "Join them with the tool of the framework that trained the model."


def _why_not_joined(step: StatePlace, models: list[str], *, has_optimizer: bool) -> str:
    """Tells which parts of the model headscope doesn't join; "" if the files of the ranks hold a whole model each."""
    others = [name for name in step.top() if name.endswith(_MODEL[1:]) and name not in models]
    if others:
        holding = "holds" if len(others) == 1 else "hold"
        return f"{few_of(others)} {holding} layers or experts, which headscope doesn't join"
    ranks = {name.partition("mp_rank_")[2]: name for name in models}
    if len(ranks) == 1 or (not has_optimizer and step.read is None and _hold_the_same(step, tuple(ranks.values()))):
        return ""
    return f"the weights are parts of {len(ranks):,} model-parallel ranks, which headscope doesn't join"


def _hold_the_same(step: StatePlace, names: tuple[str, ...]) -> bool:
    """True if the state dicts in files are equal, number by number."""
    try:
        headers = [{(item.key, item.shape, item.dtype) for item in _read_partition(step, [name])[0] or ()}
                   for name in names]  # fmt: skip
        places = [torch_places(step.open(name), "module") for name in names]
        if any(held != headers[0] for held in headers):
            return False
        for key, _, _ in headers[0]:
            digests = set()
            for name, place_of in zip(names, places, strict=True):
                place = place_of(key)
                if place is None:
                    return False
                digests.add(sha256(step.open(name).read_at(place[0], place[1] - place[0])).digest())
            if len(digests) > 1:
                return False
    except HeadscopeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class MergeZero(ReadyAction):
    """Puts the weights together that ZeRO split: in a step folder of the checkpoint, "" for the place itself.

    DeepSpeed's `safe_serialization` fails for tied weights, so that the code leaves it out.
    """

    step: str
    place: str
    has_script: bool

    def code(self) -> str:
        """See `RepairAction`."""
        path = PurePath(self.step) if self.step else PurePath("..", PurePath(self.place).name)
        if self.has_script:
            root = shlex.quote(str(path.parent))
            script = shlex.quote(str(path.with_name(_SCRIPT)))
            return f"python {script} {root} . --tag {shlex.quote(path.name)}"
        return (
            "from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict\n"
            f"convert_zero_checkpoint_to_fp32_state_dict({str(path.parent)!r}, '.', tag={path.name!r})"
        )


def _build_repair(place: StatePlace, step: str, models: list[str], *, split: bool) -> Repair:
    """Gives the code that puts split weights together, or that saves the state dict in the one file."""
    if not split:
        inside = SaveInside(str(PurePath(step, models[0])), ("module",), weights_only=False)
        return repair_by("If you trust the file (loading it runs code of DeepSpeed), save the weights alone:", inside)
    action = MergeZero(step, place.name, _has_script(place, step))
    if action.has_script:
        return repair_by(
            "If you trust the checkpoint (this runs the script in it and unpickles its files), put the weights "
            "together with the script that DeepSpeed left (needs deepspeed):",
            action,
            "sh",
        )
    return repair_by(
        "If you trust the checkpoint (DeepSpeed unpickles its files, which can run code), put the weights together "
        "with DeepSpeed:",
        action,
    )


def _read_partition(
    step: StatePlace, models: list[str]
) -> tuple[tuple[TensorHeader, ...] | None, tuple[str, ...], tuple[str, ...]]:
    """Reads the tensors that the parts belong to, what loading the first process's file imports, and what is beside."""
    try:
        value, imported = read_torch_value(step.open(models[0]))
    except HeadscopeError:
        return None, (), ()
    left_out = groups_but(tensor_groups(value), ("module",), ("frozen_param_fragments",))
    return (_read_headers(value) if isinstance(value, dict) else None), tuple(sorted(imported)), left_out


def _read_headers(value: dict[Any, Any]) -> tuple[TensorHeader, ...] | None:
    """Reads the tensors with their shapes as the first process wrote them, and what it holds whole."""
    held = value.get("module")
    found = headers_of(held, WRITTEN) if isinstance(held, dict) else ()
    # ZeRO-3 leaves empty tensors instead of the weights that it split.
    headers = {item.key: item for item in found if 0 not in item.shape}
    headers |= {item.key: item for item in _headers_of_shapes(value.get("param_shapes"))}
    headers |= {item.key: item for item in _headers_of_shapes([value.get("frozen_param_shapes")])}
    return tuple(headers.values()) or None


def _headers_of_shapes(groups: Any) -> list[TensorHeader]:
    """Builds headers for tensors whose whole shapes are written down, a dict for each group of the optimizer."""
    dicts = [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []
    return [
        TensorHeader(key, "float32", shape, WRITTEN)
        for group in dicts
        for key, shape in group.items()
        if isinstance(key, str) and isinstance(shape, tuple) and all(type(size) is int for size in shape)
    ]
