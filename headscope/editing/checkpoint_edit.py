"""One edit from the checkpoint to the proven result: planned, written beside, proven, and only then put in place."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.editing.class_axis import ClassTensor, class_tensors
from headscope.editing.config_changes import card_with_edit, changed_fields, edited_config
from headscope.editing.plan import LabelChanges, plan_labels
from headscope.editing.proving import ProofTask, prove_apart
from headscope.editing.writing import (
    INDEXES,
    RECORD,
    NewTensor,
    check_target,
    check_unchanged,
    copy_files,
    file_states,
    old_heads,
    put_in_place,
    staged,
    write_small_file,
    write_weights,
)
from headscope.errors import Unsupported, UsageError
from headscope.examination.base.reading import WITHOUT_WEIGHTS, loadable
from headscope.examination.checkpoint.examining import Examined, examine
from headscope.examination.evidence.stored_tensors import StoredFiles, open_stored_files
from headscope.facts import CheckpointKind, WeightsFormat
from headscope.facts.counting import counted, few_of
from headscope.facts.results.edit import EditedLabel, EditedTensor, EditProof, EditReport, LabelOrigin
from headscope.facts.results.environment import tool_version

if TYPE_CHECKING:
    import torch

    from headscope.examination.base.request import Progress, Request

_CARD, _CONFIG = "README.md", "config.json"
_SOFTMAX = "softmax"


@dataclass(frozen=True, slots=True)
class EditWish:
    """What is to change, and how the result is written."""

    changes: LabelChanges = field(default_factory=LabelChanges)
    temperature: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of config.json to set."""
    seed: int = 0
    """Of random rows."""
    texts: Sequence[str] = ()
    """Texts that the proof runs through both models."""
    link: bool = False
    in_place: bool = False
    dry_run: bool = False

    @property
    def touches_rows(self) -> bool:
        """Whether the last layer or the names of the classes change."""
        return self.changes != LabelChanges() or self.temperature != 1.0


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is written: the classes, the tensors with their new forms, the configuration, and what holds."""

    labels: tuple[EditedLabel, ...]
    tensors: tuple[ClassTensor, ...]
    config: dict[str, Any]
    exact: tuple[str, ...]
    approximate: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Job:
    """An edit that was planned: what was examined, where the result goes, and what is written there."""

    request: Request
    examined: Examined
    source: Path
    target: Path
    wish: EditWish
    plan: _Plan
    names: tuple[str, ...]
    """The files of the source."""


def edit_checkpoint(request: Request, output: Path | None, wish: EditWish, tell: Progress) -> EditReport:
    """The report on an edit. The source stays as it is, but with `in_place`; the result is there only if it is proven.

    Raises UsageError for a change that can't be made, Unsupported for a checkpoint that can't be edited so, NotFound if
    the source changes meanwhile.
    """
    if not 0 < wish.temperature < math.inf:
        raise UsageError(f"a temperature of {wish.temperature} is not a positive number", "give one such as 1.5")
    examined = examine("inspect", request, tell)
    source = _folder_of(request, examined)
    target = source if wish.in_place else output
    if target is None or (wish.in_place and output is not None):
        raise UsageError("the result needs one place", "give either -o DIR or --in-place")
    backup = backup_of(source) if wish.in_place else None
    if backup is None:
        check_target(target, source)
    states = file_states(source)
    job = _Job(request, examined, source, target, wish, _plan(examined, request, wish), tuple(states))
    report = _report(job)
    if wish.dry_run:
        return report
    with staged(target) as folder:
        tell("writing the changed files")
        _write(job, folder, report)
        check_unchanged(source, states)
        tell("proving the result in a separate process")
        found = prove_apart(_task(job, folder, report))
        report = replace(report, proof=found.proof, tensors=found.tensors)
        if report.proof.holds:
            write_small_file(folder / RECORD, json.dumps(report.to_dict(), indent=2, ensure_ascii=False) + "\n")
            check_unchanged(source, states)
            put_in_place(folder, target, backup)
    return report


def backup_of(source: Path) -> Path:
    """Where a checkpoint that is edited in place is kept. Raises UsageError where that is taken."""
    backup = source.with_name(f"{source.name}.before-edit")
    if backup.exists():
        raise UsageError(f"{backup} exists already", "move the older backup away")
    return backup


def _folder_of(request: Request, examined: Examined) -> Path:
    manifest = examined.manifest
    if manifest.kind in WITHOUT_WEIGHTS:
        raise Unsupported(
            f"{request.reference} is {WITHOUT_WEIGHTS[manifest.kind]}, so there is nothing to edit",
            "give the folder of a whole checkpoint",
        )
    folder = Path(loadable(request, manifest).reference)
    if not folder.is_dir() or request.location.subfolder or request.location.variant or manifest.repaired is not None:
        raise Unsupported(
            f"{request.reference} is not the folder of a whole checkpoint on this machine",
            "download it with `hf download` and give the folder",
        )
    if manifest.gaps or manifest.format is WeightsFormat.NONE:
        raise Unsupported(f"{request.reference} could not be read whole", "run `headscope inspect` to see why")
    if manifest.kind is not CheckpointKind.LOCAL:
        raise Unsupported(f"{request.reference} is not a folder", "download it with `hf download` and give the folder")
    return folder


def _plan(examined: Examined, request: Request, wish: EditWish) -> _Plan:
    report = examined.report
    is_softmax = _activation(examined, wish) == _SOFTMAX
    labels: tuple[EditedLabel, ...] = ()
    tensors: tuple[ClassTensor, ...] = ()
    exact: list[str] = []
    approximate: list[str] = []
    if wish.touches_rows:
        labels = plan_labels(report.model.labels, wish.changes, is_softmax=is_softmax)
        tensors = class_tensors(examined, request)
        labels = _with_places_for_shifts(labels, tensors, wish)
        exact = list(_exact(labels, wish, is_softmax, len(report.model.labels)))
        approximate = list(_approximate(labels, wish, is_softmax, len(report.model.labels)))
    if "pad_token_id" in wish.settings:
        approximate.append("The padding token decides what is masked or read: scores of padded texts may change.")
    config = edited_config(examined.manifest.config, labels or None, wish.settings)
    if config == examined.manifest.config and not labels:
        raise UsageError("no change was given", "name a change, such as --rename OLD=NEW")
    if not labels:
        exact.append("No weight changes.")
    return _Plan(labels, tensors, config, tuple(exact), tuple(approximate))


def _activation(examined: Examined, wish: EditWish) -> str:
    """The function on the scores after the edit."""
    kind = wish.settings.get("problem_type")
    if kind == "multi_label_classification":
        return "sigmoid"
    return _SOFTMAX if kind == "single_label_classification" else examined.report.model.activation


def _with_places_for_shifts(
    labels: tuple[EditedLabel, ...], tensors: Sequence[ClassTensor], wish: EditWish
) -> tuple[EditedLabel, ...]:
    """The classes with shifts that a bias can hold. Raises Unsupported where a wanted one has no place."""
    biases = [item.parameter for item in tensors if item.is_bias]
    if len(biases) == 1:
        return labels
    if wish.changes.bias or wish.changes.threshold:
        what = "has no bias" if not biases else f"has several biases: {few_of(biases)}"
        raise Unsupported(
            f"the last layer {what}, so a threshold or a bias has no place in the checkpoint",
            "apply it to the scores, after the model",
        )
    return tuple(replace(label, shift=0.0) for label in labels)


def _exact(labels: Sequence[EditedLabel], wish: EditWish, is_softmax: bool, before: int) -> Iterator[str]:
    """What holds up to rounding."""
    kept = [label for label in labels if label.origin is LabelOrigin.KEPT and not label.shift]
    scaled = f", divided by {wish.temperature:g}" if wish.temperature != 1.0 else ""
    if kept:
        yield f"The logits of {counted(len(kept), 'kept class', 'kept classes')} are those of before{scaled}."
    for label in labels:
        if label.origin is LabelOrigin.COPIED and not label.shift:
            yield f"{label.name} begins with the logit of {label.name_before}{scaled}."
        amount = wish.changes.bias.get(label.name)
        if amount:
            yield f"{amount:+g} is added to the logit of {label.name}."
    for label, limit in _exact_thresholds(labels, wish, is_softmax, before):
        if is_softmax:
            yield f"{label.name} wins exactly where its probability was above {limit:g}."
        else:
            yield f"{label.name} is above 0.5 exactly where the sigmoid of its logit was above {limit:g}."
    if wish.temperature != 1.0 and len(kept) == len(labels) == before:
        yield "The class with the highest score is the same for every input."


def _exact_thresholds(
    labels: Sequence[EditedLabel], wish: EditWish, is_softmax: bool, before: int
) -> list[tuple[EditedLabel, float]]:
    """The thresholds that decide exactly: of kept classes without a bias; of a softmax, one of two classes."""
    found = [
        (label, wish.changes.threshold[label.name])
        for label in labels
        if label.name in wish.changes.threshold
        and label.name not in wish.changes.bias
        and label.origin is LabelOrigin.KEPT
    ]
    is_binary = before == 2 and sum(label.origin is LabelOrigin.KEPT for label in labels) == len(labels) == 2
    is_alone = len(wish.changes.threshold) == 1 and not wish.changes.bias
    return found if not is_softmax or (is_binary and is_alone) else []


def _approximate(labels: Sequence[EditedLabel], wish: EditWish, is_softmax: bool, before: int) -> Iterator[str]:
    """What doesn't hold exactly, or isn't known."""
    new = [label for label in labels if label.origin in (LabelOrigin.ZERO, LabelOrigin.MEAN, LabelOrigin.RANDOM)]
    if new:
        yield f"{few_of(label.name for label in new)}: the row is a start for training, not a trained class."
    if is_softmax and len(labels) != before:
        yield "Probabilities change with the number of classes; between kept classes their ratios stay."
    for label in labels:
        if label.merged:
            more = f" plus {label.shift:.3g}" if label.shift else ""
            yield (
                f"{label.name} gets the mean of the logits of {len(label.merged)} classes{more}. That is the sum of "
                "their probabilities only where these logits are equal."
            )
    if is_softmax and wish.changes.threshold and not _exact_thresholds(labels, wish, is_softmax, before):
        yield "A threshold shifts the logit: with other changes or classes, it isn't exactly where the class is chosen."


def _report(job: _Job) -> EditReport:
    plan, wish, manifest = job.plan, job.wish, job.examined.manifest
    return EditReport(
        tool_version=tool_version(),
        source=job.request.reference,
        output=str(job.target),
        model_class=job.examined.report.model.class_name,
        labels=plan.labels,
        labels_before=job.examined.report.model.labels,
        tensors=tuple(_described(item, plan) for item in plan.tensors),
        settings=changed_fields(manifest.config, plan.config),
        temperature=wish.temperature,
        exact=plan.exact,
        approximate=plan.approximate,
        left_out=old_heads(job.names, manifest),
        proof=EditProof(reason="a dry run proves nothing" if wish.dry_run else ""),
        is_dry_run=wish.dry_run,
    )


def _described(item: ClassTensor, plan: _Plan) -> EditedTensor:
    shape = list(item.header.shape)
    shape[item.axis] = len(plan.labels)
    header = item.header
    return EditedTensor(header.key, item.parameter, item.axis, header.dtype, header.shape, tuple(shape))


def _task(job: _Job, folder: Path, report: EditReport) -> ProofTask:
    return ProofTask(
        source=str(job.source),
        result=str(folder),
        model_class=report.model_class,
        labels=job.plan.labels,
        tensors=report.tensors,
        temperature=job.wish.temperature,
        texts=tuple(job.wish.texts),
        trust_remote_code=job.request.trust_remote_code,
    )


def _write(job: _Job, folder: Path, report: EditReport) -> None:
    """All files of the result but the record of the edit."""
    manifest, plan = job.examined.manifest, job.plan
    stored = open_stored_files(job.request, manifest)[0]
    new = {
        tensor.name: NewTensor(
            replace(item.header, shape=tensor.shape_after, data=None), _numbers_of(item, stored, job)
        )
        for item, tensor in zip(plan.tensors, report.tensors, strict=True)
    }
    is_converted = manifest.format is not WeightsFormat.SAFETENSORS
    rewritten = {header.file for header in manifest.tensors if is_converted or header.key in new}
    indexes = {name for name in job.names if name in INDEXES} if rewritten else set()
    left_out = {*report.left_out, *rewritten, *indexes, _CONFIG, RECORD}
    copy_files(job.source, folder, [name for name in job.names if name not in left_out], link=job.wish.link)
    if rewritten:
        write_weights(folder, manifest, stored, new)
    write_small_file(folder / _CONFIG, json.dumps(plan.config, indent=2, ensure_ascii=False) + "\n")
    card = folder / _CARD
    if card.is_file():
        write_small_file(card, card_with_edit(card.read_text(encoding="utf-8", errors="replace"), _sentences(report)))


def _numbers_of(item: ClassTensor, stored: StoredFiles, job: _Job) -> Callable[[], torch.Tensor]:
    from headscope.editing.class_rows import edited_tensor

    def numbers() -> torch.Tensor:
        return edited_tensor(
            stored.whole(item.header), item.axis, job.plan.labels,
            temperature=job.wish.temperature, takes_shift=item.is_bias, fresh=_fresh_rows(item, job),
        )  # fmt: skip

    return numbers


def _fresh_rows(item: ClassTensor, job: _Job) -> torch.Tensor | None:
    """Rows as the class of Transformers initializes them, one for each random class; None where there is none."""
    count = sum(label.origin is LabelOrigin.RANDOM for label in job.plan.labels)
    if not count:
        return None
    from headscope.model.tensors.initialization import fresh_numbers

    path, _, name = item.parameter.rpartition(".")
    try:
        skeleton = job.examined.skeleton
        assert skeleton is not None  # examined without the cache
        drawn = fresh_numbers(skeleton, path, job.wish.seed)[name]
    except Exception as err:  # whatever a class's own initialization raises
        raise Unsupported(f"the class's own initialization of {item.parameter} can't be run: {err}", "") from err
    if drawn.shape[item.axis] < count:
        raise Unsupported(f"{count} random classes are more than there were: {drawn.shape[item.axis]}", "add fewer")
    return drawn.narrow(item.axis, 0, count)


def _sentences(report: EditReport) -> list[str]:
    """The edit in sentences, for the model card."""
    before, after = (
        counted(len(report.labels_before), "class", "classes"),
        counted(len(report.labels), "class", "classes"),
    )
    rows = [f"{before} before, {after} after."] if report.labels else []
    fields = [f"`{item.name}` is set to {item.after}." for item in report.settings if item.name not in _LABEL_FIELDS]
    return [*rows, *report.exact, *report.approximate, *fields]


_LABEL_FIELDS = ("id2label", "label2id", "num_labels", "_num_labels")
