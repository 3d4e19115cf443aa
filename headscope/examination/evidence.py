"""Everything that the rules look at, for a checkpoint that was examined."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from headscope.errors import HeadscopeError
from headscope.examination.cache import open_cache, state_of
from headscope.examination.checkpoint import Examined
from headscope.examination.configuration import config_facts
from headscope.examination.reading import StoredFiles, open_stored_files
from headscope.examination.request import Request
from headscope.examination.tokenizer import read_tokenizer, with_effects
from headscope.facts import (
    HeadParameter,
    ParameterStatus,
    Profile,
    TensorHeader,
    Unavailable,
    WeightsFormat,
)
from headscope.facts.check import Evidence, Subject, TensorValues
from headscope.facts.health import HeadHealth

if TYPE_CHECKING:
    import torch

# For NaN, zeros and a spread, some thousands of numbers do, and from the Hub they are what costs.
_LOCAL_BYTES = 16_000_000
_REMOTE_BYTES = 64_000


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
        health=evidence.health,
    )


def _evidence(examined: Examined, request: Request) -> Evidence:
    """What is beside the report: from the cache, if no file has changed; only what could be read is cached."""
    cache = open_cache(request.cache and bool(examined.key))
    key = f"{examined.key}{_state_of_files(examined, request)}" if cache.is_open else ""
    known = cache.load(Evidence, key)
    if known is not None:
        return known
    unknown: list[Unavailable] = []
    inapplicable: list[Unavailable] = []
    tokenizer = read_tokenizer(examined.report, examined.manifest, request, unknown, inapplicable)
    if tokenizer is not None:
        tokenizer = with_effects(tokenizer, examined.built, examined.manifest, request)
    whole: dict[str, torch.Tensor] = {}
    values = _values(examined, request, unknown, inapplicable, whole)
    evidence = Evidence(
        tokenizer=tokenizer,
        values=values,
        unknown=tuple(unknown),
        inapplicable=tuple(inapplicable),
        health=_health(examined, whole) if values else None,
    )
    if not unknown:
        cache.save(key, evidence)
    return evidence


def _health(examined: Examined, whole: Mapping[str, torch.Tensor]) -> HeadHealth:
    """What the numbers of the classifier show, of those that were read anyway."""
    from headscope.examination.health import health_of_tensors

    otherwise = "check read its beginning only; inspect --health reads it whole"
    return health_of_tensors(examined.report, whole, examined.built.initial, otherwise)


def _state_of_files(examined: Examined, request: Request) -> str:
    """A digest of what tells that a file beside the weights, or a weight, has changed."""
    from headscope.checkpoints import files_beside

    try:
        places = open_stored_files(request, examined.manifest)
    except HeadscopeError:
        return ""
    found = [state_of(files_beside(place.sidecar, [file.name for file in place.manifest.files])) for place in places]
    return "-" + hashlib.sha256(repr(found).encode()).hexdigest()[:16]


def _values(
    examined: Examined,
    request: Request,
    unknown: list[Unavailable],
    inapplicable: list[Unavailable],
    whole: dict[str, torch.Tensor],
) -> tuple[TensorValues, ...] | None:
    """Statistics of the stored tensors of the head that are loaded as they are; those read whole go into `whole`."""
    report = examined.report
    given = [item for item in report.head.tensors if _is_given(item)] if report.head else []
    if not given:
        inapplicable.append(Unavailable("values", "the checkpoint gives no weight of the head"))
        return None
    try:
        opened = open_stored_files(request, examined.manifest)
        measured = tuple(value for place in opened for value in _measured(place, given, inapplicable, whole))
    except HeadscopeError as err:
        unknown.append(Unavailable("values", f"they could not be read: {err.message}"))
        return None
    if not opened:
        inapplicable.append(Unavailable("values", "snapshots contain no weights"))
    return measured or None


def _is_given(item: HeadParameter) -> bool:
    return item.live and item.status is ParameterStatus.LOADED and len(item.checkpoint_keys) == 1


def _measured(
    place: StoredFiles,
    given: Sequence[HeadParameter],
    inapplicable: list[Unavailable],
    whole: dict[str, torch.Tensor],
) -> Iterator[TensorValues]:
    from headscope.checkpoints import path_in, read_first_bytes
    from headscope.model.values import stored_tensors, values_of, values_of_tensor, whole_tensor

    by_file: dict[str, list[tuple[HeadParameter, TensorHeader]]] = {}
    for item in given:
        header = place.header_of(item)
        if header is not None and header.shape == item.shape:
            by_file.setdefault(header.file, []).append((item, header))
    for file, pairs in by_file.items():
        keys = {header.key: item.name for item, header in pairs}
        dtypes = {header.key: header.dtype for _, header in pairs}
        shapes = {item.name: item.shape for item, _ in pairs}
        if place.manifest.format is WeightsFormat.SAFETENSORS:
            limit = _LOCAL_BYTES if place.sidecar.reads_cheaply else _REMOTE_BYTES
            for key, data in read_first_bytes(place.sidecar, file, keys, limit).items():
                tensor = whole_tensor(data, dtypes[key], shapes[keys[key]])
                if tensor is not None:
                    whole[keys[key]] = tensor
                found = values_of(keys[key], data, dtypes[key], shapes[keys[key]])
                if found is not None:
                    yield found
            continue
        path = path_in(place.sidecar, file)
        if path is None:
            inapplicable.append(Unavailable("values", "headscope doesn't read the numbers in a pickle on the Hub"))
            continue
        for key, tensor in stored_tensors(path, keys).items():
            whole[keys[key]] = tensor
            yield values_of_tensor(keys[key], tensor, shapes[keys[key]])
