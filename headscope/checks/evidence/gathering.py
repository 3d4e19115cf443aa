"""Everything that the rules look at, for a checkpoint that was examined."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headscope.checks.facts import BaseNumbers, RuleEvidence, Subject, TensorValues
from headscope.checks.findings import UNREAD_NUMBERS, UNREAD_TOKENIZER, subject_of_checkpoint
from headscope.core.facts import (
    Carried,
    Gap,
    HeadParameter,
    ParameterOrigin,
    ParameterStatus,
    Profile,
    Report,
    TensorHeader,
)
from headscope.core.facts.health import HeadHealth
from headscope.core.facts.stored.tokenizer import TokenizerFacts
from headscope.core.facts.trial import HeadTrial
from headscope.core.source.checkpoint import Checkpoint
from headscope.core.source.storage.cache import open_cache, state_of
from headscope.core.source.stored_tensors import StoredFiles
from headscope.core.source.tokenizer import FileReading, read_tokenizer, with_effects
from headscope.errors import HeadscopeError, Unsupported
from headscope.shell.shown import fields_of

if TYPE_CHECKING:
    import torch


_LOCAL_BYTES = 4_000_000_000
_REMOTE_BYTES = 256_000_000
"""A head is read whole up to here; beyond, nothing of it counts as checked."""
_BYTES_A_NUMBER = 4
"""Of most heads; none has more than twice as many."""


def gather(
    checkpoint: Checkpoint, profile: Profile, *, reads_tokenizer: bool = True, reads_numbers: bool = True
) -> Subject:
    """Gathers what the rules look at, for a checkpoint that was examined: its head, and as much more as requested."""
    evidence = _read_evidence(checkpoint, reads_tokenizer=reads_tokenizer)
    try:
        numbers = _read_numbers(checkpoint, profile) if reads_numbers else UNREAD_NUMBERS
    except HeadscopeError as err:
        numbers = Gap("base values", f"they could not be read: {err.message}")
        evidence = replace(evidence, unknown=(*evidence.unknown, numbers))
    else:
        if isinstance(numbers, Gap):
            evidence = replace(evidence, inapplicable=(*evidence.inapplicable, numbers))
    checkpoint.release()
    subject = replace(subject_of_checkpoint(checkpoint, profile), **fields_of(evidence))
    return replace(subject, numbers=None if isinstance(numbers, Gap) else numbers)


def _read_numbers(checkpoint: Checkpoint, profile: Profile) -> BaseNumbers | Gap:
    """Reads the base model's values: from the cache, if no file has changed."""
    from headscope.checks.evidence.base_numbers import NOT_IN_TRAINING, read_base_numbers

    if profile is Profile.TRAINING:
        return Gap("base values", NOT_IN_TRAINING)
    if checkpoint.request.no_values:
        return Gap("base values", "--no-values leaves them out")
    cache = open_cache(checkpoint.request.cache and bool(checkpoint.key))
    key = f"{checkpoint.key}{state_of_files(checkpoint)}-base" if cache.is_open else ""
    known = cache.load(BaseNumbers, key)
    if known is not None:
        return known
    found = read_base_numbers(checkpoint)
    if isinstance(found, BaseNumbers):
        cache.save(key, found)
    return found


def _read_evidence(checkpoint: Checkpoint, *, reads_tokenizer: bool) -> RuleEvidence:
    """Reads what is beside the report: from the cache, if no file has changed."""
    cache = open_cache(checkpoint.request.cache and bool(checkpoint.key) and reads_tokenizer)
    key = f"{checkpoint.key}{state_of_files(checkpoint)}" if cache.is_open else ""
    known = cache.load(RuleEvidence, key)
    if known is not None:
        return known
    tokenizer: FileReading[TokenizerFacts] = FileReading(inapplicable=(UNREAD_TOKENIZER,))
    if reads_tokenizer:
        tokenizer = read_tokenizer(checkpoint, checkpoint.report)
    facts = tokenizer.found and with_effects(tokenizer.found, checkpoint.built, checkpoint)
    head = _read_stored_head(checkpoint)
    evidence = RuleEvidence(
        tokenizer=facts,
        values=head.found.values if head.found else None,
        unknown=(*tokenizer.unknown, *head.unknown),
        inapplicable=(*tokenizer.inapplicable, *head.inapplicable),
        health=_health_of_stored(checkpoint, head.found.stored) if head.found else None,
        trial=_try_stored_head(checkpoint, head.found) if head.found else None,
    )
    if not evidence.unknown:
        # What could not be read, say for a network error, may be readable the next time.
        cache.save(key, evidence)
    return evidence


def _health_of_stored(checkpoint: Checkpoint, stored: Mapping[str, torch.Tensor]) -> HeadHealth:
    """Judges the numbers of the classifier, of those that were read anyway."""
    from headscope.core.source.health.reading import health_of_tensors

    floats = {name: item for name, item in stored.items() if item.is_floating_point()}
    return health_of_tensors(
        checkpoint.report, floats, checkpoint.built.initial, "its values are not floats, or not read"
    )


def _try_stored_head(checkpoint: Checkpoint, stored: _StoredHead) -> HeadTrial:
    """Tries the head with its stored values."""
    from headscope.shared.trial.head_trial import try_head

    program = checkpoint.program
    model = checkpoint.report.model
    found = HeadTrial("the head path is not known")
    if program is not None:
        found = try_head(program, stored.loaded, model.task, model.problem_type)
    size = sum(item.numel() * item.itemsize for item in stored.stored.values())
    return replace(found, unread=stored.unread, bytes_read=size, requests=stored.requests)


def state_of_files(checkpoint: Checkpoint) -> str:
    """Digests the state of the weight files and of those beside them, so that a change shows."""
    from headscope.core.checkpoints.checkpoint_files import files_beside

    try:
        places = checkpoint.stored_files
    except HeadscopeError:
        return ""
    found = [state_of(files_beside(place.sidecar, [file.name for file in place.manifest.files])) for place in places]
    return "-" + hashlib.sha256(repr(found).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _StoredHead:
    """Tensors of a head, as the loader gives them and as they are stored.

    `unread` says why some of what the checkpoint gives was not read.
    """

    values: tuple[TensorValues, ...]
    loaded: Mapping[str, torch.Tensor]
    stored: Mapping[str, torch.Tensor]
    unread: tuple[str, ...]
    requests: int


def loaded_head(checkpoint: Checkpoint) -> Mapping[str, torch.Tensor]:
    """Reads the head's parameters as the loader gives them, by name; leaves out those that can't be read.

    Raises Unsupported if none can be read.
    """
    head = _read_stored_head(checkpoint)
    if head.found is None:
        raise Unsupported(f"the values of the head: {(*head.unknown, *head.inapplicable)[0].reason}", "")
    return head.found.loaded


def _read_stored_head(checkpoint: Checkpoint) -> FileReading[_StoredHead]:
    """Reads the values of the head."""
    report = checkpoint.report
    given = list(_tensors_given(report))
    if not given:
        return FileReading(inapplicable=(Gap("values", "the checkpoint gives no weight of the head"),))
    unread = {item.name: _why_not_as_stored(item, source) for item, source in given}
    wanted = [(item, source) for item, source in given if not unread[item.name]]
    found: dict[str, torch.Tensor] = {}
    try:
        opened = checkpoint.stored_files
        asked_before = _requests_to(opened)
        for place in opened:
            found |= _read_place(place, wanted, report, unread)
    except HeadscopeError as err:
        return FileReading(unknown=(Gap("values", f"they could not be read: {err.message}"),))
    if not opened:
        return FileReading(inapplicable=(Gap("values", "snapshots contain no weights"),))

    import torch

    from headscope.checks.evidence.tensor_values import values_of

    lost = (unread[item.name] or f"{item.name} was not found" for item, _ in given if item.name not in found)
    loaded = {item.name: found[item.name].to(getattr(torch, item.dtype)) for item, _ in given if item.name in found}
    values = (values_of(name, tensor, found[name].dtype) for name, tensor in loaded.items())
    return FileReading(_StoredHead(tuple(values), loaded, found, tuple(lost), _requests_to(opened) - asked_before))


def _requests_to(places: Iterable[StoredFiles]) -> int:
    """Counts the requests that were made to places so far."""
    return sum(sum(place.sidecar.asked) for place in places)


_Given = tuple[HeadParameter, HeadParameter | ParameterOrigin]
"""A tensor of the head, and what is stored: itself, or what it is tied to."""


def _tensors_given(report: Report) -> Iterator[_Given]:
    """Lists the head's tensors that the checkpoint gives."""
    # A tied tensor isn't stored: its values are those of its source.
    sources = {tie.parameter: tie.source for tie in report.weights.tied}
    origins = {item.name: item for item in report.weights.parameters}
    for item in report.head.tensors if report.head else ():
        source = origins.get(sources.get(item.name, ""), item) if item.status is ParameterStatus.TIED else item
        if item.live and source.status is ParameterStatus.LOADED:
            yield item, source


def _why_not_as_stored(item: HeadParameter, source: HeadParameter | ParameterOrigin) -> str:
    """Says why no stored tensor is what the scores depend on; "" if one is."""
    if source.quantized is not None:
        return f"{item.name} is quantized ({source.quantized}), and headscope doesn't unpack its values"
    if item.adapter is Carried.ADAPTED:
        return f"the adapter changes the output of {item.name}, and headscope doesn't merge the two"
    if len(source.checkpoint_keys) != 1:
        return f"the loader makes {item.name} from {len(source.checkpoint_keys)} tensors"
    return ""


def _read_place(
    place: StoredFiles, wanted: Sequence[_Given], report: Report, unread: dict[str, str]
) -> dict[str, torch.Tensor]:
    """Reads the stored tensors of the head in one place; adds to `unread` why one was not read."""
    stored = {item: header for item, source in wanted if (header := place.header_of(source)) is not None}
    whys = place.unreadable(stored.values())
    readable: dict[str, TensorHeader] = {}
    for item, header in stored.items():
        if header.shape != item.shape:
            unread[item.name] = f"the loader gives {item.name} another shape than is stored"
        elif header in whys:
            unread[item.name] = f"{item.name} can't be read: {whys[header]}"
        else:
            readable[item.name] = header
    rows = {header: _rows_of(header, report) for header in readable.values()}
    count = sum(math.prod(header.shape) for header, some in rows.items() if some is None)
    if _BYTES_A_NUMBER * count > (_LOCAL_BYTES if place.sidecar.reads_cheaply else _REMOTE_BYTES):
        unread |= dict.fromkeys(readable, f"the head has {count:,} numbers, more than headscope reads from here")
        return {}
    read = place.together(rows)
    return {name: read[header] for name, header in readable.items()}


def _rows_of(header: TensorHeader, report: Report) -> tuple[int, ...] | None:
    """Lists the rows of a tensor that the scores read, if they are those of a few tokens; otherwise None."""
    tokens = report.head.token_rows if report.head else None
    if tokens is None or header.shape[:1] != (tokens.vocabulary,):
        return None
    return tuple(row.id for row in tokens.rows)
