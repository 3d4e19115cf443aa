"""One repair from the checkpoint to the proven result: step by step, each written beside the source and proven."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headscope.checkpoints.states.folders import TakeFolder
from headscope.checkpoints.states.peft_keys import MergePeft
from headscope.editing.repair.proof import RepairTask, prove_repair_apart
from headscope.editing.repair.steps import (
    RepairStep,
    RepairWish,
    files_taken,
    repaired_tensors,
    replaced_files,
    states_in,
)
from headscope.editing.writing import (
    check_target,
    check_unchanged,
    copy_files,
    file_states,
    put_in_place,
    staged,
    write_small_file,
    write_weights,
)
from headscope.errors import NotFound, Unsupported, UsageError
from headscope.examination.base.without_config import WriteConfig
from headscope.facts import StateKind
from headscope.facts.results.environment import tool_version
from headscope.facts.results.repair import RepairProof, RepairReport
from headscope.facts.stored.location import Location

if TYPE_CHECKING:
    from headscope.examination.base.request import Progress, Request

REPAIR_RECORD = "headscope-repair.json"
_CONFIG = "config.json"
_MOST_STEPS = 5
"""A Trainer's output, a file of a training run without a configuration, the keys of an adapter, those of a wrapper."""
_OPEN = (StateKind.NO_CONFIG, StateKind.PEFT_KEYS)
"""States that leave something to the person."""


def repair_checkpoint(request: Request, output: Path, wish: RepairWish, tell: Progress) -> RepairReport:
    """The report on a repair. The source stays as it is; the result is there only if it is proven.

    Raises UsageError for options that don't fit, Unsupported for a state that can't be repaired with what was given,
    NotFound if the source changes meanwhile.
    """
    source = Path(request.reference)
    if not source.is_dir():
        raise UsageError(f"{request.reference} is not a folder", "give the folder of a checkpoint on this machine")
    check_target(output, source)
    before = file_states(source)
    tell("looking for the states of the checkpoint")
    step = states_in(request, source)
    _check_given(step, wish)
    report = _report(request, output, step, wish)
    if wish.dry_run or not step.states:
        return report
    with staged(output) as work:
        report, result = _repaired(report, step, work, wish, tell)
        if report.proof.holds:
            _check_used(report, wish)
            record = json.dumps(report.to_dict(), indent=2, ensure_ascii=False)
            write_small_file(result / REPAIR_RECORD, f"{record}\n")
            check_unchanged(source, before)
            put_in_place(result, output, None)
    return report


def _repaired(
    report: RepairReport, step: RepairStep, work: Path, wish: RepairWish, tell: Progress
) -> tuple[RepairReport, Path]:
    """The report after all steps, and the folder of the last one; a proof that fails ends them."""
    for at in range(_MOST_STEPS):
        target = work / str(at)
        target.mkdir()
        tell(f"repairing {' and '.join(state.rule for state in step.states)}")
        # What the steps in between write is nobody's, and nothing writes into a file that is there.
        left_out = _carry_out(step, target, replace(wish, link=wish.link or at > 0))
        after = states_in(step.request, target)
        tell("proving the result in a separate process")
        proof = prove_repair_apart(_task(step, after, wish))
        report = _with_step(report, step, after, () if at else left_out, proof)
        if not report.proof.holds or not after.states:
            return report, target
        _check_given(after, wish)
        step = after
    reason = f"after {_MOST_STEPS} steps it is still in a state: {step.states[0].sentence}"
    return replace(report, proof=replace(report.proof, reason=reason)), target


def _check_given(step: RepairStep, wish: RepairWish) -> None:
    """Raises Unsupported where a state has no repair here, or where one lacks what the checkpoint doesn't hold."""
    for state in step.states:
        repair = state.repair
        action = repair.action if repair else None
        seen = f"{state.sentence} {state.seen()}".strip()
        if state.kind is StateKind.NO_CONFIG:
            if not wish.config and not (action and (wish.settings or wish.takes_defaults)):
                raise Unsupported(seen, _CONFIG_HINT + (_SETTINGS_HINT if action else ""))
        elif action is None:
            how = f"{repair.sentence} `{repair.code}`" if repair else "nothing on this machine can"
            raise Unsupported(f"headscope can't carry out the repair of {state.rule}: {seen}", how)
        elif isinstance(action, MergePeft) and not (wish.config or (action.rank and "lora_alpha" in wish.settings)):
            hint = _ADAPTER_HINT + (_ALPHA_HINT if action.rank else "")
            raise Unsupported(f"{seen} The file doesn't hold the settings of the adapter.", hint)


_CONFIG_HINT = "give the configuration: --config FOLDER_OR_ID of a model of the same kind"
_SETTINGS_HINT = (
    "; or the settings of your training that no shape tells (`headscope inspect` lists them), as --set NAME=VALUE; or "
    "--defaults if those of the class are right"
)
_ADAPTER_HINT = "give --config FOLDER, with the adapter_config.json of the training"
_ALPHA_HINT = ", or --set lora_alpha=N; add --set use_rslora=true if you trained with it, and set lora_alpha to 0 if " \
    "merge_adapter() ran before the save"  # fmt: skip


def _check_used(report: RepairReport, wish: RepairWish) -> None:
    """Raises UsageError for settings that no state needs."""
    if report.given and not any(state.kind in _OPEN for state in report.states):
        raise UsageError(f"{report.given[0]} is given, and the checkpoint needs no setting", "leave it out")


def _report(request: Request, output: Path, step: RepairStep, wish: RepairWish) -> RepairReport:
    given = [f"config={wish.config}"] if wish.config else []
    given += [f"{name}={json.dumps(value)}" for name, value in wish.settings.items()]
    given += [f"labels={','.join(wish.labels)}"] if wish.labels else []
    given += ["defaults"] if wish.takes_defaults else []
    return RepairReport(
        tool_version=tool_version(),
        source=request.reference,
        output=str(output),
        model_class=step.report.model.class_name if step.report else "",
        states=step.states,
        given=tuple(given),
        left_out=(),
        proof=RepairProof(reason="a dry run proves nothing" if wish.dry_run else ""),
        is_dry_run=wish.dry_run,
    )


def _with_step(
    report: RepairReport, step: RepairStep, after: RepairStep, left_out: tuple[str, ...], proof: RepairProof
) -> RepairReport:
    """The report with one more step, whose proof doesn't cover up what one before found."""
    old = report.proof
    return replace(
        report,
        states=tuple(dict.fromkeys((*report.states, *step.states))),
        model_class=after.report.model.class_name if after.report else report.model_class,
        left_out=(*report.left_out, *left_out),
        proof=replace(
            proof,
            loads=_both(old.loads, proof.loads),
            tensors_equal=_both(old.tensors_equal, proof.tensors_equal),
            files_equal=_both(old.files_equal, proof.files_equal),
            scores_equal=_both(old.scores_equal, proof.scores_equal),
            compared=max(old.compared, proof.compared),
            read_by_libraries=max(old.read_by_libraries, proof.read_by_libraries),
            max_difference=old.max_difference if proof.max_difference is None else proof.max_difference,
        ),
    )


def _both(one: bool | None, other: bool | None) -> bool | None:
    return None if one is other is None else False not in (one, other)


def _task(step: RepairStep, after: RepairStep, wish: RepairWish) -> RepairTask:
    return RepairTask(
        source=str(step.folder),
        result=str(after.folder),
        model_class=step.request.model_class,
        config=wish.config,
        settings=json.dumps(dict(wish.settings)),
        is_last=not after.states,
        trust_remote_code=step.request.trust_remote_code,
    )


def _carry_out(step: RepairStep, target: Path, wish: RepairWish) -> tuple[str, ...]:
    """Writes the folder without the states of a step; returns the files that it doesn't take over."""
    names = list(file_states(step.folder))
    if step.writes_config:
        _write_config(step, target, wish, names)
        return ()
    action = step.actions[0]
    if isinstance(action, TakeFolder):
        kept = files_taken(action, names)
        copy_files(step.folder / action.folder, target, kept, link=wish.link)
        return tuple(sorted({*names} - {f"{action.folder}/{name}" for name in kept}))
    replaced = replaced_files(step, names)
    copy_files(step.folder, target, [name for name in names if name not in replaced], link=wish.link)
    if isinstance(action, MergePeft):
        (target / _CONFIG).unlink()  # it is written again, and may be a link
        load = action.code_to_load(str(step.folder.resolve()), wish.settings, wish.config)
        _run(f"{load}\n{action.code_to_save('.')}", target)
    else:
        manifest, files, tensors = repaired_tensors(step)
        write_weights(target, manifest, files, tensors)
    return tuple(sorted(replaced & {*names}))


def _write_config(step: RepairStep, target: Path, wish: RepairWish, names: list[str]) -> None:
    copy_files(step.folder, target, names, link=wish.link)
    action = next(iter(step.actions), None)
    if wish.config:
        write_small_file(target / _CONFIG, _given_config(wish.config))
    elif isinstance(action, WriteConfig):
        _run(action.code_with(wish.settings), target)
        if action.file:
            (target / action.file).unlink()  # the code copied it to its new name
    if wish.labels:
        found = json.loads((target / _CONFIG).read_text(encoding="utf-8"))
        found["id2label"] = {str(at): name for at, name in enumerate(wish.labels)}
        found["label2id"] = {name: at for at, name in enumerate(wish.labels)}
        write_small_file(target / _CONFIG, json.dumps(found, indent=2, ensure_ascii=False) + "\n")


def _given_config(reference: str) -> str:
    """The text of config.json in a folder, a file or a repository. Raises NotFound where there is none."""
    from headscope.checkpoints import open_sidecar

    path = Path(reference)
    found = None if path.is_file() else open_sidecar(Location(reference))
    if found is None and not path.is_file():
        raise NotFound(f"{reference} has no {_CONFIG}", "give a folder with one, or a Hub ID")
    if found is None:
        return path.read_text(encoding="utf-8")
    with found.reaching():
        return found.storage.read_text(_CONFIG).decode("utf-8")


def _run(code: str, folder: Path) -> None:
    """Runs the code of a repair in a folder, from which nothing is imported. Raises Unsupported where it fails."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONSAFEPATH": "1"},
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise Unsupported(f"the code of the repair failed: {last}", "check the settings that you gave")
