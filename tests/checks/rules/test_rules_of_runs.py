"""The rules HS52x on runs written by hand, and what a run does to the rules that only foresee an effect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headscope.checks.rules import judge, select
from headscope.checks.rules.trial import looks_at_run, with_causes, without_unseen
from headscope.core.facts.built import ConfigFacts
from headscope.core.facts.trial import BatchCure, RaisedError, RunStep
from headscope.core.facts.verdict import Verdict
from headscope.facts import Finding, Gap, Pooling, PoolingKind, Severity
from tests.checks.rules.subjects import (
    ERROR,
    INFERENCE,
    INVERSE,
    NAMED,
    NOTE,
    RAN,
    RULES,
    SILENT,
    TRAINING,
    WARNING,
    findings,
    head,
    severities,
    subject,
)

INDEX_ERROR = "IndexError: index out of range in self"
AGAIN, BATCH, LOADING, PIPELINE = (
    RaisedError(step.value, "OSError: x", step=step)
    for step in (RunStep.AGAIN, RunStep.BATCH, RunStep.LOADING, RunStep.PIPELINE)
)
IMAGES = RaisedError("image", "OSError: x", 9)
LAST = head(pooling=Pooling(PoolingKind.LAST_TOKEN, (), "the last token", ()))
FIRST = head(pooling=Pooling(PoolingKind.FIRST_TOKEN, (), "the first token", ()))


@pytest.mark.parametrize(
    ("identifier", "run", "training", "inference"),
    [
        ("HS521", {"raised": (RaisedError("text", INDEX_ERROR, 14),), "failed": 14}, [ERROR], [ERROR]),
        ("HS521", {"raised": (RaisedError("pair", INDEX_ERROR, 2),), "failed": 2}, [WARNING], [WARNING]),
        ("HS521", {"raised": (BATCH,), "batch_error": BATCH.error}, [ERROR], [ERROR]),
        ("HS521", {"raised": (PIPELINE,)}, [ERROR], [ERROR]),
        ("HS521", {"raised": (AGAIN,)}, [ERROR], [ERROR]),
        ("HS521", {"raised": (AGAIN,), "library": "sentence-transformers"}, [ERROR], [ERROR]),
        ("HS521", {"raised": (BATCH,), "keeps_sizes": True}, [WARNING], [WARNING]),
        ("HS521", {"raised": (IMAGES, PIPELINE), "failed": 9, "keeps_sizes": True}, [ERROR], [ERROR]),
        ("HS522", {"not_finite": 1}, [ERROR], [ERROR]),
        ("HS522", {"not_finite": 14, "dtype": "float16"}, [ERROR], [ERROR]),
        ("HS523", {"all_alike": True}, [WARNING], [ERROR]),
        ("HS524", {"ignores_middle": True}, [WARNING], [ERROR]),
        ("HS524", {"ignores_middle": True, "all_alike": True}, [], []),
        ("HS524", {"image_spread": 0.099, "all_alike": True}, [WARNING], [WARNING]),
        ("HS524", {"image_spread": 0.1}, [], []),
        ("HS525", {"batch_difference": 0.5}, [WARNING], [WARNING]),
        ("HS525", {"batch_difference": 0.5, "batch_cure": "attention_mask"}, [ERROR], [ERROR]),
        ("HS525", {"batch_difference": 0.5, "batch_cure": "padding_side=left"}, [ERROR], [ERROR]),
        ("HS525", {"batch_difference": 1e-3}, [], []),
        ("HS526", {"repeats_equal": False}, [NOTE], [ERROR]),
        ("HS526", {"in_train_mode": True}, [], [WARNING]),
        ("HS527", {"unknown_tokens": 0.9}, [ERROR], [ERROR]),
        ("HS527", {"unknown_tokens": 0.89}, [], []),
        ("HS527", {"unknown_tokens": None}, [], []),
        ("HS528", {"fails_at_length": 600, "length_error": INDEX_ERROR}, [ERROR], [ERROR]),
        ("HS528", {"fails_at_length": 600, "not_finite": 14}, [], []),
    ],
)
def test_an_effect_is_a_finding(
    identifier: str, run: dict[str, Any], training: list[Severity], inference: list[Severity]
) -> None:
    assert severities(identifier, run=replace(RAN, **run)) == (training, inference)


@pytest.mark.parametrize(
    ("positions", "fails", "severity", "cure"),
    [
        (512, 513, ERROR, "model_max_length = 512"),
        (512, 512, ERROR, "the model was trained with"),
        (None, 513, ERROR, "the number of positions"),
    ],
)
def test_a_length_that_fails_has_its_number(positions: int | None, fails: int, severity: Severity, cure: str) -> None:
    built = replace(subject().built, positions=positions)
    run = replace(RAN, fails_at_length=fails, length_error=INDEX_ERROR)
    (found,) = findings("HS528", subject(INFERENCE, built=built, run=run))
    assert found.severity is severity and cure in found.remedy
    assert ("although the model has as many positions" in found.message) == (fails == positions)


@pytest.mark.parametrize(
    ("run", "is_named"),
    [
        ({"fails_at_length": 513, "length_error": INDEX_ERROR}, True),
        ({"fails_at_length": 513, "length_error": "ValueError: x"}, False),
        ({"length_error": INDEX_ERROR}, False),
    ],
)
def test_pairs_may_just_be_too_long(run: dict[str, Any], is_named: bool) -> None:
    ran = replace(RAN, raised=(RaisedError("pair", INDEX_ERROR, 2), PIPELINE), failed=2, **run)
    pairs, pipeline = findings("HS521", subject(INFERENCE, run=ran))
    assert pairs.severity is WARNING and ("HS528" in pairs.remedy) == is_named
    assert "pipeline" in pipeline.message
    texts = replace(RAN, raised=(RaisedError("text", INDEX_ERROR, 3),), failed=3, **run)
    assert "HS528" not in findings("HS521", subject(INFERENCE, run=texts))[0].remedy


EFFECTS = {
    "HS521": ("HS301", "HS302", "HS304", "HS306", "HS307", "HS310", "HS529"), "HS522": ("HS501", "HS504"),
    "HS523": ("HS501", "HS504", "HS527"), "HS524": ("HS504", "HS527"), "HS525": ("HS303", "HS304", "HS305", "HS306"),
    "HS528": ("HS308",),
}  # fmt: skip


@pytest.mark.parametrize(("effect", "cause"), [(effect, cause) for effect, some in EFFECTS.items() for cause in some])
def test_an_effect_names_each_of_its_causes(effect: str, cause: str) -> None:
    told, other = with_causes([foreseen(effect), foreseen(cause)], None)
    assert told.message == f"message Likely cause: {cause}." and other == foreseen(cause)
    assert with_causes([foreseen(effect)], None) == [foreseen(effect)]


def test_an_effect_has_the_cures_of_its_causes() -> None:
    effect = foreseen("HS525")
    first, second = (replace(foreseen(item), remedy=f"cure of {item}.") for item in ("HS303", "HS306"))
    found = with_causes([effect, first, second, replace(foreseen("HS305", NOTE), remedy="none")], RAN)[0]
    assert found.remedy == "cure of HS303. cure of HS306." and found.message.endswith("Likely cause: HS303 and HS306.")
    assert with_causes([effect, first], None)[0].remedy == "cure of HS303."
    own = replace(RAN, batch_difference=0.5, batch_cure=BatchCure.ATTENTION_MASK)
    assert with_causes([effect, first], own)[0].remedy == "remedy"
    after = "Cure HS306, and check again. If the scores still differ: remedy"
    assert with_causes([effect, second], own)[0].remedy == after
    assert with_causes([effect, replace(first, severity=NOTE)], RAN)[0] == effect


@pytest.mark.parametrize(("identifier", "effect"), [("HS523", "all_alike"), ("HS524", "ignores_middle")])
def test_a_causal_mask_before_a_head_on_the_first_token_is_named(identifier: str, effect: str) -> None:
    mask = {"config": ConfigFacts(3, NAMED, INVERSE, is_decoder=True)}
    cases: list[tuple[dict[str, Any], bool]] = [
        (mask | {"head": FIRST}, True), (mask | {"head": LAST}, False), (mask | {"head": None}, False),
        ({"head": FIRST}, False),
    ]  # fmt: skip
    for changes, is_named in cases:
        (found,) = findings(identifier, subject(INFERENCE, run=replace(RAN, **{effect: True}), **changes))
        assert ("is_decoder is true" in found.message) == is_named
        assert ("is_decoder" in found.message) == is_named == ("is_decoder" in found.remedy)


def test_a_head_on_the_first_token_wants_it_to_be_cls() -> None:
    assert severities("HS529", head=FIRST, run=replace(RAN, begins_with_cls=False)) == ([WARNING], [ERROR])
    virtual = replace(FIRST, virtual_tokens=8)  # the first position is none of the tokenizer's
    for other_head in (LAST, virtual):
        assert severities("HS529", head=other_head, run=replace(RAN, begins_with_cls=False)) == SILENT
    for other in (True, None):
        assert severities("HS529", head=FIRST, run=replace(RAN, begins_with_cls=other)) == SILENT


def test_the_message_quotes_the_error_and_says_on_what() -> None:
    texts = replace(RAN, raised=(RaisedError("text", INDEX_ERROR, 3),), failed=3)
    (found,) = findings("HS521", subject(INFERENCE, run=texts))
    assert "3 of 14 texts raise:" in found.message
    assert INDEX_ERROR in found.message
    loading = replace(RAN, scope=replace(RAN.scope, inputs=0), raised=(LOADING,))
    assert "loading it raises: OSError: x" in findings("HS521", subject(INFERENCE, run=loading))[0].message
    callers = {"": "Transformers' pipeline raises", "sentence-transformers": "sentence-transformers fails"}
    for library, caller in callers.items():
        (found,) = findings("HS521", subject(INFERENCE, run=replace(RAN, raised=(PIPELINE,), library=library)))
        assert caller in found.message


def test_half_precision_is_named_where_it_may_be_the_cause() -> None:
    for dtype in ("float16", "bfloat16", "float32"):
        (found,) = findings("HS522", subject(INFERENCE, run=replace(RAN, not_finite=2, dtype=dtype)))
        assert (f"in {dtype}" in found.message) == ("torch.float32" in found.remedy) == (dtype != "float32")
        assert "2 of 14 texts have scores" in found.message


def foreseen(identifier: str, severity: Severity = ERROR) -> Finding:
    return Finding(identifier, severity, "title", "message", "remedy", (), "")


@pytest.mark.parametrize(
    ("identifier", "effect"),
    [
        ("HS303", {"batch_difference": 0.5}), ("HS304", {"batch_error": "x"}), ("HS305", {"batch_difference": 0.5}),
        ("HS308", {"fails_at_length": 600}), ("HS310", {"failed": 14}),
        ("HS302", {"batch_error": "x"}), ("HS301", {"batch_error": "x"}),
    ],
)  # fmt: skip
def test_what_is_foreseen_counts_where_it_was_seen_or_not_looked_at(identifier: str, effect: dict[str, Any]) -> None:
    found = [foreseen(identifier)]
    assert without_unseen(found, RAN, None) == []
    assert without_unseen(found, replace(RAN, **effect), None) == found
    assert without_unseen(found, None, None) == found
    blind = replace(RAN, batch_difference=None, longest=None)
    assert (without_unseen(found, blind, None) == found) == (identifier != "HS310")
    assert without_unseen([foreseen(identifier, NOTE)], RAN, None) == [foreseen(identifier, NOTE)]
    assert without_unseen([foreseen("HS101")], RAN, None) == [foreseen("HS101")]


def test_a_run_that_tried_no_text_beyond_the_positions_says_nothing_about_length() -> None:
    tried = replace(RAN, longest=512)
    assert without_unseen([foreseen("HS308")], tried, 512) == [foreseen("HS308")]
    assert without_unseen([foreseen("HS308")], tried, 511) == []


def test_a_rule_that_no_run_concerns_needs_none() -> None:
    assert not looks_at_run([RULES["HS102"]])
    assert looks_at_run([RULES["HS102"], RULES["HS308"]]) and looks_at_run([RULES["HS523"]])


def test_a_run_that_was_wanted_and_is_lacking_is_not_determined() -> None:
    about = subject(INFERENCE, run=None, unknown=(Gap("run", "the model was not run: why"),))
    unread = judge(about, select(("HS52",)))
    assert unread.verdict is Verdict.NOT_DETERMINED
    assert {gap.reason for gap in unread.not_determined} == {"the model was not run: why"}
    result = judge(subject(TRAINING, run=None, run_reason="why"), select(("HS52",)))
    assert result.scope.run is None and result.scope.run_reason == "why"
