"""One repair of a checkpoint: it is carried out in steps, each written beside the source and proven."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from headscope.copies.config_changes import edited_config
from headscope.copies.proving import prove_apart
from headscope.copies.writing import (
    check_target,
    check_unchanged,
    copy_files,
    file_states,
    name_beside,
    put_in_place,
    staged,
    write_json,
    write_small_file,
    write_weights,
)
from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.checkpoints.states.folders import TakeFolder
from headscope.core.checkpoints.states.peft_keys import MergePeft
from headscope.core.facts.counting import few_of
from headscope.core.facts.environment import tool_version
from headscope.core.facts.report import find_missing
from headscope.core.facts.stored.checkpoint import CONFIG, WEIGHT_SUFFIXES
from headscope.core.source.reading.without_config import WriteConfig
from headscope.errors import Malformed, Unsupported, UsageError
from headscope.slices.repair.facts import RepairProof, RepairReport
from headscope.slices.repair.given import (
    assumed_settings,
    check_given,
    check_taken,
    config_of_adapter,
    given_config,
    given_options,
    later_options,
    reason_against,
    taken_models,
    taken_options,
)
from headscope.slices.repair.proof import RepairTask, prove_repair
from headscope.slices.repair.steps import (
    RepairStep,
    RepairWish,
    files_taken,
    kept_files,
    kept_weights,
    repaired_tensors,
    replaced_files,
    states_in,
)

if TYPE_CHECKING:
    from headscope.core.source.request import Progress, Request

REPAIR_RECORD = "headscope-repair.json"
_SETTINGS = {".json", ".txt", ".model", ".jinja", ".spm", ".tiktoken", ".codes", ".vocab", ".py"}
"""Endings of what is taken along: configurations, tokenizers, templates, code."""
_MOST_STEPS = 5
"""A Trainer's output, a file of a training run without a configuration, the keys of an adapter, those of a wrapper."""


def repair_checkpoint(request: Request, output: Path | None, wish: RepairWish, tell: Progress) -> RepairReport:
    """Repairs a checkpoint and reports on it. The source stays unchanged, and only a proven result is kept.

    Of a single file of weights, the settings beside it are taken too. Nothing is written either where several models
    may be meant, or where the source contradicts itself. Raises UsageError for options that don't fit, Unsupported for
    a state that can't be repaired with what was given, NotFound if the source changes meanwhile.
    """
    source = Path(request.reference)
    if output is None:  # a name for the report: nothing is written
        output = name_beside(source, "repaired")
    elif source.exists():
        check_target(
            output, source if source.is_dir() else source.parent, *([Path(wish.config)] if wish.config else ())
        )
    if source.is_dir():
        return _repair_folder(request, output, wish, tell)
    if not source.is_file() or source.suffix not in WEIGHT_SUFFIXES:
        found = "is not a file of weights" if source.exists() else "is not on this machine"
        raise UsageError(f"{request.reference} {found}", f"give a folder, or a file ({', '.join(WEIGHT_SUFFIXES)})")
    if any(source.name in file.read_text("utf-8", "replace") for file in source.parent.glob("*.index.json")):
        raise UsageError(f"{request.reference} is one shard of several", f"give the folder: {source.parent}")
    beside = [file for file in source.parent.iterdir() if file.is_file() and file.suffix not in WEIGHT_SUFFIXES]
    taken = [file for file in beside if file.suffix in _SETTINGS]
    with TemporaryDirectory(prefix="headscope-") as folder:
        for file in (source, *taken):
            (Path(folder) / file.name).symlink_to(file.absolute())
        location = replace(request.location, reference=folder)
        report = _repair_folder(replace(request, location=location), output, wish, tell, shown=request.reference)
    left = sorted(file.name for file in {*beside} - {*taken})
    return replace(report, left_out=(*report.left_out, *left))


def _repair_folder(request: Request, output: Path, wish: RepairWish, tell: Progress, shown: str = "") -> RepairReport:
    """Repairs the checkpoint in a folder, which a report calls `shown`."""
    source = Path(request.reference)
    before = file_states(source)
    tell("looking for the states of the checkpoint")
    step = states_in(replace(request, take=wish.take), source)
    reason = reason_against(step, wish, set())
    if not step.states and step.report is not None and not step.report.weights.loaded:
        raise Unsupported(
            f"{shown or request.reference} holds no weights that {step.report.model.class_name} loads, and none that "
            "headscope knows how to repair",
            "give the folder that holds the weights; `headscope inspect` shows what was found",
        )
    if not reason:
        check_given(step, wish)
        check_taken(wish, taken_options(step, wish) | later_options(step, wish))
    _check_nothing_is_lost(step)
    report = replace(_build_report(request, output, step, wish, reason), source=shown or request.reference)
    if wish.dry_run or not step.states or reason:
        return report
    with staged(output) as work:
        try:
            report, result = _run_steps(report, step, work, wish, tell)
        except Malformed as err:  # a part that isn't as another part describes it
            return replace(report, proof=RepairProof(reason=err.message))
        check_unchanged(source, before)
        if report.proof.holds:
            write_json(result / REPAIR_RECORD, report.to_dict())
            check_unchanged(source, before)
            put_in_place(result, output, None, (source, *([Path(wish.config)] if wish.config else ())))
    return report


def _check_nothing_is_lost(step: RepairStep) -> None:
    """Raises Unsupported for an adapter in no state that lacks the head: it would be called clean otherwise."""
    if step.states or step.report is None or step.report.adapter is None:
        return
    missing = find_missing(step.report)
    if lost := (*missing.head, *missing.elsewhere):
        raise Unsupported(
            f"no repair can give {few_of(lost)}, which neither the base model nor the adapter holds",
            "train the adapter again as `headscope check` on it says, so that it carries the head",
        )


def _run_steps(
    report: RepairReport, step: RepairStep, work: Path, wish: RepairWish, tell: Progress
) -> tuple[RepairReport, Path]:
    """Carries out the steps; gives the report and the last folder. Stops after a step that isn't proven."""
    taken: set[str] = set()
    for at in range(_MOST_STEPS):
        target = work / str(at)
        target.mkdir()
        tell(f"repairing {' and '.join(state.rule for state in step.states)}")
        # What the steps in between write is nobody's, and nothing writes into a file that is there.
        left_out = _carry_out(step, target, replace(wish, link=wish.link or at > 0))
        after = states_in(step.request, target)
        taken |= taken_options(step, wish)
        if not after.states:
            check_taken(wish, taken)
        tell("proving the result in a separate process")
        proof = prove_apart(prove_repair, _proof_task(step, after, wish), lambda reason: RepairProof(reason=reason))
        report = _with_step(report, step, after, wish, proof)
        if at == 0:  # what a step in between doesn't take over was never in the source
            report = replace(report, left_out=left_out)
        if not report.proof.holds or not after.states:
            return report, target
        if reason := reason_against(after, wish, taken):
            states = (*report.states, *after.states)
            return replace(report, states=states, proof=replace(report.proof, reason=reason)), target
        check_given(after, wish)
        step = after
    reason = f"after {_MOST_STEPS} steps it is still in a state: {step.states[0].sentence}"
    return replace(report, proof=replace(report.proof, reason=reason)), target


def _build_report(request: Request, output: Path, step: RepairStep, wish: RepairWish, reason: str) -> RepairReport:
    taken, not_taken = taken_models(step, wish)
    return RepairReport(
        tool_version=tool_version(),
        source=request.reference,
        output=str(output),
        model_class=step.report.model.class_name if step.report else "",
        states=step.states,
        given=tuple(given_options(wish).values()) if step.states else (),
        assumed=assumed_settings(step, wish),
        left_out=(),
        proof=RepairProof(reason=reason),
        taken=taken,
        not_taken=not_taken,
        kept_weights=kept_weights(step, list(file_states(Path(request.reference)))),
        is_dry_run=wish.dry_run,
    )


def _with_step(
    report: RepairReport, step: RepairStep, after: RepairStep, wish: RepairWish, proof: RepairProof
) -> RepairReport:
    """Adds one more step to the report; a failed check of an earlier step stays failed."""
    old, (taken, not_taken) = report.proof, taken_models(step, wish)
    return replace(
        report,
        states=tuple(dict.fromkeys((*report.states, *step.states))),
        model_class=after.report.model.class_name if after.report else report.model_class,
        assumed=report.assumed or assumed_settings(step, wish),
        taken=tuple(dict.fromkeys((*report.taken, *taken))),
        not_taken=tuple(dict.fromkeys((*report.not_taken, *not_taken))),
        proof=replace(
            proof,
            loads=_combine_answers(old.loads, proof.loads),
            tensors_equal=_combine_answers(old.tensors_equal, proof.tensors_equal),
            files_equal=_combine_answers(old.files_equal, proof.files_equal),
            scores_equal=_combine_answers(old.scores_equal, proof.scores_equal),
            compared=max(old.compared, proof.compared),
            read_by_libraries=max(old.read_by_libraries, proof.read_by_libraries),
            max_difference=old.max_difference if proof.max_difference is None else proof.max_difference,
        ),
    )


def _combine_answers(one: bool | None, other: bool | None) -> bool | None:
    """Gives False if one of two answers is, None if both are None, True otherwise."""
    return None if one is other is None else False not in (one, other)


def _proof_task(step: RepairStep, after: RepairStep, wish: RepairWish) -> RepairTask:
    adapters = [action for action in step.actions if isinstance(action, MergePeft)]
    return RepairTask(
        source=str(step.folder),
        result=str(after.folder),
        model_class=step.request.model_class,
        config=config_of_adapter(adapters[0], wish) if adapters else "",
        settings=json.dumps(dict(wish.settings)),
        is_last=not after.states,
        trust_remote_code=step.request.trust_remote_code,
        take=wish.take,
    )


def _carry_out(step: RepairStep, target: Path, wish: RepairWish) -> tuple[str, ...]:
    """Writes the folder with the states of a step repaired; gives the files that it doesn't take over."""
    names = list(file_states(step.folder))
    if step.writes_config:
        _write_config(step, target, wish, names)
        return ()
    action = step.actions[0]
    if isinstance(action, TakeFolder):
        kept = files_taken(action, names)
        copy_files(step.folder / action.folder, target, kept, link=wish.link)
        return tuple(sorted({*names} - {f"{action.folder}/{name}" for name in kept}))
    kept = kept_files(step, names)
    # A library that writes into the folder could write through a link, into the source.
    copy_files(step.folder, target, kept, link=wish.link and not isinstance(action, MergePeft))
    if isinstance(action, MergePeft):
        load = action.code_to_load(str(step.folder.resolve()), wish.settings, config_of_adapter(action, wish))
        _run_code(f"{load}\n{action.code_to_save('.')}", target)
    else:
        manifest, files, tensors = repaired_tensors(step)
        write_weights(target, manifest, files, tensors)
    return tuple(sorted(replaced_files(step, names) & {*names}))


def _write_config(step: RepairStep, target: Path, wish: RepairWish, names: list[str]) -> None:
    action = next(iter(step.actions), None)
    copy_files(step.folder, target, names, link=wish.link and bool(wish.config))
    if wish.config:
        config = given_config(wish.config, step.request)
    elif isinstance(action, WriteConfig):
        _run_code(action.code_with(wish.settings), target)
        config = parse_object((target / CONFIG).read_bytes(), CONFIG)
        if action.file:
            (target / action.file).unlink()  # the code copied it to its new name
    config = edited_config(config, wish.labels, {})
    write_small_file(target / CONFIG, json.dumps(config, indent=2) + "\n")


def _run_code(code: str, folder: Path) -> None:
    """Runs the code of a repair in a folder, without imports from that folder, without the Hub and without input.

    Raises Unsupported if it fails.
    """
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1"},
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise Unsupported(f"the code of the repair failed: {last}", "check its files, and any settings that you gave")
