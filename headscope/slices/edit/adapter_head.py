"""Writes the trained head of a checkpoint into an adapter's folder, so that PEFT loads it; a new process proves it.

`python -m headscope.slices.edit.adapter_head` reads the task as JSON from standard input and prints an
`EditProof` as JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headscope.copies.carried import left_behind, read_contents, taken_names
from headscope.copies.facts import EditProof, EditReport
from headscope.copies.proving import answer_task, prove_apart
from headscope.copies.writing import (
    check_target,
    check_unchanged,
    copy_files,
    file_states,
    put_in_place,
    staged,
    write_small_file,
)
from headscope.core.checkpoints.edit_record import EDIT_RECORD
from headscope.core.facts.counting import few_of
from headscope.core.facts.environment import tool_version
from headscope.core.facts.report import find_missing
from headscope.core.facts.stored.location import HubOptions, Location
from headscope.core.source.checkpoint import Checkpoint, examine
from headscope.core.source.reading.reading import in_local_folder, read_checkpoint
from headscope.core.source.request import Progress, Request
from headscope.errors import HeadscopeError, Unsupported, UsageError
from headscope.slices.edit.classes import examine_by_name
from headscope.slices.edit.merging import folder_of_base, model_in, model_with_adapter_in

if TYPE_CHECKING:
    import torch
_CONFIG, _WEIGHTS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
_PREFIX = "base_model.model."
_SAVED = ".modules_to_save.default."
_OF_BASE = "give a trained checkpoint of the adapter's base model"


@dataclass(frozen=True, slots=True)
class HeadTask:
    """Task of the proof: the adapter before and after, its base, the head's checkpoint, and the head's parameters."""

    adapter: str
    result: str
    base: str
    head: str
    parameters: tuple[str, ...]
    model_class: str


def write_adapter_head(request: Request, output: Path, head: str, tell: Progress, *, dry_run: bool) -> EditReport:
    """Writes a copy of an adapter that has the head of a checkpoint, and reports on it; kept only if it is proven.

    Raises UsageError for what isn't an adapter, Unsupported for a head that doesn't fit.
    """
    named, request = request.reference, in_local_folder(request)
    source = in_local_folder(replace(request, location=Location(head, hub=HubOptions(offline=True)), model_class=None))
    _check_families(request, source, tell)  # reads configurations only: the examinations below build models
    given = examine_by_name(source, None, tell)
    model = given.report.model
    request = replace(request, model_class=model.class_name, num_labels=model.num_labels)
    checkpoint = examine("inspect", request, tell)
    folder, base = _locate_adapter_and_base(checkpoint, given)
    check_target(output, folder, base, Path(source.reference))
    parameters = _find_missing_parameters(checkpoint, given)
    states = file_states(folder)
    left = left_behind(folder, read_contents(folder), checkpoint.manifest)
    report = EditReport(
        tool_version=tool_version(),
        source=named,
        output=str(output),
        model_class=model.class_name,
        labels_before=model.labels,
        exact=(f"PEFT loads {few_of(parameters)} as {head} has them.",),
        approximate=(
            f"An adapter holds no names of classes: load its base with num_labels={model.num_labels}.",
            "The head means something only for the hidden states that it was trained on: which base and adapter these "
            "came from isn't compared.",
        ),
        proof=EditProof(),
        head_from=head,
        left_out=tuple(name for name in left if name not in _WEIGHTS),  # these are written again
        is_dry_run=dry_run,
    )
    if dry_run:
        return report
    with staged(output) as place:
        _write_adapter(place, checkpoint, _read_head_numbers(given, parameters), report.left_out)
        for opened in (given, checkpoint):
            opened.release()  # the proof, in another process, needs the memory
        task = HeadTask(str(folder), str(place), str(base), source.reference, parameters, model.class_name)
        tell("proving the result in a separate process")
        report = replace(report, proof=prove_apart(prove_head_here, task, lambda reason: EditProof(reason=reason)))
        check_unchanged(folder, states)
        if report.proof.holds:
            put_in_place(place, output, None, (folder, Path(source.reference)))
    return report


def _check_families(request: Request, source: Request, tell: Progress) -> None:
    """Raises UsageError where the two configurations show that the head can't be one for the adapter's base model."""
    adapter, head = read_checkpoint(request, tell), read_checkpoint(source, tell)
    if adapter.adapter is None or not Path(request.reference).is_dir():
        raise UsageError(f"{request.reference} is not the folder of an adapter", "give --adapter-head with an adapter")
    for name in ("model_type", "hidden_size", "d_model", "dim", "n_embd"):
        of_base, of_head = adapter.config.get(name), head.config.get(name)
        if of_base and of_head and of_base != of_head:
            what = f"{source.reference} has {name} {of_head}, and the adapter's base model {adapter.base} has {of_base}"
            raise UsageError(what, _OF_BASE)


def _locate_adapter_and_base(checkpoint: Checkpoint, given: Checkpoint) -> tuple[Path, Path]:
    """Gives the folders of the adapter and of its base. Raises Unsupported if the head can't be written into it."""
    missing = find_missing(given.report)
    if given.manifest.adapter is not None or missing.head or missing.elsewhere or given.manifest.gaps:
        raise Unsupported(f"{given.report.checkpoint.reference} doesn't give a whole head", "name a trained checkpoint")
    if checkpoint.report.model.class_name != given.report.model.class_name:
        raise Unsupported("the adapter and the head are of different classes of Transformers", _OF_BASE)
    return Path(checkpoint.request.reference), folder_of_base(checkpoint.request, checkpoint.manifest)


def _find_missing_parameters(checkpoint: Checkpoint, given: Checkpoint) -> tuple[str, ...]:
    """Names the parameters of the head that the adapter lacks, as in the model. Raises UsageError if it lacks none."""
    facts = checkpoint.report.adapter
    wanted = facts.modules_to_save if facts is not None else ()
    found = tuple(
        item.name
        for item in given.report.weights.parameters
        if any(part in item.name.split(".")[:-1] for part in wanted)
    )
    if not found:
        raise UsageError(f"{checkpoint.report.checkpoint.reference} holds its head already", "--merge-adapter keeps it")
    return found


def _read_head_numbers(head_source: Checkpoint, parameters: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Reads the stored values of the head, by parameter. Raises Unsupported if one isn't stored as the model has it."""
    stored = head_source.stored_files[0]
    origins = {item.name: item for item in head_source.report.weights.parameters}
    headers = {name: stored.header_of(origins[name]) for name in parameters}
    lost = [name for name, header in headers.items() if header is None]
    if lost:
        raise Unsupported(f"{few_of(lost)} can't be read as stored", "save the checkpoint with Transformers first")
    return {name: stored.whole(header) for name, header in headers.items() if header is not None}


def _write_adapter(place: Path, checkpoint: Checkpoint, head: dict[str, torch.Tensor], left: tuple[str, ...]) -> None:
    """Writes the adapter's files, its tensors with those of the head, and the setting that makes PEFT load them."""
    from safetensors.torch import save_file

    folder, adapter, facts = Path(checkpoint.request.reference), checkpoint.manifest.adapter, checkpoint.report.adapter
    assert adapter is not None and facts is not None  # it is one
    taken = taken_names(read_contents(folder).files, left, _CONFIG, *_WEIGHTS, EDIT_RECORD)
    copy_files(folder, place, taken, link=False)
    stored = checkpoint.stored_files[0]
    tensors = {header.key: stored.whole(header) for header in adapter.tensors}
    # Copies, because safetensors refuses to save tensors that share memory.
    tensors |= {f"{_PREFIX}{name}": numbers.clone() for name, numbers in head.items()}
    save_file(tensors, place / _WEIGHTS[0], {"format": "pt"})
    saved = sorted({*(adapter.config.get("modules_to_save") or ()), *facts.modules_to_save})
    config = {**adapter.config, "modules_to_save": saved}
    write_small_file(place / _CONFIG, json.dumps(config, indent=2) + "\n")


def prove_head_here(task: HeadTask) -> EditProof:
    """Proves the result in this process: compares PEFT's load of it with its load of the adapter and with the head."""
    import torch

    from headscope.core.trace.batch.probe_batch import build_probe
    from headscope.core.upstream.peft import name_in_base

    try:
        request = Request(Location(task.head, hub=HubOptions(offline=True)))
        own = examine("inspect", request, None)
        request = replace(request, model_class=task.model_class, num_labels=own.report.model.num_labels)
        old, new = (
            examine("inspect", replace(request, location=replace(request.location, reference=folder)), None)
            for folder in (task.adapter, task.result)
        )
        before, after = (model_with_adapter_in(checkpoint, Path(task.base)) for checkpoint in (old, new))
        head = model_in(own, Path(task.head), torch.float32)
    except HeadscopeError as err:
        return EditProof(reason=err.message)
    expected, found = head.state_dict(), after.state_dict()
    saved = {name_in_base(key): value for key, value in found.items() if _SAVED in key}
    loads = all(name in saved and torch.equal(saved[name], expected[name]) for name in task.parameters)
    adapted = {key: value for key, value in before.state_dict().items() if ".default." in f"{key}."}
    kept = bool(adapted) and all(key in found and torch.equal(found[key], value) for key, value in adapted.items())
    target = before.get_base_model()
    # The unchanged adapter gets the head in memory: its scores are those that the result must have.
    target.load_state_dict({name: expected[name] for name in task.parameters}, strict=False)
    with torch.inference_mode():
        probe = build_probe(head, own.report.model.task, with_labels=False)
        one, other = (model(**probe.inputs).logits.float() for model in (before, after))
    largest = float((one - other).abs().max())
    tolerance = 64 * torch.finfo(torch.float32).eps * max(1.0, float(one.abs().max()))
    complete = not new.report.weights.new and new.report.adapter is not None
    reasons = {
        "PEFT doesn't load the head as the checkpoint has it": not (loads and complete),
        "another tensor of the adapter has changed": not kept,
        f"scores differ by up to {largest:.3g}": not largest <= tolerance,
    }
    return EditProof(
        loads=loads and complete,
        scores_equal=largest <= tolerance,
        max_difference=largest,
        tolerance=tolerance,
        inputs=len(one),
        base_unchanged=kept,
        reason=next((words for words, is_so in reasons.items() if is_so), ""),
    )


if __name__ == "__main__":
    answer_task(prove_head_here)
