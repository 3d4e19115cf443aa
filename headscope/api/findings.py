"""The findings of an examination: what the rules say of it that need no more than was read for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headscope.checks import judge, select
from headscope.facts import ParameterStatus, Profile, Unavailable
from headscope.facts.check import Subject

if TYPE_CHECKING:
    from headscope.api.examination import Examination, Examined, Request

_MISSING = (ParameterStatus.NEW, ParameterStatus.MISMATCHED)
_UNREAD = "`headscope check` reads it"


def with_findings(examined: Examined, request: Request) -> Examination:
    """The report with its findings, for what the model can be used for next: `likely_profile`."""
    from headscope.api.check import config_facts

    report = examined.report
    profile = likely_profile(report)
    subject = Subject(
        report=report,
        profile=profile,
        config=config_facts(examined.manifest.config),
        built=examined.built,
        wanted_num_labels=request.num_labels,
        wanted_labels=request.labels,
        inapplicable=(Unavailable("tokenizer", _UNREAD), Unavailable("values", _UNREAD)),
    )
    return replace(report, findings=judge(subject, select()).findings, profile=profile)


def likely_profile(report: Examination) -> Profile:
    """Training where a weight that the scores depend on is not the checkpoint's, else inference."""
    live = (item for item in report.head.tensors if item.live) if report.head else ()
    return Profile.TRAINING if any(item.status in _MISSING for item in live) else Profile.INFERENCE
