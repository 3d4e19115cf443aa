"""The rules HS4xx, HS5xx and HS9xx on facts written by hand: dtypes, values, health, engines; a healthy checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headscope.checks.rules.rule import NotApplicable, NotKnown
from headscope.core.facts.built import ConfigFacts
from headscope.core.facts.health import HealthBasis, HealthVerdict
from headscope.core.facts.trial import HeadTrial
from headscope.core.source.health.judging import DECISIVE
from headscope.facts import Severity, WeightsFormat
from headscope.shared.serving.engine_facts import EngineEvidence, EngineHead
from tests.checks.rules.subjects import (
    BIAS,
    CLASSIFIER,
    DATA,
    DENSE,
    ERROR,
    HEALTHY,
    MISMATCHED,
    NEW,
    NOTE,
    OF_CHECK,
    SILENT,
    TRIALS,
    WARNING,
    checkpoint,
    findings,
    head,
    health,
    parameter,
    quantized,
    severities,
    subject,
    values,
)

ENGINE = EngineHead(
    "vllm", "vLLM", "0.33.0", True, True, "", "softmax", True, "use_activation=False", "first token", False, (),
    "as stored", "", EngineEvidence.CITED, "vLLM 0.33.0, models/bert.py:1", "",
)  # fmt: skip
NO_ACTIVATION: dict[str, Any] = {"activation": None, "same_activation": None}


@pytest.mark.parametrize("identifier", OF_CHECK)
def test_a_healthy_checkpoint_is_left_alone(identifier: str) -> None:
    assert severities(identifier, data=DATA, engine=ENGINE) == SILENT


@pytest.mark.parametrize(
    ("identifier", "changes", "found"),
    [
        ("HS901", {"same_head": False, "formula": "classifier(h[CLS])"}, ([WARNING], [ERROR])),
        ("HS901", {"is_constant": True, "reason": "One score under a softmax is always 1.0."}, ([WARNING], [ERROR])),
        ("HS902", {"activation": "none", "same_activation": False}, ([NOTE], [WARNING])),
        ("HS903", {"runs": False, "same_head": None, **NO_ACTIVATION}, ([WARNING], [ERROR])),
        ("HS904", {"reads_padding": True}, ([NOTE], [WARNING])),
        ("HS905", {"float32_becomes": "float16"}, ([NOTE], [WARNING])),
    ],
)
def test_what_an_engine_does_otherwise_is_found(
    identifier: str, changes: dict[str, Any], found: tuple[list[Severity], list[Severity]]
) -> None:
    assert severities(identifier, engine=replace(ENGINE, **changes)) == found


UNKNOWN_ENGINE = replace(ENGINE, runs=None, same_head=None, **NO_ACTIVATION, reason="not covered")


@pytest.mark.parametrize(
    ("identifier", "engine"),
    [
        *((f"HS90{number}", UNKNOWN_ENGINE) for number in range(1, 6)),
        ("HS901", replace(ENGINE, same_head=None)),
        ("HS902", replace(ENGINE, **NO_ACTIVATION)),
    ],
)
def test_what_the_facts_on_an_engine_do_not_say_is_not_known(identifier: str, engine: EngineHead) -> None:
    with pytest.raises(NotKnown):
        list(findings(identifier, subject(engine=engine)))


def test_number_formats_that_a_loss_dislikes() -> None:
    half = head(parameter(DENSE), parameter(CLASSIFIER, dtype="float16"))
    assert severities("HS402", head=half) == ([WARNING], [])
    assert findings("HS402", subject(head=half))[0].parameters == (CLASSIFIER,)
    packed = head(parameter(CLASSIFIER, dtype="int8"))
    assert severities("HS402", head=packed) == ([ERROR], [WARNING])
    assert severities("HS402", head=head(parameter(CLASSIFIER, dtype="float8_e4m3fn"))) == ([ERROR], [WARNING])
    assert severities("HS402", head=head(parameter(CLASSIFIER, dtype="int8", quantized="int8"))) == SILENT
    assert severities("HS402", head=head(parameter(CLASSIFIER, dtype="bfloat16"))) == SILENT


def test_code_in_the_repository_and_a_pickle_are_warnings() -> None:
    assert severities("HS403", config=ConfigFacts(has_auto_map=True)) == ([WARNING], [WARNING])
    assert severities("HS108", checkpoint=checkpoint(format=WeightsFormat.TORCH)) == ([WARNING], [WARNING])


def test_a_head_in_few_bits() -> None:
    packed = head(parameter(DENSE), parameter(CLASSIFIER, quantized="nf4"))
    assert severities("HS404", head=packed, model=quantized(head_quantized=True)) == ([ERROR], [WARNING])
    assert severities("HS404", head=packed) == SILENT
    assert severities("HS404", model=quantized()) == SILENT
    with pytest.raises(NotKnown, match="stored"):
        findings("HS404", subject(model=quantized(head_quantized=None)))
    new = head(parameter(DENSE), parameter(CLASSIFIER, NEW))
    assert severities("HS404", head=new, model=quantized(skips_head=False)) == ([ERROR], [WARNING])
    assert severities("HS404", head=new, model=quantized(skips_head=None)) == SILENT
    assert severities("HS404", head=new, model=quantized(skips_head=True)) == SILENT
    assert severities("HS404", head=new, model=quantized(skips_head=False, method="gptq")) == SILENT
    assert severities("HS404", model=quantized(skips_head=False)) == SILENT
    lost = head(parameter(CLASSIFIER, MISMATCHED))
    assert severities("HS404", head=lost, model=quantized(skips_head=False)) == ([ERROR], [WARNING])


def broken(trial: HeadTrial = HEALTHY, **changes: Any) -> tuple[list[Severity], list[Severity]]:
    return severities("HS501", **{"values": (values(CLASSIFIER),), "trial": trial, **changes})


def test_broken_numbers() -> None:
    assert broken(values=(values(CLASSIFIER, nan=1),)) == ([ERROR], [ERROR])
    assert broken(values=(values(BIAS, inf=1),)) == ([ERROR], [ERROR])
    assert broken(values=(values(CLASSIFIER, whole="int8"),)) == ([WARNING], [ERROR])
    assert broken(values=(values(CLASSIFIER, zeros=1000),)) == SILENT  # numbers decide: the trial says that it answers
    assert broken() == SILENT


@pytest.mark.parametrize(("trial", "expected"), TRIALS)
def test_a_head_that_was_tried_and_cannot_answer(trial: HeadTrial, expected: Any) -> None:
    assert broken(trial) == expected
    lost = (values(CLASSIFIER, nan=1),)  # one cause is told once: NaN makes the scores NaN
    assert len(findings("HS501", subject(values=lost, trial=trial))) == 1


def test_a_head_that_could_not_be_tried_is_not_determined_unless_its_numbers_show_a_fault() -> None:
    untried = HeadTrial(why_not="too large")
    with pytest.raises(NotKnown, match=": too large"):
        broken(untried)
    with pytest.raises(NotKnown, match="head path"):
        findings("HS501", subject(values=(values(CLASSIFIER),)))
    with pytest.raises(NotKnown, match="it is packed"):
        broken(HeadTrial(unread=("it is packed",)))
    zeros = (values(CLASSIFIER, zeros=1000),)
    assert broken(untried, values=zeros) == ([WARNING], [ERROR])
    for harmless in ((values(CLASSIFIER, zeros=999),), (values(BIAS, zeros=1000),)):
        with pytest.raises(NotKnown):
            broken(untried, values=harmless)


@pytest.mark.parametrize("verdict", HealthVerdict)
def test_only_a_fresh_classifier_looks_untrained(verdict: HealthVerdict) -> None:
    if verdict is HealthVerdict.NOT_DETERMINED:
        with pytest.raises(NotKnown, match="its bias is zero"):
            findings("HS502", subject(health=health(verdict, confidence=None)))
        return
    found = ([NOTE], [WARNING]) if verdict is HealthVerdict.FRESH else SILENT
    assert severities("HS502", health=health(verdict)) == found


def test_a_classifier_that_the_checkpoint_lacks_is_told_by_other_rules() -> None:
    assert severities("HS502", health=health(basis=HealthBasis.STATUS, confidence=1.0)) == SILENT
    assert severities("HS502", health=None) == SILENT
    with pytest.raises(NotApplicable, match="quantized"):
        unread = health(HealthVerdict.NOT_DETERMINED, basis=HealthBasis.NONE, reasons=("quantized",))
        findings("HS502", subject(health=unread))


def test_a_fresh_head_is_an_error_for_inference_if_the_evidence_is_decisive() -> None:
    assert severities("HS502", health=health(basis=HealthBasis.DRAW, confidence=0.999)) == ([NOTE], [ERROR])
    assert severities("HS502", health=health(confidence=DECISIVE)) == ([NOTE], [ERROR])
    assert severities("HS502", health=health(confidence=DECISIVE - 0.001)) == ([NOTE], [WARNING])
