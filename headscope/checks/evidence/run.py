"""The run of a model, as evidence for the rules."""

from __future__ import annotations

from dataclasses import replace

from headscope.checks.facts import Subject
from headscope.core.facts import Gap, GapTopic
from headscope.core.facts.trial import RunTrial


def with_run(subject: Subject, found: RunTrial | str, *, is_wanted: bool) -> Subject:
    """Adds what the model did when it was called, or why it wasn't: a gap if the user wanted the run."""
    if isinstance(found, RunTrial):
        report = subject.report
        left = tuple(gap for gap in report.not_determined if gap.topic != GapTopic.ADAPTER_FIT)
        if found.scope.inputs and left != report.not_determined:  # PEFT loaded each tensor, with numbers
            report = replace(report, not_determined=left)
        return replace(subject, run=found, report=report)
    gap = Gap("run", f"the model was not run: {found}")
    if is_wanted:
        return replace(subject, run_reason=found, unknown=(*subject.unknown, gap))
    return replace(subject, run_reason=found, inapplicable=(*subject.inapplicable, gap))
