"""`check`: the pipeline gate, which runs the rules on one model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Unpack, overload

from headscope.checks.checked import Checked
from headscope.checks.evidence.gathering import gather
from headscope.checks.evidence.run import with_run
from headscope.checks.facts import CheckResult, Subject
from headscope.checks.findings import likely_profile
from headscope.checks.given import read_selection
from headscope.checks.labeled_data import DataRequest, Labeled, read_labeled, with_data
from headscope.checks.options import (
    CheckOptions,
    CheckpointCheck,
    ModuleCheck,
    PredictOptions,
    ProfileOption,  # noqa: F401  the docstring refers to it
    RuleOptions,
)
from headscope.checks.rules import judge
from headscope.checks.rules.selection import Selection
from headscope.checks.rules.trial import looks_at_run
from headscope.checks.trial_process import TrialProcess
from headscope.core.facts import Gap, Profile
from headscope.core.source.checkpoint import examine
from headscope.core.source.memory.memory import Memory
from headscope.core.source.request import ModuleRequest, Progress, Request, is_in_memory
from headscope.errors import UsageError
from headscope.shared.labeled.facts import Predictions
from headscope.shared.report.examination import shown
from headscope.shared.trial.deciding import is_run_likely
from headscope.shell.options.calls import use_case
from headscope.shell.options.checkpoint import ModuleOptions
from headscope.shell.options.option import ProfileName
from headscope.shell.shown import fields_of
from headscope.shell.values import make_request, module_options, options_of, read_names, read_path

if TYPE_CHECKING:
    import torch
    from torch import nn


@overload
def check(
    reference: str | PathLike[str],
    profile: Profile | ProfileName | None = None,
    *,
    progress: Progress | None = None,
    **options: Unpack[CheckpointCheck],
) -> Checked: ...
@overload
def check(
    reference: nn.Module,
    profile: Profile | ProfileName | None = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    progress: Progress | None = None,
    **options: Unpack[ModuleCheck],
) -> Checked: ...
@use_case
def check(
    reference: str | PathLike[str] | nn.Module,
    profile: Profile | ProfileName | None = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    progress: Progress | None = None,
    **options: Unpack[CheckOptions],
) -> Checked:
    """Runs the checks on a checkpoint, or on a model in memory, for use in `profile`.

    Args:
        reference: A Hub ID, `id@revision`, an `hf://` URI, a Hub URL, a local folder or weight file, a PEFT adapter
            or a snapshot file; or a model in memory
            (`nn.Module`, also compiled or wrapped), which stays untouched.
        profile: See `ProfileOption`.
        optimizer: The optimizer that trains the module: weights that it leaves out are reported. For a module only.
        options: See `CheckOptions`.
        progress: Called with a short sentence before each step.

    Returns:
        The verdict and the findings, each with its remedy; `report` is what `inspect` returns.

    Raises:
        UsageError: An option is unknown, has an invalid value, or doesn't apply to this kind of model.
        HeadscopeError: The checkpoint can't be read or examined: `NotFound`, `Gated`, `Offline`, `NetworkError`,
            `Malformed` or `Unsupported`. `message` says what happened, `hint` what to do next.

    Example:
        >>> import headscope
        >>> result = headscope.check("roberta-base", "inference", num_labels=3, offline=True)
        >>> result.verdict
        <Verdict.FAILED: 'failed'>
        >>> result.findings[0].id
        'HS102'
    """
    rules, data = options_of(RuleOptions, options), options_of(PredictOptions, options)
    rest = {name: value for name, value in options.items() if name not in rules | data}
    selection, wanted, labeled_data = read_selection(**rules), read_profile(profile), data_request(**data)
    if is_in_memory(reference):
        from headscope.checks.live_subject import live_subject

        if data.get("predict") is not None:
            raise UsageError(
                "predict needs a tokenizer, and a model in memory has none", "save the model, and check that folder"
            )
        if optimizer is not None and not hasattr(optimizer, "param_groups"):
            raise UsageError(f"a {type(optimizer).__name__} is not an optimizer", "give that of torch.optim")
        labeled = read_labeled(labeled_data) if labeled_data else None
        known = (*ModuleOptions.__annotations__, "optimizer")
        subject = live_subject(
            reference, wanted or Profile.TRAINING, ModuleRequest(**module_options(rest, known)), optimizer
        )
        return _judge_subject(with_data(subject, labeled), selection)
    if optimizer is not None:
        raise UsageError("optimizer is an option for a model in memory, not for a checkpoint", "leave it out")
    request = make_request(reference, rest)
    labeled = read_labeled(labeled_data) if labeled_data else None
    return check_one(request, wanted, selection, progress, labeled=labeled)


def data_request(**options: Unpack[PredictOptions]) -> DataRequest | None:
    """Makes the request for labeled data from options; None without data. Raises UsageError if they conflict."""
    data, predict, device = options.get("data"), options.get("predict"), options.get("device")
    if data is None:
        lost = next((name for name, value in options.items() if value), None)
        if lost is not None:
            raise UsageError(f"{lost} was given without data", "add --data FILE")
        return None
    if predict is not None and (type(predict) is not int):
        raise UsageError(f"predict must be a whole number, not {predict!r}", "write predict=64")
    if device is not None and predict is None:
        raise UsageError("device was given without predict", "add --predict N, or leave the device out")
    columns = _read_columns(options.get("label_column")), _read_columns(options.get("text_column"))
    return DataRequest(read_path(data, "data") or "", *columns, options.get("split"), predict, device or "cpu")


def _read_columns(given: str | Iterable[str] | None) -> tuple[str, ...]:
    """Reads one column or several."""
    if given is None:
        return ()
    # A text is one column: unlike names of classes, names of columns may hold commas.
    return (given,) if isinstance(given, str) else read_names(given, "label_column")


def read_profile(name: str | None) -> Profile | None:
    """Reads the name of a profile; None stays None. Raises UsageError for an unknown name."""
    if name is None:
        return None
    try:
        return Profile(name)
    except ValueError as err:
        raise UsageError(f"no such profile: {name}", "profiles: training, inference") from err


def check_one(
    request: Request,
    profile: Profile | None,
    selection: Selection,
    progress: Progress | None,
    *,
    labeled: Labeled | None = None,
    memory: Memory | None = None,
) -> Checked:
    """Checks one checkpoint, and the labeled data with it; `memory` keeps what later checkpoints share.

    Without a profile, a checkpoint that gives its head is checked for inference, another one for training.
    """
    if request.engine is not None:
        from headscope.shared.serving.cited import read_engine

        read_engine(request.engine)
    tell = progress or (lambda sentence: None)
    with TrialProcess() as process:
        is_of_use = bool(request.run) or looks_at_run(selection.rules)
        # The process imports PyTorch and Transformers while this one examines the checkpoint.
        prepare = process.begin if is_of_use and is_run_likely(request) else lambda: None
        checkpoint = examine("check", replace(request, prove=True), progress, memory, on_build=prepare)
        tell("running the checks")
        subject = gather(checkpoint, profile or likely_profile(checkpoint.report))
        subject = replace(subject, is_chosen=profile is None)
        found = process.run(checkpoint, tell) if is_of_use else "no rule that was named looks at it"
        subject = with_run(subject, found, is_wanted=bool(request.run))
    if request.engine is not None:
        from headscope.shared.serving.engine_heads import engines_for

        subject = replace(subject, engine=engines_for(checkpoint, request.engine).engines[0])

    def predict(data: Labeled) -> Predictions | Gap:
        from headscope.checks.evidence.predictions import predict_sample

        return predict_sample(checkpoint, data, progress)

    return _judge_subject(with_data(subject, labeled, predict), selection)


def _judge_subject(subject: Subject, selection: Selection) -> Checked:
    judged = fields_of(judge(subject, selection))
    return Checked(**judged | {"report": shown(subject.report)})


def read_baseline(text: str, name: str) -> frozenset[tuple[str, str, tuple[str, ...]]]:
    """Reads the findings of a baseline. Raises UsageError for a text that is not a baseline."""
    try:
        entries = json.loads(text)["findings"]
        return frozenset((str(item["reference"]), str(item["id"]), tuple(item["parameters"])) for item in entries)
    except (ValueError, KeyError, TypeError) as err:
        raise UsageError(f"{name} is not a baseline: {type(err).__name__}", "write one with --write-baseline") from err


def baseline_text(results: Sequence[CheckResult]) -> str:
    """Writes the findings of results as a baseline, which a later run takes as known."""
    findings = [
        {"reference": result.reference, "id": finding.id, "parameters": list(finding.parameters)}
        for result in results
        for finding in result.findings
    ]
    return json.dumps({"format": "headscope-baseline", "version": 1, "findings": findings}, indent=2) + "\n"
