"""One edit of a checkpoint: it is planned, written beside the target, proven, and only then put in place."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.copies.carried import INDEXES, left_behind, read_contents, taken_names
from headscope.copies.config_changes import card_with_edit, changed_fields, edited_config, sentences_on_edit
from headscope.copies.facts import (
    EditedLabel,
    EditedTensor,
    EditFit,
    EditProof,
    EditReport,
    FitKind,
    LabelOrigin,
)
from headscope.copies.padding import plan_padding, write_pad_token
from headscope.copies.proving import ProofTask, Proven, prove_apart, prove_here
from headscope.copies.writing import (
    NewTensor,
    backup_of,
    check_in_place,
    check_target,
    check_unchanged,
    copy_files,
    file_states,
    name_beside,
    put_in_place,
    staged,
    warn_of_unfinished,
    with_name,
    write_json,
    write_small_file,
    write_weights,
)
from headscope.core.checkpoints.checkpoint_files import open_sidecar
from headscope.core.checkpoints.edit_record import EDIT_RECORD, digests_of
from headscope.core.checkpoints.reading import read_manifest
from headscope.core.facts import CheckpointKind, Head, WeightsFormat
from headscope.core.facts.counting import few_of
from headscope.core.facts.environment import tool_version
from headscope.core.facts.heads.tasks import Activation
from headscope.core.facts.stored.checkpoint import TOKENIZER_CONFIG
from headscope.core.facts.stored.location import HubOptions, Location
from headscope.core.source.checkpoint import Checkpoint, examine
from headscope.core.source.reading.reading import WITHOUT_WEIGHTS, in_local_folder
from headscope.core.source.stored_tensors import StoredFiles
from headscope.errors import Unsupported, UsageError
from headscope.slices.edit.classes import ClassTensor, class_tensors, examine_by_name
from headscope.slices.edit.labeled_scores import fit_to_texts, order_of_data
from headscope.slices.edit.merging import base_to_merge, merge_into
from headscope.slices.edit.plan import plan_labels
from headscope.slices.edit.promises import (
    ScoreChange,
    check_shifts,
    of_function,
    of_number_format,
    promises,
    score_function,
)
from headscope.slices.edit.wish import EditOrigin, EditWish

if TYPE_CHECKING:
    import torch

    from headscope.core.source.request import Progress, Request

_CARD, _CONFIG = "README.md", "config.json"


@dataclass(frozen=True, slots=True)
class _Plan:
    """Plan of an edit: the new classes, the tensors to change, the new configuration, and what holds of the scores."""

    labels: tuple[EditedLabel, ...]
    tensors: tuple[ClassTensor, ...]
    config: dict[str, Any]
    exact: tuple[str, ...]
    approximate: tuple[str, ...]
    pad_token: str = ""
    """What tokenizer_config.json has to name as the padding token; "" if it stays as it is."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A planned edit: the examined source, the target, and what is written there."""

    checkpoint: Checkpoint
    source: Path
    target: Path
    wish: EditWish
    plan: _Plan
    names: tuple[str, ...]
    """The files of the source."""
    left_out: tuple[str, ...]
    """What stays behind in the source, and in what was merged into it."""
    origin: EditOrigin
    fit: EditFit | None


def edit_checkpoint(request: Request, output: Path | None, wish: EditWish, tell: Progress) -> EditReport:
    """Edits a checkpoint and reports on it; the source changes only with `in_place`, and only a proven result is kept.

    Raises UsageError for a change that can't be made, Unsupported for a checkpoint that can't be edited so, NotFound if
    the source changes meanwhile.
    """
    named = request.reference
    if wish.in_place:
        check_in_place(Path(named))
    request = in_local_folder(request)
    if wish.in_place and (wish.merge_adapter or request.reference != named):
        raise UsageError("an adapter and a folder of the Hub's cache stay as they are", "give -o DIR")
    if not wish.merge_adapter:
        return edit_folder(request, output, wish, tell, EditOrigin(named))
    if output is None:
        raise UsageError("the merged checkpoint needs a place", "give -o DIR")
    if wish.only_merges and (wish.texts or wish.link):
        raise UsageError("a merge alone runs no texts and links no files", "leave out --text and --link")
    checkpoint = examine_by_name(request, wish.changes.labels, tell)
    base = base_to_merge(checkpoint)
    check_target(output, Path(request.reference), base)
    with staged(output) as folder:
        merge, left_out = merge_into(folder, checkpoint, base, tell)
        origin = EditOrigin(named, merge, (Path(request.reference), base), left_out)
        plain = replace(checkpoint.request, location=Location(str(folder), hub=request.location.hub), model_class=None)
        if not wish.only_merges:
            return edit_folder(plain, output, wish, tell, origin)
        report = _merge_report(plain, output, wish, origin)
        if not wish.dry_run:
            finish_copy(folder, output, report, origin.sources)
        return report


def edit_folder(
    request: Request, output: Path | None, wish: EditWish, tell: Progress, origin: EditOrigin
) -> EditReport:
    """Edits the folder of a whole checkpoint, and reports on it.

    Raises UsageError for a change that can't be made, Unsupported for a checkpoint that can't be edited so, NotFound if
    the source changes meanwhile.
    """
    if not 0 < wish.temperature < math.inf:
        raise UsageError(f"a temperature of {wish.temperature} is not a positive number", "give one such as 1.5")
    checkpoint = examine_by_name(request, wish.changes.labels, tell)
    source = folder_to_edit(checkpoint)
    target = source if wish.in_place else output
    if wish.dry_run and target is None:
        target = name_beside(source, "edited")  # a name for the report: nothing is written
    if target is None or (wish.in_place and output is not None):
        raise UsageError("the result needs one place", "give either -o DIR or --in-place")
    backup = backup_of(source) if wish.in_place else None
    if backup is not None:
        warn_of_unfinished(target)
    elif output is not None:
        check_target(target, source)
    states = file_states(source)
    _check_architecture(checkpoint, wish)
    if wish.order_from is not None:
        wish = wish.with_order(order_of_data(wish.order_from))
    if checkpoint.report.shows_chain:
        raise Unsupported(
            "the head is a chain of sentence-transformers' modules, which edit doesn't change",
            "change it with the library, and save it again",
        )
    wish, fit = _fit_wish(checkpoint, wish, tell)
    left_out = (*origin.left_out, *left_behind(source, read_contents(source), checkpoint.manifest))
    plan = _plan_edit(checkpoint, wish)
    job = _Job(checkpoint, source, target, wish, plan, tuple(states), left_out, origin, fit)
    report = _build_report(job)
    if wish.dry_run:
        return report
    with staged(target) as folder:
        tell("writing the changed files")
        _write_result(job, folder, report)
        check_unchanged(source, states)  # before the proof, which takes longer
        tell("proving the result in a separate process")
        found = prove_apart(
            prove_here,
            _proof_task(job, folder, report),
            lambda reason: Proven(EditProof(reason=reason), report.tensors),
        )
        report = replace(report, proof=found.proof, tensors=found.tensors)
        if report.proof.holds:
            _add_record(folder, report, checkpoint.report.head)
            check_unchanged(source, states)  # the proof read the source again
            put_in_place(folder, target, backup, origin.sources or (source,))
            report = replace(report, backup="" if backup is None else str(backup))
    return report


def finish_copy(folder: Path, output: Path, report: EditReport, sources: Sequence[Path]) -> None:
    """Adds what tells of the edit to a proven result, and puts it in place."""
    _add_card(folder, report)
    _add_record(folder, report)
    put_in_place(folder, output, None, sources)


def _add_record(folder: Path, report: EditReport, head: Head | None = None) -> None:
    """Writes the report to a file, with digests that show later whether the folder is still the one it describes.

    They are those of the tensors that were changed, or of the head where none was.
    """
    place = Location(str(folder), hub=HubOptions(offline=True))
    files, manifest = open_sidecar(place), read_manifest(place)
    assert files is not None  # it is a folder
    saved = report.merge.saved if report.merge is not None else ()
    folded = [item.name for item in report.fold.parameters] if report.fold is not None else []
    changed = [*(item.name for item in report.tensors), *folded]
    if not changed and head is not None:
        changed = [key for item in head.parameters for key in item.checkpoint_keys]
    record = report.to_dict() | {"digests": digests_of(files, manifest, (*changed, *saved))}
    write_json(folder / EDIT_RECORD, record)


def _check_architecture(checkpoint: Checkpoint, wish: EditWish) -> None:
    """Raises Unsupported where the class that config.json is to name loads other keys than the checkpoint has."""
    weights, name = checkpoint.report.weights, checkpoint.report.model.class_name
    missing = (*weights.new, *(item.parameter for item in weights.mismatched))
    if wish.names_class and (missing or weights.unused):
        what = f"lacks {few_of(missing)}" if missing else f"leaves {few_of(weights.unused)} unused"
        raise Unsupported(f"{name} {what}, so the checkpoint is not one of that class", "name the class of its weights")


def _merge_report(request: Request, output: Path, wish: EditWish, origin: EditOrigin) -> EditReport:
    """Builds the report on an adapter that was merged without another change."""
    merge, model = origin.merge, examine("inspect", request, None).report.model
    assert merge is not None  # there was one
    return EditReport(
        tool_version=tool_version(),
        source=origin.named,
        output=str(output),
        model_class=model.class_name,
        labels_before=model.labels,
        approximate=("The scores are those of the base model with the adapter beside it, up to rounding.",),
        proof=EditProof(
            loads=True, scores_equal=True, base_unchanged=True, inputs=merge.inputs,
            max_difference=merge.max_difference, tolerance=merge.tolerance,
        ),
        merge=merge,
        left_out=origin.left_out,
        is_dry_run=wish.dry_run,
    )  # fmt: skip


def folder_to_edit(checkpoint: Checkpoint) -> Path:
    """Gives the folder of the checkpoint. Raises Unsupported for one that can't be edited."""
    manifest, reference = checkpoint.manifest, checkpoint.request.reference
    if manifest.kind in WITHOUT_WEIGHTS:
        is_adapter = manifest.kind is CheckpointKind.ADAPTER
        merge = f"merge it first: `headscope edit {shlex.quote(reference)} -o DIR --merge-adapter`, and give DIR"
        raise Unsupported(
            f"{reference} is {WITHOUT_WEIGHTS[manifest.kind]}, so there is nothing to edit",
            merge if is_adapter else "give the folder of a whole checkpoint",
        )
    folder = with_name(Path(checkpoint.location.reference))
    if checkpoint.report.needs_repair:
        how = f"run `headscope repair {shlex.quote(reference)} -o DIR`, and edit DIR"
        raise Unsupported(f"from_pretrained doesn't load {reference} as it is", how)
    is_part = checkpoint.request.location.subfolder or checkpoint.request.location.variant
    if manifest.kind is not CheckpointKind.LOCAL or not folder.is_dir() or is_part:
        raise Unsupported(
            f"{reference} is not the folder of a whole checkpoint on this machine",
            "download it with `hf download` and give the folder",
        )
    if manifest.gaps or manifest.format is WeightsFormat.NONE:
        raise Unsupported(f"{reference} could not be read whole", "run `headscope inspect` to see why")
    return folder


def _plan_edit(checkpoint: Checkpoint, wish: EditWish) -> _Plan:
    """Plans the edit without writing anything. Raises UsageError for a change that can't be made."""
    report = checkpoint.report
    function = score_function(checkpoint, wish, report.model.num_labels)
    labels: tuple[EditedLabel, ...] = ()
    tensors: tuple[ClassTensor, ...] = ()
    exact: list[str] = []
    approximate: list[str] = []
    pad_token = ""
    if wish.touches_rows:
        labels = plan_labels(report.model.labels, wish.changes, is_softmax=function == Activation.SOFTMAX)
        function = score_function(checkpoint, wish, len(labels))
        # A name touches no row, and needs only that there is one.
        is_stored = not (report.weights.new or report.weights.mismatched)
        tensors = () if wish.only_renames and is_stored else class_tensors(checkpoint)
        check_shifts(labels, tensors, wish, function)
        formats = {wish.dtype or item.header.dtype for item in tensors}
        change = ScoreChange(labels, wish, len(report.model.labels), report.model.activation, function)
        exact, approximate = promises(change, formats)
        for before in sorted({item.header.dtype for item in tensors} - formats):
            is_exact, sentence = of_number_format(before, wish.dtype)
            (exact if is_exact else approximate).append(sentence)
    if "pad_token_id" in wish.settings:
        pad_token, sentences = plan_padding(checkpoint, wish.settings["pad_token_id"])
        approximate += sentences
    function_sentence = of_function(report.model.activation, function)
    approximate += [function_sentence] if function_sentence else []
    named, old = wish.changes.labels, report.model.labels
    if named is not None and tuple(named) != old and sorted(named) == sorted(old):
        approximate.append("--labels gives the rows each other's names; --order moves the rows with their names.")
    config = edited_config(checkpoint.manifest.config, [label.name for label in labels], wish.settings)
    _check_unicode(checkpoint.manifest.config, config)
    if config == checkpoint.manifest.config and not (labels or wish.merge_adapter):
        raise UsageError("no change was given", "name a change, such as --rename OLD=NEW")
    if not (labels or wish.merge_adapter):
        exact.append("No weight changes.")
    return _Plan(labels, tensors, config, tuple(exact), tuple(approximate), pad_token)


def _check_unicode(*configs: Mapping[str, Any]) -> None:
    """Raises UsageError for a name of a class, or another text, that no file holds."""
    try:
        json.dumps(configs, ensure_ascii=False).encode()
    except UnicodeEncodeError as err:
        found = err.object[err.start : err.end]
        raise UsageError(f"{found!r} in config.json is not valid Unicode", "give the class another name") from None


def _fit_wish(checkpoint: Checkpoint, wish: EditWish, tell: Progress) -> tuple[EditWish, EditFit | None]:
    """Fits what the wish asks for to its texts, and adds it to the wish. First plans with a stand-in, to fail early."""
    if wish.fit is None:
        return wish, None
    is_temperature = wish.fit.kind is FitKind.TEMPERATURE
    # Any temperature but 1 will do: running the texts takes long, so a plan that can't be made is refused before.
    rows = _plan_edit(checkpoint, wish.with_fit(2.0, {}) if is_temperature else wish).labels
    if not is_temperature:  # a threshold of a half shifts nothing
        rows = _plan_edit(checkpoint, wish.with_fit(None, {label.name: 0.5 for label in rows})).labels
    function = score_function(checkpoint, wish, len(rows))
    found = fit_to_texts(checkpoint, rows, wish, activation=function, tell=tell)
    return wish.with_fit(found.temperature, {item.label: item.probability for item in found.thresholds}), found


def _build_report(job: _Job) -> EditReport:
    plan, wish, manifest = job.plan, job.wish, job.checkpoint.manifest
    return EditReport(
        tool_version=tool_version(),
        source=job.origin.named,
        output=str(job.target),
        model_class=job.checkpoint.report.model.class_name,
        labels=plan.labels,
        labels_before=job.checkpoint.report.model.labels,
        tensors=tuple(_describe_tensor(item, plan, wish) for item in plan.tensors),
        settings=changed_fields(manifest.config, plan.config),
        temperature=wish.temperature,
        exact=plan.exact,
        approximate=plan.approximate,
        left_out=job.left_out,
        proof=EditProof(),
        fit=job.fit,
        merge=job.origin.merge,
        fold=job.origin.fold,
        is_dry_run=wish.dry_run,
    )


def _describe_tensor(item: ClassTensor, plan: _Plan, wish: EditWish) -> EditedTensor:
    header, axis = item.header, item.axis
    after = (*header.shape[:axis], len(plan.labels), *header.shape[axis + 1 :])
    return EditedTensor(header.key, item.parameter, axis, header.dtype, wish.dtype or header.dtype, header.shape, after)


def _proof_task(job: _Job, folder: Path, report: EditReport) -> ProofTask:
    return ProofTask(
        source=str(job.source),
        result=str(folder),
        model_class=report.model_class,
        labels=job.plan.labels,
        tensors=report.tensors,
        temperature=job.wish.temperature,
        names=job.checkpoint.request.labels,
        names_class=job.wish.names_class,
        texts=tuple(job.wish.texts),
        trust_remote_code=job.checkpoint.request.trust_remote_code,
        is_default_class=job.checkpoint.request.model_class is None,
    )


def _write_result(job: _Job, folder: Path, report: EditReport) -> None:
    """Writes all files of the result except the record of the edit."""
    manifest, plan = job.checkpoint.manifest, job.plan
    stored = job.checkpoint.stored_files[0]
    new = {
        tensor.name: NewTensor(
            replace(item.header, shape=tensor.shape_after, dtype=tensor.dtype_after, data=None),
            partial(_compute_numbers, item, tensor, stored, job),  # so that only one tensor is in memory at a time
        )
        for item, tensor in zip(plan.tensors, report.tensors, strict=True)
    }
    is_converted = manifest.format is not WeightsFormat.SAFETENSORS  # pickles become safetensors, so all are written
    rewritten = {header.file for header in manifest.tensors if is_converted or header.key in new}
    indexes = {name for name in job.names if name in INDEXES} if rewritten else set()
    settings = {TOKENIZER_CONFIG} if plan.pad_token else set()
    taken = taken_names(job.names, report.left_out, *rewritten, *indexes, *settings, _CONFIG, EDIT_RECORD)
    copy_files(job.source, folder, taken, link=job.wish.link)
    if rewritten:
        write_weights(folder, manifest, stored, new)
    write_json(folder / _CONFIG, plan.config)
    if plan.pad_token:
        write_pad_token(folder / TOKENIZER_CONFIG, job.source / TOKENIZER_CONFIG, plan.pad_token)
    _add_card(folder, report)
    job.checkpoint.release()  # the proof, in another process, needs the memory


def _add_card(folder: Path, report: EditReport) -> None:
    """Adds a paragraph on the edit to the model card, if there is one."""
    card = folder / _CARD
    if card.is_file():
        write_small_file(card, card_with_edit(card.read_bytes(), sentences_on_edit(report)))


def _compute_numbers(item: ClassTensor, tensor: EditedTensor, stored: StoredFiles, job: _Job) -> torch.Tensor:
    """Computes the edited values of a tensor."""
    import torch

    from headscope.copies.class_rows import edited_tensor

    return edited_tensor(
        stored.whole(item.header), item.axis, job.plan.labels,
        temperature=job.wish.temperature, takes_shift=item.is_bias, fresh=_fresh_rows(item, job),
        dtype=getattr(torch, tensor.dtype_after),
    )  # fmt: skip


def _fresh_rows(item: ClassTensor, job: _Job) -> torch.Tensor | None:
    """Draws rows as the class of Transformers initializes them, one per random class; None if there are none."""
    count = sum(label.origin is LabelOrigin.RANDOM for label in job.plan.labels)
    if not count:
        return None
    from headscope.core.model.tensors.initialization import fresh_draws

    path, _, name = item.parameter.rpartition(".")
    try:
        skeleton = job.checkpoint.skeleton
        assert skeleton is not None  # examined without the cache
        (fresh,) = fresh_draws(skeleton, path, seed=job.wish.seed)
        drawn = fresh[name]
    except Exception as err:  # whatever a class's own initialization raises
        raise Unsupported(f"the class's own initialization of {item.parameter} can't be run: {err}", "") from err
    if drawn.shape[item.axis] < count:
        raise Unsupported(f"{count} random classes are more than there were: {drawn.shape[item.axis]}", "add fewer")
    return drawn.narrow(item.axis, 0, count)
