"""Folders that hold checkpoints one level deeper: the output of the Trainer, the ranks of Megatron."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.checkpoints.states.files import WEIGHTS, is_weight_file
from headscope.core.checkpoints.states.place import Found, ReadyAction, StatePlace, found_between, repair_by
from headscope.core.checkpoints.states.training_file import plain_weights
from headscope.core.facts import CheckpointState, Repair, StateKind, TensorHeader
from headscope.core.facts.counting import counted, few_of
from headscope.errors import HeadscopeError

_STEP = re.compile(r"checkpoint-(\d{1,18})")
_STATE = "trainer_state.json"
_CONFIG = "config.json"
_PIPELINES = {"modules.json", "model_index.json"}
_LARGEST = 1e18


OPTIMIZER = ("optimizer.pt", "optimizer.bin")
"""What a training run keeps of each weight, in its shape."""
RESUME_FILES = ("scheduler.pt", "scheduler.bin", "scaler.pt", "rng_state*.pth")
"""Other files that only a resumed training reads."""


@dataclass(frozen=True, slots=True)
class TakeFolder(ReadyAction):
    """Takes one checkpoint out of the folder, without what only a training that goes on needs."""

    folder: str
    without: tuple[str, ...] = (*OPTIMIZER, *RESUME_FILES)

    def code(self) -> str:
        """See `RepairAction`."""
        return f"cp -r {self.folder} model && rm -f {' '.join(f'model/{name}' for name in self.without)}"


def find_trainer_output(place: StatePlace) -> Found | None:
    """Finds the state of an output folder of Transformers' Trainer, or of another one with checkpoints in folders.

    The folders of a pipeline, as of sentence-transformers, are parts of one model.
    """
    steps = sorted(
        (folder for folder in place.folders() if _STEP.fullmatch(folder)),
        # By number: as text, checkpoint-1000 comes before checkpoint-500.
        key=lambda name: int(name.removeprefix("checkpoint-")),
    )
    whole = [folder for folder in steps if _is_whole(place.inside(folder))]
    others = [] if _PIPELINES & {*place.top()} else [name for name in place.folders() if name not in steps]
    others = [folder for folder in others if _is_whole(place.inside(folder))]
    if not whole and not others:
        return None
    newest = whole[-1] if whole else ""
    best, metric = _best_folder(place, newest)
    held = [place.inside(folder) for folder in (*whole, *others)]
    noun = "checkpoints" if any(_CONFIG in names for names in held) else "adapters"
    evidence = [f"the folder holds {few_of([*steps, *others])}", *([f"the newest is {newest}"] if newest else [])]
    if best in whole:
        evidence.append(f"the best{metric} is {best}, as {_STATE} in {newest} says")
    elif best:
        evidence.append(f"the best{metric} was {best}, which is not there")
    if len(whole) == 1 < len(steps):
        evidence.append(f"only {newest} is complete")
    several = CheckpointState(
        StateKind.TRAINER_OUTPUT,
        tool="Transformers' Trainer" if newest else "",
        sentence=f"The folder is {'the output of a Trainer, ' if newest else ''}not a checkpoint: the {noun} are "
        "in folders inside.",
        evidence=tuple(evidence),
    )
    options = []
    for name in (*whole, *others):
        sentence = f"Use what is inside (--subfolder {name}), or copy it to a folder for the model:"
        state = replace(several, repair=repair_by(sentence, TakeFolder(name), "sh"))
        options.append((name, Found(state, _read_headers(place.within(name)))))
    return found_between(options, several, best)


def _read_headers(folder: StatePlace) -> tuple[TensorHeader, ...] | None:
    """Reads the tensors of the weight files in a folder; None if none can be read, or if each file is a request."""
    names = [name for name in folder.top() if is_weight_file(name)] if folder.read is None else []
    files = [plain_weights(folder, name) for name in names]
    return tuple({header.key: header for headers in files for header in headers}.values()) or None


def _is_whole(names: Sequence[str]) -> bool:
    """True if a folder has a configuration and weights, which may be in folders inside."""
    ends = (*WEIGHTS, ".distcp")
    has_weights = any(name.endswith(ends) and is_weight_file(name.rpartition("/")[2]) for name in names)
    return has_weights and not {_CONFIG, "adapter_config.json"}.isdisjoint(names)


def _best_folder(place: StatePlace, newest: str) -> tuple[str, str]:
    """Reads the folder that the newest checkpoint's state calls the best, "" for none, and by which number."""
    try:
        state = parse_object(place.text(f"{newest}/{_STATE}"), _STATE)
    except HeadscopeError:
        return "", ""
    path, metric = state.get("best_model_checkpoint"), state.get("best_metric")
    if not isinstance(path, str):
        return "", ""
    # The path is that of the machine that trained, maybe one with Windows; only its last part can be here.
    name = re.split(r"[/\\]", path.rstrip("/\\"))[-1]
    is_number = isinstance(metric, float | int) and not isinstance(metric, bool) and abs(metric) < _LARGEST
    return (name if _STEP.fullmatch(name) else ""), f" (metric {metric:g})" if is_number else ""


_RANK = re.compile(r"mp_rank_(\d\d)(?:_(\d\d\d))?(?:_\d\d\d)?")
_ITERATION = re.compile(r"(iter_\d{7}|release)")
_TRACKED = re.compile(r"\d{1,18}|release")
_TRACKER = "latest_checkpointed_iteration.txt"


def find_megatron(place: StatePlace) -> Found | None:
    """Finds the state of a place with the rank files of Megatron-LM: `iter_*/mp_rank_XX/model_optim_rng.pt`."""
    files = [name for name in place.names if name.rpartition("/")[2] in ("model_optim_rng.pt", "model_rng.pt")]
    ranks = [(name, _RANK.fullmatch(name.split("/")[-2])) for name in files if "/" in name]
    found = [(name, match) for name, match in ranks if match is not None]
    if not found:
        return None
    above = {name.split("/")[-3] for name, _ in found if name.count("/") > 1}
    iterations = sorted(name for name in above if _ITERATION.fullmatch(name))
    names = sorted({match[0] for _, match in found})
    tensor, pipeline = (1 + max(int(match[group] or 0) for _, match in found) for group in (1, 2))
    evidence = [
        f"there {'is' if len(names) == 1 else 'are'} {few_of(names)} with {found[0][0].rpartition('/')[2]}",
        f"the weights are split {tensor:,} {'way' if tensor == 1 else 'ways'} by tensor and "
        f"{counted(pipeline, 'way')} by layer",
    ]
    tracked = place.text(_TRACKER).decode("utf-8", "replace").strip()
    if _TRACKED.fullmatch(tracked):
        evidence.append(f"{_TRACKER} says {tracked}")
    folder = iterations[-1] if iterations else "."
    state = CheckpointState(
        StateKind.MEGATRON,
        tool="Megatron-LM",
        sentence="The weights are the rank files of Megatron-LM, split by tensor and layer: from_pretrained does not "
        "read them.",
        evidence=tuple(evidence),
        repair=_export_repair(folder),
    )
    return Found(state)


def _export_repair(folder: str) -> Repair:
    return Repair(
        "Export them with Megatron Bridge; HF_ID is the Hub ID of a model of the same architecture:",
        f"python -c \"from megatron.bridge import AutoBridge; AutoBridge.from_hf_pretrained('HF_ID')"
        f".export_ckpt('{folder}', 'exported')\"",
        "sh",
    )


_CORE = "metadata.json"


def find_megatron_core(place: StatePlace) -> Found | None:
    """Finds the state of a place with a distributed checkpoint of Megatron Core: its `metadata.json` names the backend.

    Its parts are those of torch.distributed.checkpoint, but the keys in them are Megatron's: merging them is not a
    repair.
    """
    found = {folder: backend for folder in ("", *place.folders()) if (backend := _core_backend(place, folder))}
    if not found:
        return None
    folder = max(found)
    state = CheckpointState(
        StateKind.MEGATRON,
        tool="Megatron Core",
        sentence="The weights are a distributed checkpoint of Megatron Core, under Megatron's names: from_pretrained "
        "does not read them.",
        evidence=(f"{folder or 'the folder'} holds {_CORE}, which names the backend {found[folder]}",),
        repair=_export_repair(folder or "."),
    )
    return Found(state)


def _core_backend(place: StatePlace, folder: str) -> str:
    """Reads the backend that a folder of Megatron Core names; "" for any other folder."""
    name = f"{folder}/{_CORE}" if folder else _CORE
    if name not in place.names:
        return ""
    try:
        backend = parse_object(place.text(name), _CORE).get("sharded_backend")
    except HeadscopeError:
        return ""
    return backend[:40] if isinstance(backend, str) else ""
