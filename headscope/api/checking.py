"""`check`: the pipeline gate, which runs the rules on one model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

from headscope.api.cache import open_cache, state_of
from headscope.api.examination import Examined, Request, examine, make_request
from headscope.api.module import is_in_memory
from headscope.api.options import (
    ProfileName,
    Progress,
    SeverityName,
    given_options,
    module_options,
    read_names,
    refuses_unknown,
)
from headscope.api.places import Place, open_places
from headscope.api.shown import Checked, fields_of
from headscope.checks import judge, select
from headscope.checks.selection import Ignore, Selection
from headscope.errors import HeadscopeError, UsageError
from headscope.facts import (
    CheckpointKind,
    CheckpointManifest,
    HeadParameter,
    ParameterStatus,
    Profile,
    Report,
    Severity,
    Task,
    Unavailable,
    WeightsFormat,
)
from headscope.facts.adapter import Carried
from headscope.facts.check import (
    CheckResult,
    ConfigFacts,
    Evidence,
    Subject,
    TensorValues,
    TokenizerFacts,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

_TEXT = (
    Task.SEQUENCE_CLASSIFICATION,
    Task.TOKEN_CLASSIFICATION,
    Task.MULTIPLE_CHOICE,
    Task.QUESTION_ANSWERING,
    Task.NEXT_SENTENCE_PREDICTION,
)
_LOCAL_BYTES = 16_000_000
_REMOTE_BYTES = 64_000


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
        from headscope.api.training import live_subject

        return Checked(
            **fields_of(judge(live_subject(reference, wanted, **module_options(options, training=True)), selection))
        )
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
    return Checked(**fields_of(judge(gather(examined, request, profile), selection)))


def gather(examined: Examined, request: Request, profile: Profile) -> Subject:
    """Everything the rules look at, for a checkpoint that was examined."""
    evidence = _evidence(examined, request)
    return Subject(
        report=examined.report,
        profile=profile,
        config=config_facts(examined.manifest.config),
        built=examined.built,
        tokenizer=evidence.tokenizer,
        values=evidence.values,
        wanted_num_labels=request.num_labels,
        wanted_labels=request.labels,
        unknown=evidence.unknown,
        inapplicable=evidence.inapplicable,
    )


def _evidence(examined: Examined, request: Request) -> Evidence:
    """What lies beside the report: from the cache, if no file has changed; only what could be read is remembered."""
    cache = open_cache(request.cache and bool(examined.key))
    key = f"{examined.key}{_state_of_files(examined, request)}" if cache.is_open else ""
    known = cache.load(Evidence, key)
    if known is not None:
        return known
    unknown: list[Unavailable] = []
    inapplicable: list[Unavailable] = []
    evidence = Evidence(
        tokenizer=read_tokenizer(examined.report, examined.manifest, request, unknown, inapplicable),
        values=_values(examined, request, unknown, inapplicable),
        unknown=tuple(unknown),
        inapplicable=tuple(inapplicable),
    )
    if not unknown:
        cache.save(key, evidence)
    return evidence


def _state_of_files(examined: Examined, request: Request) -> str:
    """A digest of what tells that a file beside the weights, or a weight, has changed."""
    from headscope.checkpoints import files_beside

    try:
        places = open_places(request, examined.manifest)
    except HeadscopeError:
        return ""
    found = [state_of(files_beside(place.sidecar, [file.name for file in place.manifest.files])) for place in places]
    return "-" + hashlib.sha256(repr(found).encode()).hexdigest()[:16]


def config_facts(config: dict[str, Any]) -> ConfigFacts:
    """What a parsed `config.json` says of its labels; what is no map or number counts as absent."""
    count = config.get("num_labels")
    problem = config.get("problem_type")
    return ConfigFacts(
        num_labels=count if type(count) is int else None,
        id2label=_pairs(config.get("id2label")),
        label2id=_pairs(config.get("label2id")),
        problem_type=problem if isinstance(problem, str) else None,
        has_auto_map=isinstance(config.get("auto_map"), dict),
    )


def _pairs(value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        return ()
    pairs = [(str(key), str(item)) for key, item in value.items()]
    return tuple(sorted(pairs, key=lambda pair: (len(pair[0]), pair[0])))


def read_tokenizer(
    report: Report,
    manifest: CheckpointManifest,
    request: Request,
    unknown: list[Unavailable],
    inapplicable: list[Unavailable],
) -> TokenizerFacts | None:
    """What the checkpoint's tokenizer files say; why there is nothing goes into one of the lists."""
    if report.model.task not in _TEXT:
        inapplicable.append(Unavailable("tokenizer", "the model reads no text"))
        return None
    from headscope.checkpoints import read_tokenizer_settings

    try:
        opened = open_places(request, manifest)
        read = (read_tokenizer_settings(place.sidecar) for place in opened)
        settings = next((found for found in read if found is not None), None)
    except HeadscopeError as err:
        unknown.append(Unavailable("tokenizer", f"its settings could not be read: {err.message}"))
        return None
    if settings is None:
        where = "the checkpoint holds no tokenizer" if opened else "a snapshot holds no tokenizer"
        inapplicable.append(Unavailable("tokenizer", where))
        return None
    return _tokenizer_facts(settings, report.checkpoint.model_type or "")


def _tokenizer_facts(settings: dict[str, Any], model_type: str) -> TokenizerFacts:
    from headscope.model.tokenizers import padding_side_of

    side = settings.get("padding_side")
    return TokenizerFacts(
        padding_side=side if side in ("left", "right") else padding_side_of(model_type),
        pad_token=_token(settings.get("pad_token")),
        eos_token=_token(settings.get("eos_token")),
    )


def _token(value: Any) -> str | None:
    """A special token as settings write it: a text, or an object with its content."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _values(
    examined: Examined, request: Request, unknown: list[Unavailable], inapplicable: list[Unavailable]
) -> tuple[TensorValues, ...] | None:
    """Statistics of the stored tensors of the head that are loaded as they are."""
    report = examined.report
    given = [item for item in report.head.tensors if _is_given(item)] if report.head else []
    if not given:
        inapplicable.append(Unavailable("values", "the checkpoint gives no weight of the head"))
        return None
    try:
        opened = open_places(request, examined.manifest)
        measured = tuple(value for place in opened for value in _measured(place, given, inapplicable))
    except HeadscopeError as err:
        unknown.append(Unavailable("values", f"they could not be read: {err.message}"))
        return None
    if not opened:
        inapplicable.append(Unavailable("values", "a snapshot holds no weights"))
    return measured or None


def _is_given(item: HeadParameter) -> bool:
    return item.live and item.status is ParameterStatus.LOADED and len(item.checkpoint_keys) == 1


def _measured(place: Place, given: Sequence[HeadParameter], inapplicable: list[Unavailable]) -> Iterator[TensorValues]:
    from headscope.checkpoints import path_in, read_first_bytes
    from headscope.model.values import stored_values, values_of

    of_adapter = place.manifest.kind is CheckpointKind.ADAPTER
    headers = {tensor.key: tensor for tensor in place.manifest.tensors}
    by_file: dict[str, list[HeadParameter]] = {}
    for item in given:
        header = headers.get(item.checkpoint_keys[0])
        if header is not None and header.shape == item.shape and (item.adapter is Carried.SAVED) == of_adapter:
            by_file.setdefault(header.file, []).append(item)
    for file, items in by_file.items():
        keys = {item.checkpoint_keys[0]: item.name for item in items}
        shapes = {item.name: item.shape for item in items}
        if place.manifest.format is WeightsFormat.SAFETENSORS:
            limit = _LOCAL_BYTES if place.sidecar.reads_cheaply else _REMOTE_BYTES
            for key, data in read_first_bytes(place.sidecar, file, keys, limit).items():
                found = values_of(keys[key], data, headers[key].dtype, shapes[keys[key]])
                if found is not None:
                    yield found
            continue
        path = path_in(place.sidecar, file)
        if path is None:
            inapplicable.append(Unavailable("values", "the numbers in a pickle on the Hub are not read"))
            continue
        yield from stored_values(path, keys, shapes)


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
