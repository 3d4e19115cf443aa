"""Which rules run, which findings are ignored, and which severities fail the check."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from fnmatch import fnmatchcase

from headscope.checks.rules.rule import Rule, every_rule
from headscope.core.facts import Finding, Severity
from headscope.errors import UsageError, did_you_mean


@dataclass(frozen=True, slots=True)
class Ignore:
    """A rule that is not to fail: why, until when, and for which models (a pattern with `*`)."""

    rule: str
    reason: str = ""
    until: date | None = None
    model: str = "*"

    def covers(self, finding: Finding, reference: str) -> bool:
        """True if this ignores a finding on a model."""
        return _is_name_of(self.rule, every_rule()[finding.id]) and fnmatchcase(reference, self.model)


@dataclass(frozen=True, slots=True)
class Selection:
    """Rules that a check runs. `baseline` holds the findings of an earlier run, which do not count again.

    `is_named`: somebody named the rules. Only then is a rule listed that asks for something that was not given.
    `expired` are ignores past their date: the findings that they covered count.
    """

    rules: tuple[Rule, ...]
    ignores: tuple[Ignore, ...] = ()
    fail_on: Severity = Severity.ERROR
    baseline: frozenset[tuple[str, str, tuple[str, ...]]] = field(default=frozenset())
    is_named: bool = False
    expired: tuple[Ignore, ...] = ()


def select(
    wanted: Iterable[str] = (),
    ignores: Iterable[Ignore] = (),
    fail_on: str = "error",
    *,
    command: str = "check",
    today: date | None = None,
    baseline: frozenset[tuple[str, str, tuple[str, ...]]] = frozenset(),
) -> Selection:
    """Builds the selection for rule ids or names or beginnings of ids (`HS3`); all rules where none is named.

    `command` asks only its own rules. Raises UsageError for unknown rules, for those of another command, and for
    contradictions.
    """
    names, given, now = tuple(wanted), tuple(ignores), today or date.today()
    for name in (*names, *(item.rule for item in given)):
        check_known(name)
    ignored = tuple(item for item in given if item.until is None or item.until >= now)
    # A rule may be selected and ignored for some models only.
    both = {name.upper() for name in names} & {item.rule.upper() for item in ignored if item.model == "*"}
    if both:
        raise UsageError(f"{', '.join(sorted(both))} is both selected and ignored", "leave out one of the two")
    meant = [rule for rule in every_rule().values() if not names or any(_is_name_of(name, rule) for name in names)]
    chosen = tuple(rule for rule in meant if rule.command == command)
    if not chosen:
        others = sorted({rule.command for rule in meant})
        raise UsageError(f"{command} has no rule {', '.join(names)}", f"headscope {' and '.join(others)} runs it")
    expired = tuple(item for item in given if item not in ignored)
    severities = [level.value for level in Severity]
    if str(fail_on).lower() not in severities:
        raise UsageError(f"no such severity: {fail_on}", f"severities: {', '.join(severities)}")
    severity = Severity(str(fail_on).lower())
    return Selection(chosen, ignored, severity, baseline, is_named=bool(names), expired=expired)


def named_in(command: str, wanted: Iterable[str]) -> tuple[str, ...]:
    """Filters rule ids, names or beginnings of ids for those that name a rule of a command."""
    own = [rule for rule in every_rule().values() if rule.command == command]
    return tuple(name for name in wanted if any(_is_name_of(name, rule) for rule in own))


def _is_name_of(name: str, rule: Rule) -> bool:
    """True if `name` is the rule's name or its id, or a beginning of its id (`HS3`), in any case."""
    return rule.name == name.lower() or bool(re.fullmatch(r"HS\d*", name.upper()) and rule.id.startswith(name.upper()))


def check_known(name: str) -> None:
    """Raises UsageError for what names no rule."""
    rules = every_rule()
    if any(_is_name_of(name, rule) for rule in rules.values()):
        return
    # Ids are upper case and names lower case, so the name is compared in both spellings.
    known = [*rules, *(rule.name for rule in rules.values())]
    lower = did_you_mean(name.lower(), known, f"rules: {', '.join(rules)}")
    raise UsageError(f"no such rule: {name}", did_you_mean(name.upper(), known, lower))
