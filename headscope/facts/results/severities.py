"""Which severities a rule's findings may have, for each profile: the table that rules, `explain` and the docs share."""

from dataclasses import dataclass

from headscope.facts.results.report import Profile, Severity

GRAVITY = {Severity.NOTE: 0, Severity.WARNING: 1, Severity.ERROR: 2}
"""Severities in their order."""


@dataclass(frozen=True, slots=True)
class Severities:
    """The severities of a rule's findings by profile, the gravest first; none where the rule finds nothing."""

    training: tuple[Severity, ...]
    inference: tuple[Severity, ...]

    def of(self, profile: Profile) -> tuple[Severity, ...]:
        """The severities for a profile."""
        return self.training if profile is Profile.TRAINING else self.inference


_OTHERS = {
    "error note | error": "HS101",
    "note | error warning": "HS102 HS401 HS502",
    "warning note | error warning": "HS103",
    "error note | error note": "HS104 HS304 HS715",
    "note | note": "HS105 HS110 HS309 HS727 HS731",
    "warning | warning": "HS106 HS108 HS305 HS403 HS716 HS725",
    "error warning | error warning": "HS204 HS307 HS501 HS706 HS713 HS718 HS719 HS724 HS726",
    "error warning note | error warning": "HS201",
    "error warning note | error warning note": "HS306",
    "note | warning": "HS202 HS406 HS730",
    "warning | error": "HS111 HS203",
    "error warning | error": "HS504",
    "warning | note": "HS205 HS206 HS722 HS728",
    "error warning | warning": "HS402",
    "error | warning": "HS404",
    "error note |": "HS601",
    "error |": "HS602",
    "error | error warning": "HS721",
}
"""Training | inference, with the rules that find so: every rule that finds more or other than errors."""


def severities_of(rule: str) -> Severities:
    """What a rule may find, by its id: errors where the table says nothing else."""
    found = next((found for found, rules in _OTHERS.items() if rule in rules.split()), "error | error")
    training, _, inference = found.partition("|")
    return Severities(tuple(map(Severity, training.split())), tuple(map(Severity, inference.split())))
