"""Which severities a rule may give its findings, for each profile: the table that rules, `explain` and the docs share."""

from dataclasses import dataclass

from headscope.facts.report import Profile, Severity

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
    "HS101": "error note | error",
    "HS102": "note | error warning",
    "HS103": "warning note | error warning",
    "HS104": "error note | error note",
    "HS105": "note | note",
    "HS106": "warning | warning",
    "HS108": "warning | warning",
    "HS109": "error warning | error warning",
    "HS110": "note | note",
    "HS111": "warning | warning",
    "HS201": "error warning note | error warning",
    "HS202": "note | warning",
    "HS203": "warning | error",
    "HS204": "error warning | error warning",
    "HS205": "warning | note",
    "HS206": "warning | note",
    "HS304": "error note | error note",
    "HS305": "warning | warning",
    "HS401": "note | error warning",
    "HS402": "error warning | warning",
    "HS403": "warning | warning",
    "HS404": "error | warning",
    "HS406": "note | warning",
    "HS501": "error warning | error warning",
    "HS502": "note | error warning",
    "HS601": "error note |",
    "HS602": "error |",
    "HS706": "error warning | error warning",
    "HS713": "error warning | error warning",
    "HS715": "error note | error note",
    "HS716": "warning | warning",
    "HS718": "error warning | error warning",
    "HS721": "error | error warning",
    "HS722": "warning | note",
    "HS724": "error warning | error warning",
    "HS725": "warning | warning",
    "HS726": "error warning | error warning",
    "HS727": "note | note",
    "HS728": "warning | note",
    "HS730": "note | warning",
    "HS731": "note | note",
}
"""Training | inference, of every rule that finds more or other than errors."""


def severities_of(rule: str) -> Severities:
    """What a rule may find, by its id: errors where the table says nothing else."""
    training, _, inference = _OTHERS.get(rule, "error | error").partition("|")
    return Severities(tuple(map(Severity, training.split())), tuple(map(Severity, inference.split())))
