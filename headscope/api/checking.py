"""`check`: the pipeline gate, which runs the rules on one model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

from headscope.api.options import (
    ProfileName,
    SeverityName,
    given_options,
    make_request,
    module_options,
    read_names,
    refuses_unknown,
)
from headscope.api.shown import Checked, fields_of, shown
from headscope.checks import judge, select
from headscope.checks.selection import Ignore, Selection
from headscope.errors import UsageError
from headscope.examination.checkpoint import examine
from headscope.examination.evidence import gather
from headscope.examination.in_memory import is_in_memory
from headscope.examination.request import Progress, Request
from headscope.facts import Profile, Severity
from headscope.facts.check import CheckResult, Subject

if TYPE_CHECKING:
    import torch
    from torch import nn


@overload
def check(
    reference: str | PathLike[str],
    profile: Profile | ProfileName = "training",
    *,
    rules: str | Iterable[str] = (),
    ignore: str | Iterable[str | Ignore] = (),
    fail_on: Severity | SeverityName = "error",
    num_labels: int | None = None,
    labels: str | Iterable[str] | None = None,
    task: str | None = None,
    model_class: str | None = None,
    tokens: str | Iterable[str] | None = None,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    cache_dir: str | PathLike[str] | None = None,
    token: str | None = None,
    offline: bool = False,
    trust_remote_code: bool = False,
    adapter: str | PathLike[str] | None = None,
    timeout: float | None = None,
    cache: bool = False,
    progress: Progress | None = None,
) -> Checked: ...
@overload
def check(
    reference: nn.Module,
    profile: Profile | ProfileName = "training",
    *,
    rules: str | Iterable[str] = (),
    ignore: str | Iterable[str | Ignore] = (),
    fail_on: Severity | SeverityName = "error",
    labels: str | Iterable[str] | None = None,
    task: str | None = None,
    offline: bool = False,
    example_inputs: Any = None,
    output: str | None = None,
    loaded_from: str | PathLike[str] | None = None,
    loading_info: Mapping[str, Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    progress: Progress | None = None,
) -> Checked: ...
@refuses_unknown
def check(
    reference: str | PathLike[str] | nn.Module,
    profile: Profile | ProfileName = "training",
    *,
    rules: str | Iterable[str] = (),
    ignore: str | Iterable[str | Ignore] = (),
    fail_on: Severity | SeverityName = "error",
    num_labels: int | None = None,
    labels: str | Iterable[str] | None = None,
    task: str | None = None,
    model_class: str | None = None,
    tokens: str | Iterable[str] | None = None,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    cache_dir: str | PathLike[str] | None = None,
    token: str | None = None,
    offline: bool = False,
    trust_remote_code: bool = False,
    adapter: str | PathLike[str] | None = None,
    timeout: float | None = None,
    cache: bool = False,
    example_inputs: Any = None,
    output: str | None = None,
    loaded_from: str | PathLike[str] | None = None,
    loading_info: Mapping[str, Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    progress: Progress | None = None,
) -> Checked:
    """Runs the checks on a checkpoint, or on a model in memory, that is to be used for `profile`.

    Args:
        reference: A Hub ID, `id@revision`, an `hf://` URI, a Hub URL, a local folder or weight file, a PEFT adapter
            or a snapshot file; or a model in memory
            (`nn.Module`, also compiled or wrapped), which stays untouched.
        profile: What the model is used for next: `training` or `inference`.
        rules: Rules to run (default: all): IDs, names or beginnings of IDs, several or one text `"HS101,HS2"`.
        ignore: Rules whose findings don't fail the check, written as in `rules`; an `Ignore` can also have a reason, a
            last day and a pattern of models.
        fail_on: The lowest severity that fails the check: `error`, `warning` or `note`.
        num_labels: Number of classes (default: from the config); 1 means regression.
        labels: Class names in order, several or one text `"A,B,C"`.
        task: A task such as `sequence-classification` or `token-classification` (default: from the checkpoint).
        model_class: A class of Transformers, such as `BertForSequenceClassification`.
        tokens: Tokens of a causal language model whose logits are the scores, such as `"no,yes"` of a reranker.
        revision: Branch, tag or commit on the Hub (default: `main`).
        subfolder: Folder inside the repository or the local folder.
        variant: Variant of the weight files, such as `fp16` for `model.fp16.safetensors`.
        cache_dir: The Hub's cache folder (default: `$HF_HUB_CACHE`).
        token: Access token for gated and private repositories (default: `$HF_TOKEN` or the stored login).
        offline: Make no network requests: use local files, the Hub's cache and the bundled snapshots.
        trust_remote_code: Run model code that comes with the checkpoint.
        adapter: A PEFT adapter (Hub ID or folder) to put on `reference`.
        timeout: Total time limit for Hub requests, in seconds (default: 120).
        cache: Read and write the report cache.
        example_inputs: What the module's `forward` takes: a mapping of arguments, a tensor, or several in order, with a
            batch axis of at least 1. Models of Transformers don't need it. For a module only.
        output: Name of the scores to examine if `forward` returns several. For a module only.
        loaded_from: The checkpoint that the module was loaded from, if its config doesn't name it. For a module only.
        loading_info: What `from_pretrained(..., output_loading_info=True)` returned: replaces reading the checkpoint.
            For a module only.
        optimizer: The optimizer that trains the module: weights that it leaves out are reported. For a module only.
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
    options = given_options(locals(), "reference", "profile", "rules", "ignore", "fail_on", "progress")
    listed = read_names(ignore, "ignore") if isinstance(ignore, str) else tuple(ignore)
    ignores = tuple(item if isinstance(item, Ignore) else Ignore(item) for item in listed)
    selection = select(read_names(rules, "rules"), ignores, fail_on)
    wanted = read_profile(profile)
    if is_in_memory(reference):
        from headscope.examination.training import live_subject

        return _judged(live_subject(reference, wanted, **module_options(options, "check")), selection)
    return check_one(make_request(reference, options), wanted, selection, progress)


def read_profile(name: str) -> Profile:
    """The profile of that name. Raises UsageError."""
    try:
        return Profile(name)
    except ValueError as err:
        raise UsageError(f"no such profile: {name}", "profiles: training, inference") from err


def check_one(request: Request, profile: Profile, selection: Selection, progress: Progress | None) -> Checked:
    """The result for one checkpoint."""
    examined = examine("check", replace(request, verify=True), progress)
    (progress or (lambda sentence: None))("asking the rules")
    return _judged(gather(examined, request, profile), selection)


def _judged(subject: Subject, selection: Selection) -> Checked:
    judged = fields_of(judge(subject, selection))
    return Checked(**judged | {"report": shown(subject.report)})


def read_baseline(text: str, name: str) -> frozenset[tuple[str, str, tuple[str, ...]]]:
    """The findings in a baseline. Raises UsageError for a text that is none."""
    try:
        entries = json.loads(text)["findings"]
        return frozenset((str(item["reference"]), str(item["id"]), tuple(item["parameters"])) for item in entries)
    except (ValueError, KeyError, TypeError) as err:
        raise UsageError(f"{name} is no baseline: {type(err).__name__}", "write one with --write-baseline") from err


def baseline_text(results: Sequence[CheckResult]) -> str:
    """The findings of results as a baseline, which a later run takes as known."""
    findings = [
        {"reference": result.reference, "id": finding.id, "parameters": list(finding.parameters)}
        for result in results
        for finding in result.findings
    ]
    return json.dumps({"format": "headscope-baseline", "version": 1, "findings": findings}, indent=2) + "\n"
