"""`check`: the pipeline gate, which runs the rules on one model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

from headscope.api.options import (
    DeviceName,
    ProfileName,
    SeverityName,
    given_options,
    make_request,
    module_options,
    read_names,
    read_path,
    read_selection,
    refuses_unknown,
)
from headscope.api.shown import Checked, fields_of, shown
from headscope.checks import judge
from headscope.checks.selection import Ignore, Selection
from headscope.errors import UsageError
from headscope.examination.checkpoint import Examined, examine
from headscope.examination.evidence import gather
from headscope.examination.in_memory import is_in_memory
from headscope.examination.labeled import DataRequest, Labeled, read_labeled, with_data
from headscope.examination.request import Progress, Request
from headscope.examination.structure import ReportMemory
from headscope.facts import Profile, Severity, Unavailable
from headscope.facts.check import CheckResult, Subject
from headscope.facts.labeled import Predictions

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
    data: str | PathLike[str] | None = None,
    label_column: str | Iterable[str] | None = None,
    text_column: str | Iterable[str] | None = None,
    split: str | None = None,
    predict: int | None = None,
    device: DeviceName | None = None,
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
    no_numbers: bool = False,
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
    data: str | PathLike[str] | None = None,
    label_column: str | Iterable[str] | None = None,
    text_column: str | Iterable[str] | None = None,
    split: str | None = None,
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
    data: str | PathLike[str] | None = None,
    label_column: str | Iterable[str] | None = None,
    text_column: str | Iterable[str] | None = None,
    split: str | None = None,
    predict: int | None = None,
    device: DeviceName | None = None,
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
    no_numbers: bool = False,
    example_inputs: Any = None,
    output: str | None = None,
    loaded_from: str | PathLike[str] | None = None,
    loading_info: Mapping[str, Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    progress: Progress | None = None,
) -> Checked:
    """Runs the checks on a checkpoint, or on a model in memory, for use in `profile`.

    Args:
        reference: A Hub ID, `id@revision`, an `hf://` URI, a Hub URL, a local folder or weight file, a PEFT adapter
            or a snapshot file; or a model in memory
            (`nn.Module`, also compiled or wrapped), which stays untouched.
        profile: What the model is used for next: `training` or `inference`.
        rules: Rules to run (default: all): IDs, names or beginnings of IDs, several or one text `"HS101,HS2"`.
        ignore: Rules whose findings don't fail the check, written as in `rules`; an `Ignore` can also have a reason, a
            last day and a pattern of models.
        fail_on: The lowest severity that fails the check: `error`, `warning` or `note`.
        data: Labeled data to compare with the classes: a csv, tsv, jsonl or parquet file, or a folder that
            `datasets` saved.
        label_column: The column of the labels; several if each is one class, with cells of 0 and 1.
        text_column: The column of the texts; two for pairs. Needed for `predict` only.
        split: The split of a folder that holds several.
        predict: Number of rows to predict with the real weights, to measure the order of the classes. For a checkpoint
            only.
        device: Where to predict: `cpu` (default), `cuda`, `cuda:0` or `mps`. For a checkpoint only.
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
        no_numbers: Don't read the base model's numbers, which a check for inference reads from files on this machine.
            For a checkpoint only.
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
    options = given_options(locals(), "reference", "profile", "rules", "ignore", "fail_on", "progress", *_OF_DATA)
    wanted_data = data_request(data, label_column, text_column, split, predict, device)
    selection = read_selection(rules, ignore, fail_on)
    wanted = read_profile(profile)
    if is_in_memory(reference):
        from headscope.examination.training import live_subject

        if predict is not None:
            raise UsageError(
                "predict needs a tokenizer, and a model in memory has none", "save the model, and check that folder"
            )
        labeled = read_labeled(wanted_data) if wanted_data else None
        subject = live_subject(reference, wanted, **module_options(options, "check"))
        return _judged(with_data(subject, labeled), selection)
    request = make_request(reference, options)
    labeled = read_labeled(wanted_data) if wanted_data else None
    return check_one(request, wanted, selection, progress, labeled=labeled)


_OF_DATA = ("data", "label_column", "text_column", "split", "predict", "device")


def data_request(  # noqa: PLR0917  in the order of `_OF_DATA`
    data: str | PathLike[str] | None,
    label_column: str | Iterable[str] | None,
    text_column: str | Iterable[str] | None,
    split: str | None,
    predict: int | None,
    device: str | None,
) -> DataRequest | None:
    """The request for labeled data that the options make; None without data. Raises UsageError for a contradiction."""
    given = dict(zip(_OF_DATA, (data, label_column, text_column, split, predict, device), strict=True))
    if data is None:
        lost = next((name for name, value in given.items() if value), None)
        if lost is not None:
            raise UsageError(f"{lost} was given without data", "add --data FILE")
        return None
    if predict is not None and (type(predict) is not int):
        raise UsageError(f"predict must be a whole number, not {predict!r}", "write predict=64")
    if device is not None and predict is None:
        raise UsageError("device was given without predict", "add --predict N, or leave the device out")
    file = read_path(data, "data") or ""
    return DataRequest(file, _names(label_column), _names(text_column), split, predict, device or "cpu")


def _names(given: str | Iterable[str] | None) -> tuple[str, ...]:
    """One column or several. A name may hold commas, so a text is one column."""
    if given is None:
        return ()
    return (given,) if isinstance(given, str) else read_names(given, "label_column")


def read_profile(name: str) -> Profile:
    """The profile of that name. Raises UsageError."""
    try:
        return Profile(name)
    except ValueError as err:
        raise UsageError(f"no such profile: {name}", "profiles: training, inference") from err


def check_one(
    request: Request,
    profile: Profile,
    selection: Selection,
    progress: Progress | None,
    *,
    labeled: Labeled | None = None,
    memory: ReportMemory | None = None,
) -> Checked:
    """The result for one checkpoint, with labeled data beside it; `memory` keeps what the next ones share."""
    examined = examine("check", replace(request, verify=True), progress, memory)
    (progress or (lambda sentence: None))("running the checks")
    subject = gather(examined, request, profile)
    return _judged(with_data(subject, labeled, lambda data: _predicted(examined, request, data, progress)), selection)


def _predicted(
    examined: Examined, request: Request, labeled: Labeled, progress: Progress | None
) -> Predictions | Unavailable:
    from headscope.examination.predictions import predict_sample

    return predict_sample(examined, request, labeled, progress)


def _judged(subject: Subject, selection: Selection) -> Checked:
    judged = fields_of(judge(subject, selection))
    return Checked(**judged | {"report": shown(subject.report)})


def read_baseline(text: str, name: str) -> frozenset[tuple[str, str, tuple[str, ...]]]:
    """The findings in a baseline. Raises UsageError for a text that is none."""
    try:
        entries = json.loads(text)["findings"]
        return frozenset((str(item["reference"]), str(item["id"]), tuple(item["parameters"])) for item in entries)
    except (ValueError, KeyError, TypeError) as err:
        raise UsageError(f"{name} is not a baseline: {type(err).__name__}", "write one with --write-baseline") from err


def baseline_text(results: Sequence[CheckResult]) -> str:
    """The findings of results as a baseline, which a later run takes as known."""
    findings = [
        {"reference": result.reference, "id": finding.id, "parameters": list(finding.parameters)}
        for result in results
        for finding in result.findings
    ]
    return json.dumps({"format": "headscope-baseline", "version": 1, "findings": findings}, indent=2) + "\n"
