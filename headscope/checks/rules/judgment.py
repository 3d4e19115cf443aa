"""From a subject and a selection to a verdict."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from headscope.checks.facts import CheckResult, CheckScope, Subject
from headscope.checks.rules.rule import OPTIONAL, NotApplicable, NotKnown, Rule
from headscope.checks.rules.selection import Ignore, Selection
from headscope.checks.rules.trial import with_causes, without_unseen
from headscope.core.facts import Finding, Gap, Profile, Severity
from headscope.core.facts.environment import tool_version
from headscope.core.facts.report import find_missing, holds_other_head
from headscope.core.facts.stored.states import with_model
from headscope.core.facts.verdict import GRAVITY, Ignored, Verdict


@dataclass(slots=True)
class _RuleOutcome:
    """Findings and gaps of all rules, not yet weighed. `grave`: a gap could hide a finding that fails the check."""

    findings: list[Finding] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    grave: bool = False
    inapplicable: list[Gap] = field(default_factory=list)


def judge(subject: Subject, selection: Selection) -> CheckResult:
    """Runs the selected rules on a subject and weighs what they find."""
    reference = subject.report.checkpoint.reference
    selection = _drop_unrequested_rules(subject, selection)
    gathered = _run_rules(subject, selection)
    # A check whose rules all had nothing to look at proves nothing, so it must not pass.
    is_idle = bool(selection.rules) and len(gathered.inapplicable) == len(selection.rules)
    is_open = bool(subject.report.not_determined) or gathered.grave or is_idle
    parts_with_values = (("head", subject.values), ("base", subject.numbers))
    verdict, findings, ignored = weigh(gathered.findings, selection, reference, is_open=is_open)
    return CheckResult(
        tool_version=tool_version(),
        command="check",
        reference=reference,
        profile=subject.profile,
        verdict=verdict,
        findings=findings,
        ignored=ignored,
        not_determined=(*subject.report.not_determined, *gathered.gaps),
        not_applicable=tuple(gathered.inapplicable),
        rules=tuple(rule.id for rule in selection.rules),
        not_read=_unread_numbers(subject),
        notices=(*subject.report.checkpoint.notices, *_expired_notices(selection, findings, reference)),
        report=subject.report,
        data=subject.data,
        profile_reason=_reason_of_profile(subject) if subject.is_chosen else "",
        scope=CheckScope(
            subject.run.scope if subject.run else None,
            subject.run_reason,
            tuple(name for name, values in parts_with_values if values is not None),
        ),
        trial=subject.run,
    )


def _expired_notices(selection: Selection, findings: Iterable[Finding], reference: str) -> Iterator[str]:
    """Gives a sentence for each ignore past its date that covered one of the findings, which now counts."""
    for item in selection.expired:
        if any(item.covers(finding, reference) for finding in findings):
            why = f" ({item.reason})" if item.reason else ""
            yield (
                f"the ignore of {item.rule}{why} ended on {item.until}: review the finding, then remove the ignore or "
                "set a later date"
            )


def _reason_of_profile(subject: Subject) -> str:
    """Says why headscope chose the profile."""
    if subject.profile is Profile.TRAINING:
        reshaped, lacking = subject.report.weights.mismatched, find_missing(subject.report).head
        is_reshaped = lacking and {*lacking}.issubset(item.parameter for item in reshaped)
        return "the checkpoint has its head in another shape" if is_reshaped else "the checkpoint doesn't give its head"
    gives = "holds its own head" if holds_other_head(subject.report) else "gives its head"
    return f"the checkpoint {gives}"


def _unread_numbers(subject: Subject) -> tuple[str, ...]:
    """Names the numbers that were not read: the verdict says nothing about them."""
    packed = any(item.quantized is not None for item in subject.report.weights.parameters if item.in_base)
    read = {"the values of the head": subject.values, "the values of the base model": subject.numbers}
    unread = tuple(name for name, found in read.items() if found is None)
    # Packed values of the base model are left out even if its other values are read.
    return (*unread, "quantized numbers") if packed and subject.numbers is not None else unread


def unused_ignores(selection: Selection, results: tuple[CheckResult, ...]) -> tuple[Ignore, ...]:
    """Gives the ignores that cover no finding of any result, so that they can be removed."""
    found = [
        (finding, result.reference)
        for result in results
        for finding in (*result.findings, *(item.finding for item in result.ignored))
    ]
    return tuple(
        ignore
        for ignore in (*selection.ignores, *selection.expired)
        if not any(ignore.covers(finding, reference) for finding, reference in found)
    )


def fingerprint(reference: str, finding: Finding) -> tuple[str, str, tuple[str, ...]]:
    """Identifies a finding across runs, for a baseline: model, rule and parameters, not the words of its message."""
    return reference, finding.id, finding.parameters


def _drop_unrequested_rules(subject: Subject, selection: Selection) -> Selection:
    """Drops rules on labeled data, predictions and engines that were not given, unless the user named the rules."""
    given = {gap.topic for gap in (*subject.unknown, *subject.inapplicable)}
    if subject.data is not None:
        given |= {"data"} | ({"predictions"} if subject.data.predictions is not None else set())
    given |= {"engine"} if subject.engine is not None else set()
    if selection.is_named:
        return selection
    kept = (rule for rule in selection.rules if given.issuperset(OPTIONAL.intersection(rule.needs)))
    return replace(selection, rules=tuple(kept))


def _run_rules(subject: Subject, selection: Selection) -> _RuleOutcome:
    gathered = _RuleOutcome()
    unknown = {gap.topic: gap.reason for gap in subject.unknown}
    without = {gap.topic: gap.reason for gap in subject.inapplicable}
    if subject.data is None:
        without.setdefault("data", "no labeled data was given (--data)")
    elif subject.data.predictions is None:
        without.setdefault("predictions", "predictions need --predict")
    if subject.engine is None:
        without.setdefault("engine", "no engine was named (--engine)")
    if subject.run is None:
        without.setdefault("run", "the model was not run")
    # A fact that could not be read may hide a finding; one that isn't there can't. So unknown comes first.
    without = {topic: reason for topic, reason in without.items() if topic not in unknown}
    for rule in selection.rules:
        lacking = next((name for name in rule.needs if name in without), None)
        unread = next((name for name in rule.needs if name in unknown), None)
        if lacking is not None:
            gathered.inapplicable.append(rule.gap(without[lacking]))
        elif unread is not None:
            _add_gap(gathered, rule, unknown[unread], _gravest_severity(rule, subject), selection)
        else:
            try:
                gathered.findings += rule.judge(rule, subject)
            except NotKnown as gap:
                _add_gap(
                    gathered, rule, str(gap), (gap.hides,) if gap.hides else _gravest_severity(rule, subject), selection
                )
            except NotApplicable as gap:
                gathered.inapplicable.append(rule.gap(str(gap)))
    seen = without_unseen(gathered.findings, subject.run, subject.built.positions)
    gathered.findings = [with_folder(finding, subject.folder) for finding in with_causes(seen, subject.run)]
    return gathered


def with_folder(finding: Finding, folder: str) -> Finding:
    """Names the checkpoint in the commands of the remedy, so that they can be copied."""
    return replace(finding, remedy=with_model(finding.remedy, folder))


def _gravest_severity(rule: Rule, subject: Subject) -> tuple[Severity, ...]:
    """Gives the gravest severity that a rule may find for the profile; none where it finds nothing."""
    return rule.severities.of(subject.profile)[:1]


def _add_gap(
    gathered: _RuleOutcome, rule: Rule, reason: str, hidden: tuple[Severity, ...], selection: Selection
) -> None:
    gathered.gaps.append(rule.gap(reason))
    gathered.grave |= any(GRAVITY[item] >= GRAVITY[selection.fail_on] for item in hidden)


def weigh(
    findings: list[Finding], selection: Selection, reference: str, *, is_open: bool
) -> tuple[Verdict, tuple[Finding, ...], tuple[Ignored, ...]]:
    """Weighs findings: gives the verdict, the findings that count, the gravest first, and those that are ignored.

    Failed before not determined, and passed only if nothing stayed open.
    """
    counted, ignored = [], []
    for finding in findings:
        reason = next(_ignore_reasons(finding, selection, reference), None)
        if reason is None:
            counted.append(finding)
        else:
            ignored.append(Ignored(finding, reason))
    is_failing = any(GRAVITY[item.severity] >= GRAVITY[selection.fail_on] for item in counted)
    verdict = Verdict.FAILED if is_failing else Verdict.NOT_DETERMINED if is_open else Verdict.PASSED
    return verdict, tuple(sorted(counted, key=lambda item: (-GRAVITY[item.severity], item.id))), tuple(ignored)


def _ignore_reasons(finding: Finding, selection: Selection, reference: str) -> Iterator[str]:
    """Gives each reason for which a finding does not count."""
    for item in selection.ignores:
        if item.covers(finding, reference):
            yield item.reason or "ignored"
    if fingerprint(reference, finding) in selection.baseline:
        yield "in the baseline"
