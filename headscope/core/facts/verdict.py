"""Verdicts, on one model and on several, and the order of the severities that lead to them."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from headscope.core.facts.report import Finding, Severity

GRAVITY = {Severity.NOTE: 0, Severity.WARNING: 1, Severity.ERROR: 2}
"""Severities in their order."""


class Verdict(StrEnum):
    """What a check comes to."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_DETERMINED = "not_determined"


def verdict_on_all(verdicts: Iterable[Verdict]) -> Verdict:
    """Joins the verdicts on several models: failed before not determined, and passed only if all of them did."""
    found = set(verdicts)
    order = (Verdict.FAILED, Verdict.NOT_DETERMINED)
    return next((verdict for verdict in order if verdict in found), Verdict.PASSED)


@dataclass(frozen=True, slots=True)
class Ignored:
    """A finding that the user chose to ignore, and why."""

    finding: Finding
    """What was found."""
    reason: str
    """Why it is ignored, as the settings or the baseline say."""
