"""Proof of a repair: a separate process reads source and result from disk.

`python -m headscope.slices.repair.proof` reads the task as JSON from standard input and prints a `RepairProof`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from filecmp import cmp
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.copies.carried import INDEXES
from headscope.copies.proving import answer_task, same_bytes
from headscope.copies.writing import file_states
from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.checkpoints.states.folders import TakeFolder
from headscope.core.checkpoints.states.peft_keys import MergePeft
from headscope.core.checkpoints.states.training_file import JoinFiles, SaveInside
from headscope.core.checkpoints.states.wrapped_keys import RenameKeys
from headscope.core.facts.stored.location import HubOptions, Location, is_file_name
from headscope.core.source.request import Request
from headscope.errors import HeadscopeError, Unsupported
from headscope.slices.repair.facts import RepairProof
from headscope.slices.repair.given import check_trust
from headscope.slices.repair.split_weights import open_safetensors
from headscope.slices.repair.steps import RepairStep, files_taken, kept_files, repaired_tensors, states_in

if TYPE_CHECKING:
    import torch

_ROUNDING = 1e-3
"""How far the scores of a merged model in single precision may be from those with the adapter, by the largest one."""


@dataclass(frozen=True, slots=True)
class RepairTask:
    """Task of the proof: two folders, and what was given for the repair."""

    source: str
    result: str
    model_class: str | None
    config: str
    settings: str
    """As JSON."""
    is_last: bool
    """Whether the loader's answer counts: the result is in no state any more."""
    trust_remote_code: bool = False
    take: tuple[str, ...] = ()


def prove_repair(task: RepairTask) -> RepairProof:
    """Proves the repair in this process."""
    location = Location(task.source, hub=HubOptions(offline=True))
    request = Request(location, model_class=task.model_class, trust_remote_code=task.trust_remote_code, take=task.take)
    proof = RepairProof()
    try:
        step, result = states_in(request, Path(task.source)), Path(task.result)
        action = next(iter(step.actions), None)
        if step.writes_config:
            proof = replace(proof, files_equal=_has_every_file(step.folder, result))
        elif isinstance(action, TakeFolder):
            names = files_taken(action, list(file_states(step.folder)))
            pairs = ((step.folder / action.folder / name, result / name) for name in names)
            proof = replace(proof, files_equal=all(_same_file(*pair) for pair in pairs))
        else:
            kept = kept_files(step, list(file_states(step.folder)))
            proof = replace(proof, files_equal=all(_same_file(step.folder / name, result / name) for name in kept))
            proof = (
                _check_merge(proof, action, task)
                if isinstance(action, MergePeft)
                else _check_tensors(proof, step, result)
            )
        if task.is_last:
            proof = _check_load(proof, step, states_in(request, result))
    except HeadscopeError as err:
        proof = replace(proof, reason=err.message)
    return replace(proof, reason=proof.reason or _describe_failure(proof))


def _describe_failure(proof: RepairProof) -> str:
    failed = {
        "Transformers' loader doesn't find what the repair promises": proof.loads is False,
        "a tensor isn't that of the source": proof.tensors_equal is False,
        "a file isn't that of the source": proof.files_equal is False,
        f"the merged model's scores differ by up to {proof.max_difference or 0:.3g}": proof.scores_equal is False,
    }
    return next((words for words, holds in failed.items() if holds), "")


def _check_load(proof: RepairProof, step: RepairStep, after: RepairStep) -> RepairProof:
    """Compares what the loader finds in the result with what the repair promises, or with a load without gaps."""
    report = after.report
    if report is None or after.states or report.weights.gaps:
        return replace(proof, loads=False)
    found = report.weights
    promised = step.report.repaired.weights if step.report and step.report.repaired else None
    new, unused = (promised.new, promised.unused) if promised else (found.new, found.unused)
    if promised is None and (step.writes_config or step.report is not None):
        new, unused = (), (() if step.writes_config else found.unused)
    is_as_promised = set(found.new) <= {*new} and set(found.unused) <= {*unused}
    return replace(
        proof,
        loads=is_as_promised and not found.mismatched and found.loaded > 0,
        new=found.new,
        unused=found.unused,
        lost=found.lost,
    )


def _check_tensors(proof: RepairProof, step: RepairStep, result: Path) -> RepairProof:
    """Compares every tensor of the result with the source, read again, and with what other libraries read there."""
    _, files, expected = repaired_tensors(step)
    opened = [open_safetensors(result / name) for name in _weight_files(result)]
    written = {key: file for file in opened for key in file.keys()}  # noqa: SIM118 - not a dict
    equal = written.keys() == expected.keys()
    for key, item in expected.items() if equal else ():
        numbers = files.whole(item.header) if item.numbers is None else item.numbers()
        equal = equal and same_bytes(numbers, written[key].get_tensor(key))
    read = 0
    for key, numbers in _tensors_by_libraries(step) if equal else ():
        read += 1
        equal = equal and key in written and same_bytes(numbers, written[key].get_tensor(key))
    return replace(proof, tensors_equal=equal, compared=len(expected), read_by_libraries=read)


def _weight_files(folder: Path) -> list[str]:
    """Names the files that the loader takes weights from. Raises Malformed for an index that can't be read."""
    index = folder / INDEXES[0]
    if (folder / "model.safetensors").is_file() or not index.is_file():
        return ["model.safetensors"]
    named = parse_object(index.read_bytes(), index.name).get("weight_map")
    return sorted({name for name in named.values() if is_file_name(name)} if isinstance(named, dict) else ())


def _tensors_by_libraries(step: RepairStep) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the source's tensors under their new names, as PyTorch and safetensors read them without running code."""
    first, *rest = step.actions
    renaming = [action for action in (first, *rest) if isinstance(action, RenameKeys)]
    files = first.files if isinstance(first, RenameKeys | JoinFiles) else ()
    if isinstance(first, SaveInside):
        files = (first.file,)
    for name in files:
        for key, numbers in _read_by_torch(step.folder / name, first.path if isinstance(first, SaveInside) else ()):
            renamed: str | None = key
            for action in renaming:
                renamed = None if renamed is None else action(renamed)
            if renamed is not None:
                yield renamed, numbers


def _read_by_torch(path: Path, inside: Iterable[str | int]) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    if path.suffix == ".safetensors":
        file = open_safetensors(path)
        yield from ((key, file.get_tensor(key)) for key in file.keys())  # noqa: SIM118 - not a dict
        return
    try:
        with path.open("rb") as file:
            is_zip = file.read(2) == b"PK"  # torch.load maps no file of the older format
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception:  # it holds what PyTorch doesn't read without running it
        return
    for part in inside:
        loaded = loaded[part]
    yield from ((key, item) for key, item in loaded.items() if torch.is_tensor(item))


def _has_every_file(source: Path, result: Path) -> bool:
    """True if the result has the content of every file of the source, under its name or a new one."""
    written = [path for path in result.rglob("*") if path.is_file()]
    for name in file_states(source):
        same = [result / name] if (result / name).is_file() else written
        if not any(_same_file(source / name, path) for path in same):
            return False
    return True


def _same_file(one: Path, other: Path) -> bool:
    return other.is_file() and cmp(one, other, shallow=False)


def _check_merge(proof: RepairProof, action: MergePeft, task: RepairTask) -> RepairProof:
    """Compares the scores of the model with its adapter with those of the result, on the same inputs."""
    import torch

    from headscope.core.model.classes.catalog import task_of_bases
    from headscope.core.model.quiet import quiet
    from headscope.core.trace.batch.probe_batch import build_probe
    from headscope.core.trace.record.execution import run_unrecorded

    check_trust(action, trusts=task.trust_remote_code)
    loaded: dict[str, Any] = {}
    try:
        with quiet():
            exec(action.code_to_load(task.source, json.loads(task.settings), task.config), loaded)
            with_adapter = loaded["model"].eval()
            base = with_adapter.get_base_model()
            merged = type(base).from_pretrained(task.result).eval()
        kind = task_of_bases(type(base))
        if kind is None:
            raise Unsupported(f"{type(base).__name__} is not a classifier that headscope can run", "")
        inputs = build_probe(merged, kind).inputs
        one, other = (run_unrecorded(model, inputs).logits.float() for model in (with_adapter, merged))
    except HeadscopeError:
        raise
    except Exception as err:  # whatever PEFT and foreign code raise
        raise Unsupported(f"the merged model could not be run: {err}", "") from err
    difference = float((one - other).abs().max())
    largest = _ROUNDING * max(1.0, float(one.abs().max()))
    is_equal = bool(torch.isfinite(one).all()) and difference <= largest
    return replace(proof, scores_equal=is_equal, max_difference=difference)


if __name__ == "__main__":
    answer_task(prove_repair)
