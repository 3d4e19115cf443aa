"""The findings of an examination: what the rules say of it that need no more than was read for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headscope.checks import judge, select
from headscope.facts import Finding, ParameterStatus, Profile, Unavailable
from headscope.facts.check import BuiltFacts, Subject

if TYPE_CHECKING:
    from headscope.api.examination import Examination, Examined, Request

_MISSING = (ParameterStatus.NEW, ParameterStatus.MISMATCHED)
_UNREAD = "`headscope check` reads it"


def with_findings(examined: Examined, request: Request) -> Examination:
    """The report with its findings, for what the model can be used for next: `likely_profile`."""
    report = examined.report
    profile = likely_profile(report)
    found = findings_of(report, profile, examined.manifest.config, examined.built, request)
    return replace(report, findings=found, profile=profile)


def findings_of(
    report: Examination, profile: Profile, config: dict[str, Any], built: BuiltFacts, request: Request | None = None
) -> tuple[Finding, ...]:
    """What the rules that need no more than the report and its configuration say of it."""
    from headscope.api.checking import config_facts

    subject = Subject(
        report=report,
        profile=profile,
        config=config_facts(config),
        built=built,
        wanted_num_labels=request.num_labels if request else None,
        wanted_labels=request.labels if request else (),
        inapplicable=(Unavailable("tokenizer", _UNREAD), Unavailable("values", _UNREAD)),
    )
    return judge(subject, select()).findings


def likely_profile(report: Examination) -> Profile:
    """Training where a weight that the scores depend on is not the checkpoint's, else inference."""
    live = (item for item in report.head.tensors if item.live) if report.head else ()
    return Profile.TRAINING if any(item.status in _MISSING for item in live) else Profile.INFERENCE
