"""The examination of a checkpoint: from a request to a report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from headscope.examination.base.assembly import assemble, without_head
from headscope.examination.base.cache import key_of, open_cache
from headscope.examination.base.configuration import built_facts, with_purpose, with_tables
from headscope.examination.base.diagnosis import diagnose
from headscope.examination.base.reading import own_first_token, read_checkpoint
from headscope.examination.base.request import Progress, Request
from headscope.examination.base.token_rows import tokens_of
from headscope.examination.base.tracing import Traced, trace_checkpoint
from headscope.examination.checkpoint.loading import load_checkpoint
from headscope.examination.checkpoint.memory import Memory
from headscope.examination.checkpoint.shipped_structures import with_version
from headscope.examination.checkpoint.structure import renewed, structure_of
from headscope.facts import CheckpointManifest, Report, Verification
from headscope.facts.heads.head import classifier_weight
from headscope.facts.results.check import BuiltFacts
from headscope.facts.results.health import InitialSpread

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headscope.model.classes.model_request import Choice
    from headscope.trace import HeadProgram


def examine(
    command: str,
    request: Request,
    progress: Progress | None,
    memory: Memory | None = None,
    *,
    takes_class: bool = False,
    on_build: Callable[[], None] = lambda: None,
) -> Examined:
    """Examines the checkpoint of a request, under the name of a command.

    `memory` keeps what the next checkpoints of the same structure share; without one, it is the user's cache. With
    `takes_class` the request may name a class of Transformers, which is examined in its default configuration.
    `on_build` is called before the class is built, which takes seconds, but not if the report is known.
    """
    examined = _examine_with_memory(command, request, progress, memory, takes_class=takes_class, on_build=on_build)
    head = examined.report.head
    if command != "check" or head is None or head.verification is None:
        return examined
    head = replace(head, verification=without_measures(head.verification))
    return replace(examined, report=replace(examined.report, head=head))


def without_measures(proof: Verification) -> Verification:
    """Returns a proof without what depends on the sizes of the model that was run: a check needs no more."""
    padding = tuple(replace(effect, difference=None) for effect in proof.padding)
    return replace(proof, positions=(), padding=padding)


def _examine_with_memory(
    command: str,
    request: Request,
    progress: Progress | None,
    memory: Memory | None,
    *,
    takes_class: bool,
    on_build: Callable[[], None],
) -> Examined:
    manifest = read_checkpoint(request, progress, takes_class=takes_class)
    first = own_first_token(request, manifest)
    tracer = partial(trace_checkpoint, own=first, prove=request.prove)
    memory = memory or Memory(open_cache(request.cache))
    # With code of the repository, a report also depends on files that no key names.
    if request.runs_code or not memory.is_open:
        on_build()
        return examine_manifest(command, request, manifest, tracer, progress)
    rows = tokens_of(request, manifest)
    options = (request.num_labels, request.labels, request.task, request.model_class, request.reference)
    key = key_of(manifest, *options, first, rows) if memory.cache.is_open else ""
    structure = structure_of(manifest, request, first, rows)
    is_known = not request.prove or command == "check"  # which needs what padding does, and shows no positions
    known = memory.find(structure, manifest, verified=request.prove)
    known = known or (memory.shipped(request, manifest, first) if is_known else None)
    if known is not None:
        report = with_version(renewed(known, structure, manifest, command, verified=request.prove))
        program = partial(memory.program, structure, partial(_trace_program_again, request, manifest, tracer))
        return Examined(report, manifest, known.built, None, None, key, program)
    on_build()
    examined = examine_manifest(command, request, manifest, tracer, progress)
    memory.keep(structure, manifest, examined.report, examined.built, verified=request.prove)
    memory.program(structure, examined.program)
    return replace(examined, key=key)


def _trace_program_again(request: Request, manifest: CheckpointManifest, tracer: Tracer) -> HeadProgram | None:
    """Traces the program of a head whose report is known."""
    choice, loaded = load_checkpoint(request, manifest, lambda sentence: None)
    return tracer(loaded.model, choice).program


def examine_weights(request: Request, progress: Progress | None) -> Report:
    """Examines a checkpoint without a trace of the head; takes the report of a shipped structure if there is one."""
    manifest = read_checkpoint(request, progress)
    memory = Memory(open_cache(request.cache))
    known = None if request.runs_code else memory.shipped(request, manifest, None)
    if known is None or known.report.notes or known.report.not_determined:  # some may be those of the trace
        return examine_manifest("diff-weights", request, manifest, None, progress).report
    return with_version(without_head(replace(known.report, command="diff-weights")))


@dataclass(frozen=True, slots=True)
class Examined:
    """A report, what was read for it, and as what.

    `choice` and `skeleton`, the model on the meta device, are None where the report is from the cache; `key` is what
    the cache knows it by. `program` gives what runs the head again, None where the head was not traced; for a report
    from the cache it may trace the head first.
    """

    report: Report
    manifest: CheckpointManifest
    built: BuiltFacts
    choice: Choice | None
    skeleton: PreTrainedModel | None
    key: str
    program: Callable[[], HeadProgram | None] = lambda: None


Tracer = Callable[["PreTrainedModel", "Choice"], Traced]


def examine_manifest(
    command: str, request: Request, manifest: CheckpointManifest, tracer: Tracer | None, progress: Progress | None
) -> Examined:
    """Examines a checkpoint that was read; leaves the head out if there is no `tracer`."""
    tell = progress or (lambda sentence: None)
    tell("importing torch and transformers")
    choice, loaded = load_checkpoint(request, manifest, tell)
    tell("tracing the head")
    traced = tracer(loaded.model, choice) if tracer else Traced(None)
    report = assemble(command, manifest, choice, loaded, traced, diagnose(choice, manifest, loaded.diff, request.take))
    built = with_purpose(built_facts(choice.config), manifest, is_reranker=bool(choice.rows))
    built = with_tables(replace(built, initial=_spread_of_fresh_classifier(loaded.model, report, built)), loaded.model)
    return Examined(report, manifest, built, choice, loaded.model, "", lambda: traced.program)


def _spread_of_fresh_classifier(skeleton: PreTrainedModel, report: Report, built: BuiltFacts) -> InitialSpread | None:
    """Measures the numbers that the class puts into a fresh classifier."""
    from headscope.model.tensors.initialization import initial_spread

    weight = classifier_weight(report.head) if report.head else None
    return None if weight is None else initial_spread(skeleton, weight.name, built.initializer_range)
