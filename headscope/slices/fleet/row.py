"""One checkpoint as one row: examined by the use case of `inspect`, and never an exception."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from headscope.checks.evidence.gathering import gather
from headscope.checks.evidence.run import with_run
from headscope.checks.facts import CheckResult, Subject
from headscope.checks.findings import likely_profile
from headscope.checks.rules import Selection, judge, rules_on_reports
from headscope.core.facts import CheckpointKind, ParameterStatus, Profile, Severity
from headscope.core.facts.report import find_without_place
from headscope.core.facts.stored.checkpoint import told_gaps
from headscope.core.facts.stored.states import error_line
from headscope.core.facts.stored.weights import NEW_AT_LOAD
from headscope.core.facts.verdict import Verdict
from headscope.core.source.checkpoint import Checkpoint, examine
from headscope.core.source.memory.memory import Memory
from headscope.core.source.request import Request
from headscope.core.upstream.imports import ImportTime, fault_of_import
from headscope.errors import HeadscopeError
from headscope.shared.trial.deciding import too_large, why_not_run
from headscope.slices.fleet.facts import Cause, ScanRow

_LONGEST_REASON = 2_000
_GRAVEST_FIRST = tuple(Severity)


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Options for every checkpoint; with `profile` None each is weighed for what it can be used for next."""

    profile: Profile | None = None
    selection: Selection | None = None
    run: bool = False
    """Whether local checkpoints are loaded and called."""


def scan_one(make: Callable[[], Request], reference: str, options: RowOptions, memory: Memory) -> ScanRow:
    """Examines a checkpoint and gives its row; one that can't be examined, for any reason, gets a row that says why."""
    # A worker imports a library once, for all later checkpoints: no row's time counts that.
    start = time.perf_counter() - ImportTime.seconds
    try:
        row = _examined_row(examine("inspect", make(), None, memory), options)
    except HeadscopeError as err:
        row = _refused_row(reference, err)
    except MemoryError:
        row = unread(reference, Cause.MEMORY, "examining it takes more memory than a worker may use")
    except Exception as err:  # one checkpoint costs itself alone
        fault = fault_of_import(err)
        row = (
            _refused_row(reference, fault) if fault else unread(reference, Cause.CRASH, f"{type(err).__name__}: {err}")
        )
    return replace(row, reference=reference, seconds=round(time.perf_counter() - ImportTime.seconds - start, 4))


def _refused_row(reference: str, err: HeadscopeError) -> ScanRow:
    return unread(reference, Cause(err.code), error_line(err))


def unread(reference: str, cause: Cause, reason: str) -> ScanRow:
    """Makes the row of a checkpoint that could not be examined."""
    return ScanRow(reference, Verdict.NOT_DETERMINED, not_determined=cause.value, reason=reason[:_LONGEST_REASON])


def _examined_row(checkpoint: Checkpoint, options: RowOptions) -> ScanRow:
    report = checkpoint.report
    profile = options.profile or likely_profile(report)
    is_local = report.checkpoint.kind is CheckpointKind.LOCAL
    # The head's values are read, but not the base model's: these are most of a checkpoint's bytes.
    subject = gather(checkpoint, profile, reads_tokenizer=is_local, reads_numbers=False)
    subject = _add_run(subject, checkpoint, options)
    result = judge(subject, options.selection or Selection(rules_on_reports()))
    facts, model, weights, head = report.checkpoint, report.model, report.weights, report.head
    new_in_head = None  # it isn't known without the whole head
    if head is not None and all(item.status is not ParameterStatus.UNKNOWN for item in head.tensors):
        new_in_head = sum(item.live and item.status in NEW_AT_LOAD for item in head.tensors)
    gravest_first = sorted(result.findings, key=lambda item: (_GRAVEST_FIRST.index(item.severity), item.id))
    undetermined = result.verdict is Verdict.NOT_DETERMINED
    return ScanRow(
        reference=facts.reference,
        verdict=result.verdict,
        commit=facts.commit,
        revision=facts.revision,
        kind=facts.kind.value,
        format=facts.format.value,
        model_type=facts.model_type,
        class_name=model.class_name,
        task=model.task,
        pooling_kind=head.pooling.kind.value if head else None,
        formula=head.formula or None if head else None,
        num_labels=model.num_labels,
        labels=model.labels,
        dtype=model.dtype,
        new=None if report.unknown else len(weights.new),
        new_in_head=new_in_head,
        mismatched=len(weights.mismatched),
        unused=len(weights.unused),
        unplaced=tuple(item.name for item in find_without_place(report)),
        saved_class=model.saved_class,
        head_parameters=model.parameters.head,
        parameters=model.parameters.total,
        profile=profile.value,
        findings=tuple(dict.fromkeys(item.id for item in gravest_first)),
        run=subject.run is not None,
        not_run=subject.run_reason,
        not_checked=tuple(gap.rule for gap in result.not_applicable),
        not_determined=Cause.GAPS.value if undetermined else None,
        reason=_deciding_reason(result)[:_LONGEST_REASON],
        bytes_read=facts.bytes_read + (subject.trial.bytes_read if subject.trial else 0),
        bytes_total=facts.bytes_total,
        requests=facts.requests + (subject.trial.requests if subject.trial else 0),
    )


def _add_run(subject: Subject, checkpoint: Checkpoint, options: RowOptions) -> Subject:
    """Adds what the model does when it is called: in this process, which is a worker with limits."""
    if not options.run:
        return with_run(subject, "scan runs models only with --run", is_wanted=False)
    if checkpoint.report.checkpoint.kind is CheckpointKind.HUB:
        return with_run(subject, "it is on the Hub, and a scan runs folders on this machine", is_wanted=True)
    reason = why_not_run(checkpoint, is_wanted=True) or too_large(checkpoint.manifest.bytes_total)
    if reason:
        return with_run(subject, reason, is_wanted=True)
    from headscope.shared.trial.opening import run_checkpoint

    return with_run(subject, run_checkpoint(checkpoint.request, "cpu"), is_wanted=True)


def _deciding_reason(result: CheckResult) -> str:
    """Gives the reason of a verdict: the gaps of one that isn't determined, the first finding of one that failed.

    If several models may be meant, that comes first: the other findings are those of a load of neither.
    """
    states = result.report.checkpoint.states if result.report is not None else ()
    several = next((state for state in states if state.is_ambiguous), None)
    if several is not None:
        return f"{several.sentence} {several.seen()} {several.remedy}"
    if result.verdict is Verdict.NOT_DETERMINED:
        return "; ".join(told_gaps(result.not_determined))
    if result.verdict is Verdict.FAILED:
        return next((item.message for item in result.findings), "")
    return ""
