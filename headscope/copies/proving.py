"""Proof of an edit: a separate process, which knows only the plan, reads source and result from disk.

`python -m headscope.copies.proving` reads the task as JSON from standard input and prints an `EditProof` as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from headscope.copies.facts import EditedLabel, EditedTensor, EditProof
from headscope.core.facts.plain import restore, store
from headscope.errors import HeadscopeError, Unsupported

if TYPE_CHECKING:
    import torch

    from headscope.core.source.checkpoint import Checkpoint
    from headscope.core.source.request import Request
    from headscope.core.trace import HeadProgram

_SIZES = (1.0, 5.0)
"""The sizes of random hidden states: those of a base model that ends in a normalization, and its outliers."""
_SEEDS = (11, 12)
_ROUNDINGS = 8
"""How often rounding may add up, in units of the stored format; a sum of products in single precision besides."""
_SUMS = 64
_PIECE = 16_000_000
_Proof = TypeVar("_Proof")
_Task = TypeVar("_Task")


@dataclass(frozen=True, slots=True)
class ProofTask:
    """Task of the proof: the folders, how they are examined, and the plan."""

    source: str
    result: str
    model_class: str
    labels: tuple[EditedLabel, ...]
    tensors: tuple[EditedTensor, ...]
    temperature: float
    names: tuple[str, ...] = ()
    """The classes of the source, where its own configuration contradicts itself."""
    names_class: bool = False
    """Whether the result's own configuration has to name the class."""
    texts: tuple[str, ...] = ()
    trust_remote_code: bool = False
    is_default_class: bool = False
    """Whether `model_class` is the class of the source where none is named."""


@dataclass(frozen=True, slots=True)
class Proven:
    """The proof, and the tensors with the result of comparing their rows."""

    proof: EditProof
    tensors: tuple[EditedTensor, ...]


def prove_apart(
    prove: Callable[[_Task], _Proof], task: _Task, failed: Callable[[str], _Proof], **environment: str
) -> _Proof:
    """Proves a task in a new process, which runs the module of `prove`.

    If that process fails, nothing is proven: `failed` makes a proof of the reason.
    """
    found = prove_in_process(prove, task, environment)
    return failed(found) if isinstance(found, str) else found


def prove_in_process(prove: Callable[[_Task], _Proof], task: _Task, environment: Mapping[str, str]) -> _Proof | str:
    """Runs the module of `prove` on a task in a new process; gives its answer, or the reason why it failed."""
    done = subprocess.run(
        [sys.executable, "-m", prove.__module__],
        input=json.dumps(store(task)), capture_output=True, text=True, check=False,
        # The proof reads the disk only, and a module in the current folder must not replace one of ours.
        env=os.environ | environment | {"HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1"},
    )  # fmt: skip
    try:
        found: _Proof = restore(get_type_hints(prove)["return"], json.loads(done.stdout))
        return found
    except (ValueError, TypeError):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return f"the process that proves it failed: {last}"


def answer_task(prove: Callable[[Any], object]) -> None:
    """Reads a task from standard input, proves it, and prints the proof: the other side of `prove_in_process`.

    Everything else that is printed goes to stderr.
    """
    task, real = restore(get_type_hints(prove)["task"], json.load(sys.stdin)), sys.stdout
    with redirect_stdout(sys.stderr):  # a library, or code of the checkpoint, may print while it loads
        proof = prove(task)
    print(json.dumps(store(proof)), file=real)


def prove_here(task: ProofTask) -> Proven:
    """Proves the edit in this process."""
    from headscope.core.source.checkpoint import examine

    proof, tensors = EditProof(), task.tensors
    try:
        renames = _changes_names_only(task)
        requests = [_request_for(task, folder, by_default=renames) for folder in (task.source, task.result)]
        old, new = (examine("inspect", request, None) for request in requests)
        weights = old.report.weights, new.report.weights
        keys_before, keys_after = ((one.new, one.mismatched, one.unused, one.loaded) for one in weights)
        proof = replace(proof, loads=keys_before == keys_after)
        if task.names_class and _default_class_name(task) != task.model_class:
            raise Unsupported(f"the result is loaded as {_default_class_name(task)}", "")
        if renames:
            return _prove_renamed(task, proof, old, new)
        tensors = tuple(_check_kept_rows(item, task, old, new) for item in task.tensors)
        compared = [item.kept_rows_equal for item in tensors if item.kept_rows_equal is not None]
        proof = replace(proof, kept_rows_equal=all(compared) if compared else None)
        proof = replace(proof, base_unchanged=_others_equal(task, old, new))
        if task.labels:
            proof = replace(proof, **_compare_scores(task, old, new))
        else:
            proof = replace(proof, scores_equal=True, max_difference=0.0, tolerance=0.0)
    except HeadscopeError as err:
        proof = replace(proof, reason=err.message)
    return Proven(replace(proof, reason=proof.reason or _describe_failure(proof)), tensors)


def _changes_names_only(task: ProofTask) -> bool:
    """True if rows stay as they are, and both configurations say the same of a class of Transformers but for names.

    Then the scores are the same where all tensors are. Other code may do anything with the names of its classes.
    """
    from headscope.copies.config_changes import CLASS_FIELDS
    from headscope.core.checkpoints.formats.config_file import parse_object

    requests = [_request_for(task, folder, by_default=True) for folder in (task.source, task.result)]
    if task.texts or not (task.labels and task.is_default_class) or any(one.runs_code for one in requests):
        return False
    stay = task.temperature == 1.0 and all(item.source == at and not item.shift for at, item in enumerate(task.labels))
    if not stay or any((it.shape_before, it.dtype) != (it.shape_after, it.dtype_after) for it in task.tensors):
        return False
    files = [Path(one.reference) / "config.json" for one in requests]
    configs = [parse_object(file.read_bytes(), file.name) for file in files]
    before, after = ({name: one[name] for name in one if name not in CLASS_FIELDS} for one in configs)
    return before == after


def _prove_renamed(task: ProofTask, proof: EditProof, old: Checkpoint, new: Checkpoint) -> Proven:
    """Proves that the classes have their names, and that every tensor is equal byte by byte, those of the head too."""
    if new.report.model.labels != tuple(label.name for label in task.labels):
        raise Unsupported("the result names other classes", "")
    equal = _others_equal(replace(task, tensors=()), old, new)
    proof = replace(
        proof, kept_rows_equal=equal, base_unchanged=equal, scores_equal=equal, max_difference=0.0, tolerance=0.0
    )
    tensors = tuple(replace(item, kept_rows_equal=equal) for item in task.tensors)
    return Proven(replace(proof, reason=_describe_failure(proof)), tensors)


def _describe_failure(proof: EditProof) -> str:
    failed = {
        "Transformers' loader finds other weights than before": proof.loads is False,
        "a row that should be kept has changed": proof.kept_rows_equal is False,
        "another tensor has changed": proof.base_unchanged is False,
        f"scores differ from the promised ones by up to {proof.max_difference or 0:.3g}": proof.scores_equal is False,
    }
    return next((words for words, holds in failed.items() if holds), "")


def _request_for(task: ProofTask, folder: str, *, by_default: bool = False) -> Request:
    """Requests a side, as the class that the edit was made for, or, `by_default`, without naming a class."""
    from headscope.core.facts.stored.location import HubOptions, Location
    from headscope.core.source.request import Request

    location = Location(folder, hub=HubOptions(offline=True))
    names = task.names if folder == task.source else ()
    model_class = None if by_default else task.model_class
    code = task.trust_remote_code
    return Request(location, labels=names, model_class=model_class, trust_remote_code=code, cache=by_default)


def _default_class_name(task: ProofTask) -> str:
    """Gives the class that the result is loaded as when no class is named."""
    from headscope.core.source.checkpoint import examine

    return examine("inspect", _request_for(task, task.result, by_default=True), None).report.model.class_name


def _check_kept_rows(item: EditedTensor, task: ProofTask, old: Checkpoint, new: Checkpoint) -> EditedTensor:
    """Notes whether the tensor's kept rows have the same bytes as before; None if no row is kept unchanged."""
    from headscope.copies.class_rows import keeps_bits

    takes_shift = len(item.shape_before) == 1  # only a bias does
    kept = [
        (at, label.source)
        for at, label in enumerate(task.labels)
        if label.source is not None and keeps_bits(label, temperature=task.temperature, takes_shift=takes_shift)
    ]
    if not kept:
        return item
    numbers = []
    for side in (old, new):
        header = next((header for header in side.manifest.tensors if header.key == item.name), None)
        if header is None:
            raise Unsupported(f"the result lacks {item.name}", "")
        numbers.append(side.stored_files[0].whole(header))
    before, after = numbers
    one = before.movedim(item.axis, 0)[[source for _, source in kept]]
    other = after.movedim(item.axis, 0)[[at for at, _ in kept]]
    is_as_said = after.shape == item.shape_after and str(after.dtype) == f"torch.{item.dtype_after}"
    return replace(item, kept_rows_equal=is_as_said and same_bytes(one.to(other.dtype), other))


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors have the same shape, number format and bytes."""
    import torch

    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    flat = (item.detach().contiguous().reshape(-1).view(torch.uint8) for item in (one, other))
    return torch.equal(*flat)


def _others_equal(task: ProofTask, old: Checkpoint, new: Checkpoint) -> bool:
    """True if all tensors except those of the classes are equal byte by byte. A linked file is the same file."""
    edited = {item.name for item in task.tensors}
    after = {header.key: header for header in new.manifest.tensors}
    before = [header for header in old.manifest.tensors if header.key not in edited]
    if {header.key for header in before} != set(after) - edited:
        return False
    source, result = old.stored_files[0], new.stored_files[0]
    for header in before:
        other = after[header.key]
        if (header.shape, header.dtype) != (other.shape, other.dtype):
            return False
        if source.path_of(header.file).samefile(result.path_of(other.file)):
            continue
        if source.is_pickled:
            if not same_bytes(source.whole(header), result.whole(other)):
                return False
        elif any(
            one != two for one, two in zip(source.pieces(header, _PIECE), result.pieces(other, _PIECE), strict=True)
        ):
            return False
    return True


def _compare_scores(task: ProofTask, old: Checkpoint, new: Checkpoint) -> dict[str, Any]:
    """Compares both heads on the same random hidden states, and both whole models on the texts."""
    import torch

    from headscope.copies.class_rows import promised_scores
    from headscope.copies.facts import LabelOrigin

    pairs = [*_scores_on_hidden_states(task, old, new), *_scores_on_texts(task, old, new)]
    if not pairs:
        return {"reason": "no scores could be compared"}
    for side, words in enumerate(("the checkpoint", "the result")):
        if not all(pair[side].isfinite().all() for pair in pairs):
            return {"scores_equal": False, "reason": f"{words} gives scores that aren't numbers (NaN or infinite)"}
    count = len(old.report.model.labels)
    if any(one.shape[1] != count or two.shape[1] != len(task.labels) for one, two in pairs):
        return {"reason": "the head doesn't give one score for each class"}
    before, after = (torch.cat([pair[side] for pair in pairs]).double() for side in (0, 1))
    promised = promised_scores(before, task.labels, task.temperature)
    # Nothing is promised about a random row: its promised scores are NaN.
    known = [at for at, label in enumerate(task.labels) if label.origin is not LabelOrigin.RANDOM]
    difference = (promised - after)[:, known].abs()
    largest = float(difference.max()) if difference.numel() else 0.0
    tolerance = _score_tolerance(task, before, after[:, known])
    # Equal scores for all inputs would agree with any result, so they prove nothing.
    is_alive = len(before) > 1 and bool((before.std(0) > 0).any())
    random = tuple(label.name for label in task.labels if label.origin is LabelOrigin.RANDOM)
    return {
        "scores_equal": largest <= tolerance and is_alive,
        "max_difference": largest,
        "tolerance": tolerance,
        "inputs": len(before),
        "texts": len(task.texts),
        "not_proven": random,
        "reason": "" if is_alive else "the scores don't depend on the hidden states",
    }


def _score_tolerance(task: ProofTask, before: torch.Tensor, after: torch.Tensor) -> float:
    """Bounds what rounding explains: of the stored format if rows were computed, and of single precision.

    The rounding of stored values moves a score in relation to the largest score, of any class.
    """
    import torch

    scale = max(float(before.abs().max()), float(after.abs().max()) if after.numel() else 0.0, 1.0)
    computed = task.temperature != 1.0 or any(label.source is None or label.shift for label in task.labels)
    touched = [item for item in task.tensors if computed or item.dtype != item.dtype_after]
    formats = [torch.finfo(getattr(torch, name)).eps for item in touched for name in (item.dtype, item.dtype_after)]
    return scale * max([_SUMS * torch.finfo(torch.float32).eps, *(_ROUNDINGS * eps for eps in formats)])


def _scores_on_hidden_states(
    task: ProofTask, old: Checkpoint, new: Checkpoint
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields the scores of both heads, [inputs, classes], for hidden states of several sizes."""
    import torch

    from headscope.checks.evidence.gathering import loaded_head

    one, two = old.program, new.program
    sizes: list[Any] = [len(side.report.model.labels) for side in (old, new)]
    sizes += [side.manifest.config for side in (old, new)]
    if one is None or two is None:
        gaps = (*old.report.not_determined, *new.report.not_determined)
        why = f" ({gaps[0].reason})" if gaps else ""
        raise Unsupported(f"the head path is not known{why}, so nothing can be proven about the scores", "")
    own, others = loaded_head(old), loaded_head(new)
    unread = [item.parameter for item in task.tensors if item.parameter not in own or item.parameter not in others]
    if unread:
        raise Unsupported(f"the numbers of {unread[0]} can't be read, so nothing can be proven about the scores", "")
    if [item.shape for item in one.head.hidden] != [item.shape for item in two.head.hidden]:
        # The trace avoids batch sizes that are sizes of the model. With five classes it doesn't take five rows, and the
        # other side, with another number of classes, might: so both avoid the sizes of both.
        one, two = (_trace_with_other_sizes(side, sizes) for side in (old, new))
    if not (one and two) or [item.shape for item in one.head.hidden] != [item.shape for item in two.head.hidden]:
        raise Unsupported("the two heads begin at hidden states of other shapes", "")
    for size, seed in zip(_SIZES, _SEEDS, strict=True):
        generator = torch.Generator().manual_seed(seed)
        hidden = [torch.randn(item.shape, generator=generator) * size for item in one.head.hidden]
        before, after = one.run(own, hidden).logits, two.run(others, hidden).logits
        if len(before) != 1 or len(after) != 1:
            raise Unsupported("the head gives several tensors of scores", "")
        yield _as_rows(before[0]), _as_rows(after[0])


def _trace_with_other_sizes(side: Checkpoint, sizes: Sequence[Any]) -> HeadProgram | None:
    """Traces the head on a batch that has none of `sizes`, which are numbers of the configuration."""
    from headscope.core.source.loading import examine_manifest
    from headscope.core.source.reading.tracing import trace_checkpoint

    config = {**side.manifest.config, "sizes_to_avoid": list(sizes)}
    manifest = replace(side.manifest, config=config)
    return examine_manifest("inspect", side.request, manifest, trace_checkpoint, None).make_program()


def _as_rows(logits: torch.Tensor) -> torch.Tensor:
    """Reshapes logits to [inputs, classes]."""
    return logits.detach().float().reshape(-1, logits.shape[-1])


def _scores_on_texts(task: ProofTask, old: Checkpoint, new: Checkpoint) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields the logits of both whole models for the texts of the task."""
    if not task.texts:
        return
    from headscope.shared.serving.reference_scores import TextScorer

    texts = [(text,) for text in task.texts]
    import torch

    one, two = (TextScorer.load(side, 1).reference(texts, side.report.model.labels, "none") for side in (old, new))
    yield torch.from_numpy(one.logits).float(), torch.from_numpy(two.logits).float()


if __name__ == "__main__":
    answer_task(prove_here)
