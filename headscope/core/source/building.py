"""A checkpoint that was read, built, loaded and traced: what an examination does where nothing is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from headscope.core.facts import CheckpointManifest, Report
from headscope.core.facts.built import BuiltFacts
from headscope.core.facts.heads.head import classifier_weight
from headscope.core.facts.health import InitialSpread
from headscope.core.source.loading import load_checkpoint
from headscope.core.source.reading.assembly import assemble
from headscope.core.source.reading.configuration import built_facts, with_purpose, with_tables
from headscope.core.source.reading.diagnosis import diagnose
from headscope.core.source.reading.tracing import Traced, trace_checkpoint
from headscope.core.source.request import Progress, Request
from headscope.core.source.structure import ExaminationOutcome

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headscope.core.checkpoints.contents.tokenizer_file import FirstToken
    from headscope.core.model.classes.model_request import Choice
    from headscope.core.trace import HeadProgram

Tracer = Callable[["PreTrainedModel", "Choice"], Traced]


def examine_manifest(
    command: str, request: Request, manifest: CheckpointManifest, tracer: Tracer | None, progress: Progress | None
) -> ExaminationOutcome:
    """Examines a checkpoint that was read; leaves the head out if there is no `tracer`."""
    tell = progress or (lambda sentence: None)
    tell("importing torch and transformers")
    choice, loaded = load_checkpoint(request, manifest, tell)
    tell("tracing the head")
    traced = tracer(loaded.model, choice) if tracer else Traced(None)
    report = assemble(command, manifest, choice, loaded, traced, diagnose(choice, manifest, loaded.diff, request.take))
    built = with_purpose(built_facts(choice.config), manifest, is_reranker=bool(choice.rows))
    built = with_tables(replace(built, initial=_spread_of_fresh_classifier(loaded.model, report, built)), loaded.model)
    return ExaminationOutcome(report, built, lambda: traced.program, choice=choice, skeleton=loaded.model)


def _spread_of_fresh_classifier(skeleton: PreTrainedModel, report: Report, built: BuiltFacts) -> InitialSpread | None:
    """Measures the numbers that the class puts into a fresh classifier."""
    from headscope.core.model.tensors.initialization import initial_spread

    weight = classifier_weight(report.head) if report.head else None
    return None if weight is None else initial_spread(skeleton, weight.name, built.initializer_range)


def tracer_of(request: Request, first: FirstToken | None) -> Tracer:
    """Gives what traces the head for a request; `first` is what the checkpoint's own tokenizer puts first."""
    return partial(trace_checkpoint, own=first, prove=request.prove)


def program_of(request: Request, manifest: CheckpointManifest, first: FirstToken | None) -> HeadProgram | None:
    """Traces the program of a head, whose report may be known; None if its path isn't known."""
    choice, loaded = load_checkpoint(request, manifest, lambda sentence: None)
    return tracer_of(request, first)(loaded.model, choice).program
