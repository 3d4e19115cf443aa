"""The examination of a checkpoint: from a request to a report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from headscope.examination.assembly import assemble, checkpoint_facts
from headscope.examination.cache import key_of, open_cache
from headscope.examination.configuration import built_facts, with_purpose
from headscope.examination.diagnosis import diagnose
from headscope.examination.loading import load_checkpoint
from headscope.examination.reading import own_first_token, read_checkpoint
from headscope.examination.request import Progress, Request
from headscope.examination.tokens import tokens_of
from headscope.examination.tracing import Traced, trace_checkpoint
from headscope.facts import CheckpointManifest, Report
from headscope.facts.check import BuiltFacts

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headscope.model.model_request import Choice


def examine(command: str, request: Request, progress: Progress | None) -> Examined:
    """The examination that a request asks for, under the name of a command, with what it came from."""
    manifest = read_checkpoint(request, progress)
    # With code of the repository, a report also depends on files that the key does not name.
    cache = open_cache(request.cache and not request.trust_remote_code)
    first = own_first_token(request, manifest)
    key = key_of(manifest, *_identity(request), first, tokens_of(request, manifest)) if cache.is_open else ""
    known = cache.load(Remembered, key)
    if known is not None and (known.verified or not request.verify):
        return Examined(_renewed(known, command, request, manifest), manifest, known.built, None, None, key)
    examined = _examine(
        command, request, manifest, partial(trace_checkpoint, own=first, verify=request.verify), progress
    )
    cache.save(key, Remembered(examined.report, examined.built, request.verify))
    return replace(examined, key=key)


def _identity(request: Request) -> tuple[object, ...]:
    """What a report depends on beside the manifest and the versions."""
    return request.num_labels, request.labels, request.task, request.model_class, request.reference


def _renewed(known: Remembered, command: str, request: Request, manifest: CheckpointManifest) -> Report:
    """A report from the cache as this command and this reading would have made it."""
    checkpoint = replace(checkpoint_facts(manifest), states=known.report.checkpoint.states)
    report = replace(known.report, command=command, checkpoint=checkpoint)
    verification = report.head.verification if report.head else None
    if report.head is None or request.verify or verification is None or verification.agrees is False:
        return report
    return replace(report, head=replace(report.head, verification=None))


def examine_weights(request: Request, progress: Progress | None) -> Report:
    """The examination without a trace of the head."""
    return _examine("diff-weights", request, read_checkpoint(request, progress), None, progress).report


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the cache keeps of an examination; `verified` says that the effect of padding was measured too."""

    report: Report
    built: BuiltFacts
    verified: bool


@dataclass(frozen=True, slots=True)
class Examined:
    """A report, what was read for it, and as what.

    `choice` and `skeleton`, the model on the meta device, are None where the report is from the cache; `key` is what
    the cache knows it by.
    """

    report: Report
    manifest: CheckpointManifest
    built: BuiltFacts
    choice: Choice | None
    skeleton: PreTrainedModel | None
    key: str


Tracer = Callable[["PreTrainedModel", "Choice"], Traced]


def _examine(
    command: str, request: Request, manifest: CheckpointManifest, tracer: Tracer | None, progress: Progress | None
) -> Examined:
    tell = progress or (lambda sentence: None)
    tell("importing torch and transformers")
    choice, loaded = load_checkpoint(request, manifest, tell)
    tell("tracing the head")
    traced = tracer(loaded.model, choice) if tracer else Traced(None)
    report = assemble(command, manifest, choice, loaded, traced, diagnose(choice, manifest, loaded))
    built = with_purpose(built_facts(choice.config), manifest, is_reranker=bool(choice.rows))
    return Examined(report, manifest, built, choice, loaded.model, "")
