"""Verdicts, and the severities that the rules' findings have."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from headscope.core.facts.report import Finding, Profile, Severity

GRAVITY = {Severity.NOTE: 0, Severity.WARNING: 1, Severity.ERROR: 2}
"""Severities in their order."""


@dataclass(frozen=True, slots=True)
class Severities:
    """The severities of a rule's findings by profile, the gravest first; none where the rule finds nothing."""

    training: tuple[Severity, ...]
    inference: tuple[Severity, ...]

    def of(self, profile: Profile) -> tuple[Severity, ...]:
        """Gives the severities for a profile."""
        return self.training if profile is Profile.TRAINING else self.inference


_OTHERS = {
    "error note | error": "HS101",
    "note | error warning": "HS502 HS526",
    "note | error warning note": "HS401",
    "warning | error warning": "HS203 HS524",
    "warning | error": "HS111 HS112 HS523 HS529 HS901 HS903",
    "warning note | error warning": "HS102 HS103",
    "error note | error note": "HS104 HS304 HS715",
    "note | note": "HS007 HS011 HS105 HS110 HS309",
    "warning | warning": "HS005 HS106 HS108 HS305 HS403 HS716",
    "error warning | error warning": "HS004 HS006 HS109 HS204 HS307 HS501 HS521 HS525 HS528 HS706 HS713 HS718 HS719",
    "error warning note | error warning": "HS201",
    "error warning note | error warning note": "HS306",
    "note | warning": "HS010 HS202 HS406 HS902 HS904 HS905",
    "error warning | error": "HS504",
    "warning | note": "HS002 HS008 HS205 HS206",
    "error warning | warning": "HS402",
    "error | warning": "HS404",
    "error note |": "HS601",
    "error |": "HS602",
    "note |": "HS113",
    "error | error warning": "HS001",
}
"""Training | inference, with the rules that find so: every rule that finds more or other than errors."""


def severities_of(rule: str) -> Severities:
    """Gives the severities that a rule may find, by its id: errors if the table says nothing else."""
    found = next((found for found, rules in _OTHERS.items() if rule in rules.split()), "error | error")
    training, _, inference = found.partition("|")
    return Severities(tuple(map(Severity, training.split())), tuple(map(Severity, inference.split())))


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
