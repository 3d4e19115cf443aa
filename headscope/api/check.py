"""The pipeline gate: the rules asked of one model or several."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from headscope.api.cache import open_cache, state_of
from headscope.api.examination import Examined, Progress, Request, examine, make_request
from headscope.api.module import is_in_memory
from headscope.api.options import module_options, read_names
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

_TEXT = (
    Task.SEQUENCE_CLASSIFICATION,
    Task.TOKEN_CLASSIFICATION,
    Task.MULTIPLE_CHOICE,
    Task.QUESTION_ANSWERING,
    Task.NEXT_SENTENCE_PREDICTION,
)
_LOCAL_BYTES = 16_000_000
_REMOTE_BYTES = 64_000


def check(
    reference: Any,
    profile: str = "training",
    *,
    rules: str | Iterable[str] = (),
    ignore: str | Iterable[str | Ignore] = (),
    fail_on: str = "error",
    progress: Progress | None = None,
    **options: Any,
) -> Checked:
    """What the rules say of a checkpoint that is to be used for `profile` (`training` or `inference`).

    `rules` are ids, names or beginnings of ids (all by default), `ignore` those that are not to fail: several, or one
    text `HS101,HS202`. `fail_on` is the least severity that fails. Options as for `inspect`, and `optimizer` for a
    model in memory.

    >>> check("roberta-base", "inference", num_labels=3).verdict  # doctest: +SKIP
    <Verdict.FAILED: 'failed'>

    Raises a `HeadscopeError` where the checkpoint cannot be read, and UsageError for rules that do not exist.
    """
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
