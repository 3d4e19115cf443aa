"""What a rule is: one function from a subject to findings, with a stable id."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from headscope.checks.facts import Subject
from headscope.core.facts import CheckpointKind, Finding, Gap, Head, HeadParameter, ParameterStatus, Profile, Severity
from headscope.core.facts.counting import few_of
from headscope.core.facts.heads.head import classifier_weight
from headscope.core.facts.heads.tasks import WITHOUT_CLASSES
from headscope.core.facts.stored.weights import stored_classes

OPTIONAL = frozenset({"data", "predictions", "engine"})
"""What a rule may need that a check only has where it was given."""
Findings = Iterable[Finding]
Judge = Callable[["Rule", Any], Findings]


@dataclass(frozen=True, slots=True)
class Severities:
    """The severities of a rule's findings by profile, the gravest first; none where the rule finds nothing."""

    training: tuple[Severity, ...]
    inference: tuple[Severity, ...]

    def of(self, profile: Profile) -> tuple[Severity, ...]:
        """Gives the severities for a profile."""
        return self.training if profile is Profile.TRAINING else self.inference


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `needs` names facts that not every checkpoint has.

    `command` is the command that asks it, which decides what `judge` is handed: a `Subject` in `check`, a `LoadedModel`
    in `verify`.
    """

    id: str
    name: str
    title: str
    needs: tuple[str, ...]
    judge: Judge
    command: str = "check"
    severities: Severities = field(kw_only=True)
    """Severities of its possible findings, for each profile."""

    def find(
        self, severity: Severity, message: str, remedy: str, parameters: Iterable[str] = (), code: str = ""
    ) -> Finding:
        """Makes a finding; `code` does what the remedy says. Raises ValueError for a severity that is not declared."""
        # Docs and help list the declared severities, and a gap's gravity comes from them.
        if severity not in {*self.severities.training, *self.severities.inference}:
            raise ValueError(f"{self.id} finds a severity that isn't declared with it: {severity}")
        page = f"docs/rules.md#{self.id.lower()}"
        return Finding(self.id, severity, self.title, message, remedy, tuple(parameters), page, code)

    def gap(self, reason: str) -> Gap:
        """Makes a gap of this rule: it could not be decided, or has nothing to look at."""
        return Gap(f"{self.id} {self.name}", reason, self.id)


class NotKnown(Exception):
    """A rule could not be decided; its text says why.

    `hides` is the gravest finding that may be hidden; None: any that the rule has.
    """

    def __init__(self, reason: str, hides: Severity | None = None) -> None:
        super().__init__(reason)
        self.hides = hides


class NotApplicable(Exception):
    """A rule has nothing to look at; its text says why."""


_RULES: dict[str, Rule] = {}
"""The rules whose modules are imported."""
_ON_REPORTS = ("kind", "labeled.labels", "labeled.probabilities", "tokens", "training", "trial", "values", "weights")
_ON_MORE = ("engines", "labeled.data", "labeled.predictions", "loaded", "saved")
"""Modules of the rules on what only `check` and `verify` are given: labeled data, engines, loads and saves."""
_BY_LETTER = {severity[0].upper(): severity for severity in Severity}


def rule(
    identifier: str,
    name: str,
    title: str,
    *,
    finds: str = "E|E",
    needs: tuple[str, ...] = (),
    command: str = "check",
) -> Callable[[Judge], Judge]:
    """Enters a function into the rules under a stable id.

    `finds` lists the severities of its findings (error, warning, note: E, W, N) for training | inference, the gravest
    first.

    The function raises NotKnown if it can't decide, and NotApplicable if there is nothing to look at. Raises ValueError
    for an ID that is taken.
    """

    def enter(judge: Judge) -> Judge:
        if identifier in _RULES:
            raise ValueError(f"two rules have the id {identifier}")
        before, _, serving = finds.partition("|")
        severities = Severities(*(tuple(_BY_LETTER[letter] for letter in found) for found in (before, serving)))
        _RULES[identifier] = Rule(identifier, name, title, needs, judge, command, severities=severities)
        return judge

    return enter


@cache  # asked for each finding and each ignore
def every_rule() -> Mapping[str, Rule]:
    """Gives all rules by ID."""
    for name in (*_ON_REPORTS, *_ON_MORE):
        import_module(f"headscope.checks.rules.{name}")
    return MappingProxyType(dict(sorted(_RULES.items())))


@cache  # asked for each row of a scan
def rules_on_reports() -> tuple[Rule, ...]:
    """Gives the rules of `check` that ask for no more than a checkpoint. Imports no others, which takes time."""
    for name in _ON_REPORTS:
        import_module(f"headscope.checks.rules.{name}")
    found = (_RULES[identifier] for identifier in sorted(_RULES))
    return tuple(rule for rule in found if rule.command == "check" and OPTIONAL.isdisjoint(rule.needs))


def severity_at(subject: Subject, *, training: Severity, inference: Severity) -> Severity:
    """Picks the severity for the profile of a subject."""
    return training if subject.profile is Profile.TRAINING else inference


def for_profile(subject: Subject, *, training: str, inference: str) -> str:
    """Picks the text for the profile of a subject."""
    return training if subject.profile is Profile.TRAINING else inference


def head_of(subject: Subject) -> Head:
    """Gives the head. Raises NotKnown where its path could not be traced."""
    if subject.report.head is None:
        raise NotKnown("headscope could not determine the head path")
    return subject.report.head


def live_parameters(subject: Subject) -> list[HeadParameter]:
    """Gives the parameters of the head that the scores depend on. Raises NotKnown where its path is not known."""
    return [item for item in head_of(subject).parameters if item.live]


def live_of(subject: Subject) -> list[HeadParameter]:
    """Gives the parameters and buffers of the head that the scores depend on. Raises NotKnown for an unknown status."""
    live = [item for item in head_of(subject).tensors if item.live]
    unknown = [item.name for item in live if item.status is ParameterStatus.UNKNOWN]
    if unknown:
        raise NotKnown(f"whether the checkpoint gives {few_of(unknown)} is not known")
    return live


def is_live_subject(subject: Subject) -> bool:
    """True if the subject is a model in memory, which may have been trained since its load."""
    return subject.report.checkpoint.kind is CheckpointKind.MEMORY


def unknown_outside(subject: Subject) -> list[str]:
    """Gives the parameters outside the head that the scores may depend on and whose status is not known."""
    head = head_of(subject)
    own, beside = {item.name for item in head.tensors}, set(head.not_live)
    unknown = [item for item in subject.report.weights.parameters if item.status is ParameterStatus.UNKNOWN]
    return [item.name for item in unknown if item.in_base and item.name not in own | beside]


def classifier_of(subject: Subject) -> HeadParameter | None:
    """Gives the weight of the class scores: the matrix of the last stage that has one; None without parameters."""
    return classifier_weight(head_of(subject))


def reshaped_classes(subject: Subject) -> dict[str, int]:
    """Gives the head's parameters whose shapes agree on another class count in the checkpoint, with that count.

    The rule on the class count reports them. Empty where the task has no classes or the shapes name several counts.
    """
    model = subject.report.model
    if model.task in WITHOUT_CLASSES:
        return {}
    mismatched = (item for item in live_parameters(subject) if item.status is ParameterStatus.MISMATCHED)
    counts = {
        item.name: stored_classes(item.checkpoint_shape or (), item.shape, model.num_labels) for item in mismatched
    }
    found = {name: count for name, count in counts.items() if count is not None}
    return found if len(set(found.values())) == 1 else {}


def unless_repaired(subject: Subject, names: Iterable[str], otherwise: str) -> str:
    """Gives the remedy for parameters that aren't loaded: that of the checkpoint's state if it gives all of them."""
    repaired = subject.report.repaired
    if repaired is None:
        return otherwise
    lacking = {*repaired.weights.new, *(item.parameter for item in repaired.weights.mismatched)}
    given = not lacking.intersection(names)
    return f"The repair that {' and '.join(repaired.rules)} gives loads its weights." if given else otherwise


HOW_TO_GIVE_CODE = (
    "Give the code of the class that was saved: --model-class FILE.py:CLASS, or --trust-remote-code where config.json "
    "has an auto_map."
)
