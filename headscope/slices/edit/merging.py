"""Merge of an adapter into its base model by PEFT: one plain checkpoint, proven by a separate process.

`python -m headscope.slices.edit.merging` reads the task as JSON from standard input and prints an `EditProof` as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.copies.carried import INDEXES, left_behind, read_contents, taken_names
from headscope.copies.facts import AdapterMerge, EditProof
from headscope.copies.proving import answer_task, prove_apart
from headscope.copies.writing import check_unchanged, copy_files, file_states
from headscope.core.checkpoints.edit_record import EDIT_RECORD
from headscope.core.checkpoints.states.folders import OPTIMIZER, RESUME_FILES
from headscope.core.facts import CheckpointManifest
from headscope.core.facts.counting import few_of
from headscope.core.facts.report import find_missing
from headscope.core.facts.stored.adapter import describe_fault
from headscope.core.facts.stored.location import HubOptions, Location
from headscope.core.source.checkpoint import Checkpoint, examine
from headscope.core.source.reading.reading import in_local_folder
from headscope.core.source.request import Progress, Request
from headscope.errors import HeadscopeError, Unsupported, UsageError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_ROUNDINGS = 8
"""How often the rounding of merged weights may add up in a score, in units of the stored format."""
_SUMS = 2048
"""The same for sums in single precision through all layers, in another order."""
_OF_TRAINING = (
    "adapter_config.json", "adapter_model.*", "training_args.bin", "trainer_state.json", *OPTIMIZER, *RESUME_FILES,
)  # fmt: skip
_BATCHES = 2


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Task of the proof: the adapter, its base and the result, and how they are examined."""

    adapter: str
    base: str
    result: str
    model_class: str | None
    names: tuple[str, ...] = ()
    """The classes, where the configuration of the base contradicts itself."""
    trust_remote_code: bool = False


def merge_into(
    folder: Path, checkpoint: Checkpoint, base: Path, tell: Progress
) -> tuple[AdapterMerge, tuple[str, ...]]:
    """Writes the merged checkpoint into `folder`; gives what was merged, and the files that aren't copied.

    Raises Unsupported for a result that isn't proven, NotFound if a source changes meanwhile.
    """
    from headscope.core.model.quiet import quiet

    request = checkpoint.request
    adapter = Path(request.reference)
    states = [(place, file_states(place)) for place in (adapter, base)]
    tell("merging the adapter into its base model")
    with quiet():
        merged = _merge_with_peft(checkpoint, base)
        merged.save_pretrained(folder)
    left_out = _copy_others(adapter, base, folder, checkpoint.manifest)
    del merged  # the new process loads the model several times, and needs the memory
    tell("proving the merge in a separate process")
    task = MergeTask(
        str(adapter), str(base), str(folder), request.model_class, request.labels, request.trust_remote_code
    )
    proof = prove_apart(prove_merge_here, task, lambda reason: EditProof(reason=reason))
    for place, state in states:
        check_unchanged(place, state)
    if proof.reason:
        raise Unsupported(
            f"the merge could not be proven: {proof.reason}", "merge it with PEFT, and compare the scores"
        )
    facts = checkpoint.report.adapter
    assert facts is not None and proof.max_difference is not None and proof.tolerance is not None  # no reason then
    merge = AdapterMerge(facts.method, str(base), facts.saved, proof.max_difference, proof.tolerance, proof.inputs)
    return merge, left_out


def base_to_merge(checkpoint: Checkpoint) -> Path:
    """Gives the folder of the base model. Raises UsageError or Unsupported, with the reason, if it can't be merged."""
    report, manifest, reference = checkpoint.report, checkpoint.manifest, checkpoint.request.reference
    adapter = report.adapter
    if adapter is None or manifest.adapter is None or not Path(reference).is_dir():
        raise UsageError(f"{reference} is not the folder of an adapter", "leave out --merge-adapter")
    if adapter.faults or adapter.promised:
        why = describe_fault(adapter.faults[0]) if adapter.faults else f"it lacks {few_of(adapter.promised)}"
        raise Unsupported(f"PEFT doesn't load the adapter as it was trained: {why}", "save the adapter again")
    missing = find_missing(report)
    if missing.head or missing.elsewhere:
        raise Unsupported(
            f"neither the adapter nor its base model gives {few_of((*missing.head, *missing.elsewhere))}: it is random "
            "on every load, so there is nothing to merge",
            f"train with modules_to_save={list(adapter.modules_to_save)}" if adapter.modules_to_save else "",
        )
    if report.model.quantization is not None:
        raise Unsupported("the base model is quantized, and its weights are packed", "name the original as base model")
    return folder_of_base(checkpoint.request, manifest)


def folder_of_base(request: Request, manifest: CheckpointManifest) -> Path:
    """Locates the base model of an adapter. Raises Unsupported if it isn't on this machine."""
    base = Path(in_local_folder(replace(request, location=Location(manifest.base, manifest.base_revision))).reference)
    if not base.is_dir():
        raise Unsupported(f"the base model {manifest.base} is not a folder on this machine", "download it")
    return base


def _merge_with_peft(checkpoint: Checkpoint, base: Path) -> PreTrainedModel:
    from headscope.core.upstream.peft import merged_model

    adapter = checkpoint.manifest.adapter
    assert adapter is not None  # checked
    model = model_in(checkpoint, base)
    merged: PreTrainedModel = merged_model(model, Path(checkpoint.request.reference), adapter.config)
    return merged


def model_in(checkpoint: Checkpoint, base: Path, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """Loads the weights in `base` into the model of the adapter's class, in their own number format or in `dtype`."""
    import torch

    from headscope.core.model.loading.inference import load_model

    place = Location(str(base), hub=HubOptions(offline=True))
    return load_model(checkpoint.choice, place, torch.device("cpu"), dtype)


def model_with_adapter_in(checkpoint: Checkpoint, base: Path) -> Any:
    """Loads the base model in single precision, and the adapter of the checkpoint onto it with PEFT."""
    import torch

    from headscope.core.upstream.peft import model_with_adapter

    assert checkpoint.manifest.adapter is not None  # it is one
    model = model_in(checkpoint, base, torch.float32)
    return model_with_adapter(model, Path(checkpoint.request.reference), checkpoint.manifest.adapter.config)


def _is_of_training(name: str) -> bool:
    """True if a file belongs to an adapter or to a training run, in whatever folder of the source."""
    last = name.rpartition("/")[2]
    return name.startswith("checkpoint-") or any(fnmatchcase(last, pattern) for pattern in _OF_TRAINING)


def _copy_others(adapter: Path, base: Path, folder: Path, manifest: CheckpointManifest) -> tuple[str, ...]:
    """Copies the tokenizer, the card and other files: those of the base, and over them those of the adapter.

    Returns what stays behind but for the weights that were merged: what may hold a head, and what only the training of
    the adapter needs.
    """
    merged = {*(file.name for file in manifest.files), *INDEXES, "config.json", EDIT_RECORD}
    left_out: list[str] = []
    for place, whose in ((base, "base model"), (adapter, "adapter")):  # the adapter's files replace the base's
        contents = read_contents(place)
        left = {*left_behind(place, contents, manifest)} - merged
        kept = [name for name in taken_names(contents.files, left, *merged) if not _is_of_training(name)]
        copy_files(place, folder, kept, link=False)
        training = [name for name in contents.files if _is_of_training(name) and name not in merged]
        left_out += [f"{name} ({whose})" for name in sorted({*left, *taken_names(training, left)})]
    return tuple(left_out)


def prove_merge_here(task: MergeTask) -> EditProof:
    """Proves the merge in this process: compares the result with PEFT's load of the adapter, merged and unmerged."""
    import torch

    try:
        request = Request(
            Location(task.adapter, hub=HubOptions(offline=True)), labels=task.names, model_class=task.model_class,
            trust_remote_code=task.trust_remote_code,
        )  # fmt: skip
        checkpoint, base = examine("inspect", request, None), Path(task.base)
        result = examine("inspect", replace(request, location=replace(request.location, reference=task.result)), None)
        weights = result.report.weights
        proof = EditProof(loads=not (weights.new or weights.mismatched or weights.unused))
        again = _merge_with_peft(checkpoint, base).state_dict()
        written = model_in(checkpoint, Path(task.result)).state_dict()
        same = again.keys() == written.keys() and all(_is_same(again[key], written[key]) for key in again)
        proof = replace(proof, base_unchanged=same)
        formats = {torch.finfo(item.dtype).eps for item in written.values() if item.is_floating_point()}
        del again, written  # before the models for the scores are loaded
        proof = replace(proof, **_compare_scores(checkpoint, task, max(formats, default=0.0)))
    except HeadscopeError as err:
        return EditProof(reason=err.message)
    return replace(proof, reason=_why_not(proof))


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        # NaN isn't equal to NaN, but two stored ones are the same.
        and bool((one.eq(other) | one.isnan() & other.isnan()).all())
    )


def _why_not(proof: EditProof) -> str:
    failed = {
        "Transformers' loader doesn't find every weight": not proof.loads,
        "a tensor is not the one that PEFT merges": not proof.base_unchanged,
        f"scores differ from those of the adapter by up to {proof.max_difference or 0:.3g}": not proof.scores_equal,
    }
    return next((words for words, is_so in failed.items() if is_so), "")


def _compare_scores(checkpoint: Checkpoint, task: MergeTask, rounding: float) -> dict[str, Any]:
    """Compares scores of the result with those of the base plus its adapter, in single precision."""
    import torch

    from headscope.core.trace.batch.probe_batch import build_probe

    unmerged = model_with_adapter_in(checkpoint, Path(task.base))
    merged = model_in(checkpoint, Path(task.result), torch.float32)
    task_of_model = checkpoint.report.model.task
    probes = [build_probe(merged, task_of_model, turn=turn, with_labels=False) for turn in range(_BATCHES)]
    with torch.inference_mode():
        pairs = [(unmerged(**probe.inputs).logits.float(), merged(**probe.inputs).logits.float()) for probe in probes]
    one, other = (torch.cat([pair[side].reshape(-1) for pair in pairs]) for side in (0, 1))
    if not bool(one.isfinite().all() and other.isfinite().all()):
        raise Unsupported("some scores are not finite values, so nothing is proven about them", "")
    scale = max(1.0, float(one.abs().max()), float(other.abs().max()))
    single = torch.finfo(torch.float32).eps
    largest = float((one - other).abs().max())
    tolerance = scale * max(_SUMS * single, _ROUNDINGS * rounding if rounding > single else 0.0)
    return {
        "scores_equal": largest <= tolerance,
        "max_difference": largest,
        "tolerance": tolerance,
        "inputs": sum(batch.shape[0] for batch, _ in pairs),
    }


if __name__ == "__main__":
    answer_task(prove_merge_here)
