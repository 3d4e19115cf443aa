"""How findings, gaps and ignores become a verdict, and which rules a selection names."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from headscope.checks import rules
from headscope.checks.facts import BaseNumbers, CheckResult, Subject
from headscope.checks.rules import judge, rules_on_reports
from headscope.checks.rules.judgment import fingerprint, unused_ignores
from headscope.checks.rules.rule import OPTIONAL, rule
from headscope.checks.rules.selection import Ignore, Selection, select
from headscope.core.facts.built import BuiltFacts
from headscope.core.facts.counting import few_of
from headscope.core.facts.health import HealthBasis, HealthVerdict
from headscope.core.facts.stored.checkpoint import ScoreHead
from headscope.core.facts.verdict import Verdict
from headscope.errors import UsageError
from headscope.facts import Gap, Mismatch, PaddingEffect, ParameterOrigin, Profile, WeightsFormat
from tests.checks.rules.subjects import (
    ALL_NEW,
    BIAS,
    CLASSIFIER,
    DATA,
    ERROR,
    INFERENCE,
    NEW,
    OF_CHECK,
    RULES,
    TRAINING,
    TWO,
    WARNING,
    checkpoint,
    findings,
    head,
    health,
    measured,
    model,
    origin,
    parameter,
    subject,
    weights,
)

TWO_ROWS = (Mismatch(CLASSIFIER, (2, 8), (3, 8)),)
RESHAPED: dict[str, Any] = {"head": head(TWO), "weights": weights(mismatched=TWO_ROWS)}
OTHER_HEAD: dict[str, Any] = {
    "head": ALL_NEW,
    "weights": weights(new=(CLASSIFIER, BIAS), unused=("v_head.weight",)),
    "checkpoint": checkpoint(score_heads=(ScoreHead("v_head", 1, "v_head.weight", ("v_head.weight",)),)),
}
LOADED_BASE = origin("base.x")


def test_a_finding_carries_its_rules_id_title_and_page() -> None:
    (found,) = findings("HS302", subject(built=BuiltFacts(3, 100, 100)))
    assert (found.id, found.severity, found.title) == ("HS302", ERROR, RULES["HS302"].title)
    assert (found.parameters, found.url, found.code) == ((), "docs/rules.md#hs302", "")
    assert "100 tokens" in found.message and "resize_token_embeddings" in found.remedy


def test_an_id_is_given_once() -> None:
    with pytest.raises(ValueError, match="HS101"):
        rule("HS101", "other", "Other")(lambda this, subject: ())


def test_names_are_listed_up_to_four() -> None:
    assert few_of(["a"]) == "a"
    assert few_of(list("abcd")) == "a, b, c, d"
    assert few_of(list("abcde")) == "a, b, c, d and 1 more"
    assert few_of([str(number) for number in range(2004)]) == "0, 1, 2, 3 and 2,000 more"


def result(about: Subject, **options: Any) -> CheckResult:
    return judge(about, select(**options))


def test_a_verdict_is_failed_before_not_determined_before_passed() -> None:
    assert result(subject()).verdict is Verdict.PASSED
    assert result(subject(INFERENCE, head=ALL_NEW)).verdict is Verdict.FAILED
    open_one = (Gap("head path", "guessed"),)
    assert result(subject(not_determined=open_one)).verdict is Verdict.NOT_DETERMINED
    assert result(subject(INFERENCE, head=ALL_NEW, not_determined=open_one)).verdict is Verdict.FAILED
    assert result(subject(not_determined=open_one)).not_determined == open_one
    assert result(subject(run=None), wanted=("HS52",)).verdict is Verdict.NOT_DETERMINED  # nothing was looked at
    assert result(subject(head=ALL_NEW)).verdict is Verdict.PASSED
    assert result(subject(head=ALL_NEW), fail_on="note").verdict is Verdict.FAILED
    assert result(subject(model=model(labels_are_placeholders=True)), fail_on="warning").verdict is Verdict.PASSED
    pickled = subject(checkpoint=checkpoint(format=WeightsFormat.TORCH))
    assert result(pickled).verdict is Verdict.PASSED
    assert result(pickled, fail_on="warning").verdict is Verdict.FAILED


OF_TOKENIZERS = tuple(
    Gap(name, "cannot be read", name[:5])
    for name in (
        "HS303 padding-side", "HS306 token-ids", "HS307 tokens-beyond-embedding", "HS308 text-length",
        "HS309 tokenizer-files", "HS310 end-token-not-added",
    )
)  # fmt: skip


def test_a_rule_that_could_not_be_decided_counts_if_it_could_fail_the_check() -> None:
    unread = (Gap("tokenizer", "cannot be read"),)
    found = result(subject(unknown=unread))
    assert found.verdict is Verdict.NOT_DETERMINED
    assert found.not_determined == OF_TOKENIZERS
    without = result(subject(inapplicable=unread, data=DATA))
    assert without.verdict is Verdict.PASSED
    assert without.not_applicable == OF_TOKENIZERS
    both = result(subject(inapplicable=unread, unknown=unread))
    assert both.verdict is Verdict.NOT_DETERMINED  # what could not be read is not skipped
    assert (both.not_determined, both.not_applicable) == (found.not_determined, ())
    open_padding = measured(PaddingEffect("right", None, reason="it failed"))
    assert result(subject(head=open_padding)).verdict is Verdict.PASSED
    assert result(subject(head=open_padding), fail_on="warning").verdict is Verdict.NOT_DETERMINED
    gap = Gap("HS305 padding-changes-scores", "padding on the right could not be measured: it failed", "HS305")
    assert result(subject(head=open_padding)).not_determined == (gap,)
    several = (Gap("values", "unread"),)
    assert result(subject(unknown=several), fail_on="error").verdict is Verdict.NOT_DETERMINED
    assert result(subject(unknown=several), wanted=("HS502",)).verdict is Verdict.PASSED  # a note at most
    assert result(subject(INFERENCE, unknown=several), wanted=("HS502",)).verdict is Verdict.NOT_DETERMINED


def test_a_gap_is_as_grave_as_what_it_may_hide() -> None:
    open_health = subject(INFERENCE, health=health(HealthVerdict.NOT_DETERMINED, confidence=None))
    found = result(open_health)
    assert (found.verdict, found.not_determined[0].topic) == (Verdict.PASSED, "HS502 looks-untrained")
    assert result(open_health, fail_on="warning").verdict is Verdict.NOT_DETERMINED
    before = replace(open_health, profile=TRAINING)
    assert result(before, fail_on="warning").verdict is Verdict.PASSED
    assert result(before, fail_on="note").verdict is Verdict.NOT_DETERMINED
    unread = subject(INFERENCE, health=health(HealthVerdict.NOT_DETERMINED, basis=HealthBasis.UNREAD, confidence=None))
    assert result(unread, fail_on="warning").verdict is Verdict.NOT_DETERMINED
    no_classifier = subject(
        INFERENCE, health=health(HealthVerdict.NOT_DETERMINED, basis=HealthBasis.NONE, confidence=None)
    )
    skipped = result(no_classifier, fail_on="note")
    assert (skipped.verdict, skipped.not_applicable[0].topic) == (Verdict.PASSED, "HS502 looks-untrained")


def test_the_gravest_findings_come_first() -> None:
    about = subject(
        INFERENCE, head=ALL_NEW, model=model(labels_are_placeholders=True),
        checkpoint=checkpoint(format=WeightsFormat.TORCH), built=BuiltFacts(3, 100, 100), run=None,
    )  # fmt: skip
    assert [item.id for item in result(about).findings] == ["HS102", "HS302", "HS108", "HS202"]


def test_a_result_says_what_was_asked_of_what() -> None:
    found = result(subject(INFERENCE, checkpoint=checkpoint(notices=("a notice",))), wanted=("HS30",))
    assert found.reference == "org/model"
    assert found.profile is INFERENCE
    assert found.rules == tuple(f"HS30{number}" for number in range(1, 10))
    assert found.notices == ("a notice",)
    assert found.command == "check"


def test_rules_on_what_was_not_given_are_left_out_unless_they_are_named() -> None:
    unpredicted = replace(DATA, predictions=None)

    def needs(about: Subject) -> set[str]:
        return {need for identifier in result(about).rules for need in RULES[identifier].needs} & OPTIONAL

    assert needs(subject()) == set()
    assert needs(subject(data=unpredicted)) == {"data"}
    assert needs(subject(data=DATA)) == {"data", "predictions"}
    (skipped,) = result(subject(), wanted=("HS001",)).not_applicable
    assert skipped.reason == "no labeled data was given (--data)"
    (skipped,) = result(subject(data=unpredicted), wanted=("HS009",)).not_applicable
    assert skipped.reason == "predictions need --predict"
    (skipped,) = result(subject(), wanted=("HS901",)).not_applicable
    assert skipped.reason == "no engine was named (--engine)"
    without = result(subject(data=unpredicted, inapplicable=(Gap("predictions", "scores are NaN"),)))
    assert {gap.reason for gap in without.not_applicable} == {"scores are NaN"}


@pytest.mark.parametrize(
    ("profile", "changes", "reason"),
    [
        (INFERENCE, {}, "the checkpoint gives its head"),
        (TRAINING, {"head": ALL_NEW}, "the checkpoint doesn't give its head"),
        (TRAINING, RESHAPED, "the checkpoint has its head in another shape"),
        (
            TRAINING,
            {"head": head(TWO, parameter(BIAS, NEW)), "weights": weights(new=(BIAS,), mismatched=TWO_ROWS)},
            "the checkpoint doesn't give its head",
        ),
        (INFERENCE, OTHER_HEAD, "the checkpoint holds its own head"),
    ],
)
def test_a_profile_that_nobody_named_has_its_reason(profile: Profile, changes: dict[str, Any], reason: str) -> None:
    assert result(subject(profile, is_chosen=True, **changes)).profile_reason == reason
    assert result(subject(profile, **changes)).profile_reason == ""


@pytest.mark.parametrize(
    ("base", "changes", "unread"),
    [
        (LOADED_BASE, {}, ("the values of the head", "the values of the base model")),
        (LOADED_BASE, {"values": (), "numbers": BaseNumbers(1)}, ()),
        (replace(LOADED_BASE, quantized="4 bits"), {"values": (), "numbers": BaseNumbers(1)}, ("quantized numbers",)),
        (replace(LOADED_BASE, quantized="4 bits"), {"values": ()}, ("the values of the base model",)),
        (replace(LOADED_BASE, quantized="4 bits", in_base=False), {"values": (), "numbers": BaseNumbers(1)}, ()),
    ],
)
def test_a_result_names_the_numbers_that_were_not_read(
    base: ParameterOrigin, changes: dict[str, Any], unread: tuple[str, ...]
) -> None:
    found = result(subject(INFERENCE, weights=weights(parameters=(base,)), **changes))
    assert found.not_read == unread
    assert found.scope.values == tuple(
        part for part, key in (("head", "values"), ("base", "numbers")) if key in changes
    )


def test_an_ignored_finding_does_not_count_and_says_why() -> None:
    about = subject(INFERENCE, head=ALL_NEW)
    ignores = (Ignore("HS102", "known"), Ignore("HS108"))
    found = result(about, ignores=ignores)
    assert found.verdict is Verdict.PASSED
    assert [(item.finding.id, item.reason) for item in found.ignored] == [("HS102", "known")]
    assert unused_ignores(select(ignores=ignores), (found,)) == (Ignore("HS108"),)
    assert result(about, ignores=(Ignore("head-new"),)).ignored[0].reason == "ignored"
    assert result(about, ignores=(Ignore("HS102", model="org/*"),)).verdict is Verdict.PASSED
    assert result(about, ignores=(Ignore("HS102", model="other/*"),)).verdict is Verdict.FAILED
    found = result(about).findings[0]
    print_of = fingerprint("org/model", found)
    assert print_of == ("org/model", "HS102", (CLASSIFIER, BIAS))
    old = result(about, baseline=frozenset({print_of}))
    assert (old.verdict, "baseline" in old.ignored[0].reason) == (Verdict.PASSED, True)
    assert result(about, baseline=frozenset({("other", *print_of[1:])})).verdict is Verdict.FAILED
    first = result(about, ignores=(Ignore("HS102", "known"),), baseline=frozenset({print_of}))
    assert first.ignored[0].reason == "known"


def ids(selection: Selection) -> list[str]:
    return [item.id for item in selection.rules]


def test_rules_are_chosen_by_id_beginning_or_name() -> None:
    assert ids(select()) == OF_CHECK
    assert ids(select(command="verify")) == sorted(name for name, rule in RULES.items() if rule.command == "verify")
    assert ids(select(["HS102"])) == ["HS102"]
    assert ids(select(["hs5"])) == ["HS501", "HS502", "HS504", *(f"HS{number}" for number in range(521, 530))]
    assert ids(select(["Head-New", "HS108"])) == ["HS102", "HS108"]
    assert ids(select(["HS"])) == OF_CHECK
    assert select(fail_on="Warning").fail_on is WARNING


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"wanted": ["HS999"]}, "no such rule: HS999", "did you mean HS"),
        ({"wanted": ["head-knew"]}, "no such rule: head-knew", "did you mean head-new?"),
        ({"wanted": ["qqqqqq"]}, "no such rule: qqqqqq", "rules: HS001, HS002, HS003"),
        ({"wanted": ["H"]}, "no such rule: H", ""),
        ({"wanted": [""]}, "no such rule: ", ""),
        ({"wanted": ["XHS1"]}, "no such rule: XHS1", ""),
        ({"ignores": [Ignore("HS77")]}, "no such rule: HS77", ""),
        ({"fail_on": "fatal"}, "no such severity: fatal", "severities: error, warning, note"),
        ({"wanted": ["hs102"], "ignores": [Ignore("HS102")]}, "HS102 is both selected and ignored", ""),
    ],
)
def test_a_selection_that_cannot_be_meant_is_refused(arguments: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        select(**arguments, today=date(2026, 1, 2))
    assert raised.value.message == message
    assert hint in (raised.value.hint or "")


def test_ignores_hold_until_their_date_and_for_their_models() -> None:
    last_day = Ignore("HS102", until=date(2026, 1, 2))
    assert select(ignores=[last_day], today=date(2026, 1, 2)).ignores == (last_day,)
    ended = select(ignores=[last_day], today=date(2026, 1, 3))
    assert (ended.ignores, ended.expired) == ((), (last_day,))
    for_one = Ignore("HS102", model="org/*")
    assert select(["HS102"], [for_one]).ignores == (for_one,)
    assert select(["HS103"], [Ignore("HS102")]).ignores == (Ignore("HS102"),)


def test_every_file_of_rules_is_imported_and_a_report_is_asked_all_that_it_can_answer() -> None:
    folder = Path(rules.__file__).parent
    declaring = re.compile(r"^@(rule|\w+_rule)\(", re.MULTILINE)
    files = [path.relative_to(folder) for path in folder.rglob("*.py") if declaring.search(path.read_text("utf-8"))]
    found = {item.judge.__module__.removeprefix(f"{rules.__name__}.") for item in RULES.values()}
    assert found == {".".join(path.with_suffix("").parts) for path in files}
    of_check = {name for name, item in RULES.items() if item.command == "check" and OPTIONAL.isdisjoint(item.needs)}
    assert {item.id for item in rules_on_reports()} == of_check
