"""Every rule on facts written by hand: what it finds, how grave it is for either profile, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from math import prod
from pathlib import Path
from typing import Any

import pytest

from headscope.checks import RULES, judge
from headscope.checks.health import DECISIVE
from headscope.checks.judgment import fingerprint, unused_ignores
from headscope.checks.rule import NotApplicable, NotKnown, classifier_of, rule
from headscope.checks.selection import Ignore, Selection, select
from headscope.errors import UsageError
from headscope.facts import (
    AdapterFacts,
    AdapterFault,
    AdapterFaultKind,
    CheckpointFacts,
    CheckpointKind,
    CheckpointState,
    Finding,
    Gap,
    Head,
    HeadParameter,
    Mismatch,
    ModelFacts,
    PaddingEffect,
    ParameterCounts,
    ParameterOrigin,
    ParameterStatus,
    Pooling,
    PoolingKind,
    Profile,
    Quantization,
    Repair,
    Repaired,
    Report,
    Severity,
    Stage,
    StateKind,
    Task,
    TensorHeader,
    TensorKind,
    UnusedGroup,
    UnusedModule,
    Verification,
    WeightDiff,
    WeightsFormat,
)
from headscope.facts.counting import few_of
from headscope.facts.results.check import (
    BuiltFacts,
    CheckResult,
    ConfigFacts,
    HeadTrial,
    LiveFacts,
    Subject,
    TensorValues,
    Verdict,
)
from headscope.facts.results.engines import EngineEvidence, EngineHead
from headscope.facts.results.health import HeadHealth, HealthBasis, HealthVerdict
from headscope.facts.results.labeled import DataClass, DataFacts, Fit, LabelKind, Order, Predictions
from headscope.facts.stored.tokenizer import AffectedTexts, IdEffect, TokenId, TokenizerFacts
from tests.reports import ENVIRONMENT

LOADED, NEW, MISMATCHED = ParameterStatus.LOADED, ParameterStatus.NEW, ParameterStatus.MISMATCHED
IGNORED, UNKNOWN, TIED = ParameterStatus.IGNORED, ParameterStatus.UNKNOWN, ParameterStatus.TIED
TRAINING, INFERENCE = Profile.TRAINING, Profile.INFERENCE
ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE
NAMED = (("0", "no"), ("1", "maybe"), ("2", "yes"))
INVERSE = (("no", "0"), ("maybe", "1"), ("yes", "2"))

DENSE, CLASSIFIER, BIAS = "pooler.dense.weight", "classifier.weight", "classifier.bias"
SHAPES = {DENSE: (8, 8), CLASSIFIER: (3, 8), BIAS: (3,)}


def parameter(name: str, status: ParameterStatus = LOADED, **changes: Any) -> HeadParameter:
    shape = changes.pop("shape", SHAPES.get(name, (8,)))
    made = HeadParameter(name, shape, "float32", prod(shape), status, True, (name,))
    return replace(made, **changes)


def stage(operation: str, *names: str) -> Stage:
    return Stage(0, operation, "", "Linear", False, (), ("batch", 3), names, "", 1)


def head(*parameters: HeadParameter, kind: PoolingKind = PoolingKind.FIRST_TOKEN, **changes: Any) -> Head:
    given = parameters or (parameter(DENSE), parameter(CLASSIFIER), parameter(BIAS))
    stages = (stage("select"), stage("linear", DENSE), stage("linear", CLASSIFIER, BIAS), stage("alias"))
    made = Head(("pooler", "classifier"), Pooling(kind, (), "", ()), stages, given, "")
    return replace(made, **changes)


def model(**changes: Any) -> ModelFacts:
    made = ModelFacts("Some", Task.SEQUENCE_CLASSIFICATION, 3, ("no", "maybe", "yes"), False, None, "CrossEntropyLoss",
                      "softmax", ParameterCounts(100, 60, 40, 40), "float32")  # fmt: skip
    return replace(made, **changes)


def origin(name: str, in_base: bool = True, **changes: Any) -> ParameterOrigin:
    return replace(ParameterOrigin(name, (8,), "float32", 8, LOADED, (name,), in_base), **changes)


def weights(**changes: Any) -> WeightDiff:
    return replace(WeightDiff(3, (), (), (), (), ()), **changes)


def checkpoint(**changes: Any) -> CheckpointFacts:
    made = CheckpointFacts("org/model", CheckpointKind.LOCAL, None, None, WeightsFormat.SAFETENSORS,
                           ("model.safetensors",), 3, 1, 2, ("SomeModel",), "some")  # fmt: skip
    return replace(made, **changes)


def subject(profile: Profile = TRAINING, **changes: Any) -> Subject:
    """A healthy checkpoint with changes: those named like parts of a report go there, others into the subject."""
    parts: dict[str, Any] = {"checkpoint": checkpoint(), "model": model(), "weights": weights(), "head": head()}
    parts |= {name: changes.pop(name) for name in (*parts, "adapter", "not_determined") if name in changes}
    report = Report("0.1.0", "check", ENVIRONMENT, **parts)
    config = changes.pop("config", ConfigFacts(3, NAMED, INVERSE))
    return Subject(report, profile, config, changes.pop("built", BuiltFacts(3, 100, 0, (2,))), **changes)


def findings(identifier: str, about: Subject) -> list[Finding]:
    """What a rule finds; whatever it is, the table of severities declares it for the profile."""
    found = list(RULES[identifier].judge(RULES[identifier], about))
    if RULES[identifier].command == "check":
        assert {item.severity for item in found} <= set(RULES[identifier].severities.of(about.profile))
    return found


def severities(identifier: str, **changes: Any) -> tuple[list[Severity], list[Severity]]:
    """What a rule finds for training and for inference."""
    both = (findings(identifier, subject(profile, **changes)) for profile in (TRAINING, INFERENCE))
    one, other = ([item.severity for item in found] for found in both)
    return one, other


OF_CHECK = sorted(identifier for identifier, rule in RULES.items() if rule.command == "check")
SILENT: tuple[list[Severity], list[Severity]] = ([], [])


DATA = DataFacts(
    "rows.parquet", "parquet", None, 30, ("label",), ("text",), LabelKind.INTEGERS,
    tuple(DataClass(str(number), 10, number, Fit.ID) for number in range(3)), ("no", "maybe", "yes"),
    predictions=Predictions(30, "cpu", Order.SAME),
)  # fmt: skip


ENGINE = EngineHead(
    "vllm", "vLLM", "0.33.0", True, True, "", "softmax", True, "use_activation=False", "first token", False, (),
    "as stored", "", EngineEvidence.CITED, "vLLM 0.33.0, models/bert.py:1", "",
)  # fmt: skip


@pytest.mark.parametrize("identifier", OF_CHECK)
def test_a_healthy_checkpoint_is_left_alone(identifier: str) -> None:
    assert severities(identifier, data=DATA, engine=ENGINE) == SILENT


@pytest.mark.parametrize(
    ("identifier", "changes", "found"),
    [
        ("HS901", {"same_head": False, "formula": "classifier(h[CLS])"}, ([WARNING], [ERROR])),
        ("HS902", {"activation": "none", "same_activation": False}, ([NOTE], [WARNING])),
        (
            "HS903",
            {"runs": False, "same_head": None, "activation": None, "same_activation": None},
            ([WARNING], [ERROR]),
        ),
        ("HS904", {"reads_padding": True}, ([NOTE], [WARNING])),
        ("HS905", {"float32_becomes": "float16"}, ([NOTE], [WARNING])),
    ],
)
def test_what_an_engine_does_otherwise_is_found(
    identifier: str, changes: dict[str, Any], found: tuple[list[Severity], list[Severity]]
) -> None:
    assert severities(identifier, engine=replace(ENGINE, **changes)) == found


UNKNOWN_ENGINE = replace(ENGINE, runs=None, same_head=None, activation=None, same_activation=None, reason="not covered")


@pytest.mark.parametrize(
    ("identifier", "engine"),
    [
        *((f"HS90{number}", UNKNOWN_ENGINE) for number in range(1, 6)),
        ("HS901", replace(ENGINE, same_head=None)),
        ("HS902", replace(ENGINE, activation=None, same_activation=None)),
    ],
)
def test_what_the_facts_on_an_engine_do_not_say_is_not_known(identifier: str, engine: EngineHead) -> None:
    with pytest.raises(NotKnown):
        list(findings(identifier, subject(engine=engine)))


def test_a_finding_carries_its_rules_id_title_and_page() -> None:
    (found,) = findings("HS302", subject(built=BuiltFacts(3, 100, 100)))
    assert found == Finding(
        "HS302", ERROR, "The pad token is not in the vocabulary",
        "pad_token_id is 100, and the vocabulary has 100 tokens.",
        "Resize the embeddings (model.resize_token_embeddings), or use a token in the vocabulary.", (),
        "docs/rules.md#hs302",
    )  # fmt: skip


def test_an_id_is_given_once() -> None:
    with pytest.raises(ValueError, match="two rules have the id HS101"):
        rule("HS101", "other", "Other")(lambda this, subject: ())


def test_names_are_listed_up_to_four() -> None:
    assert few_of(["a"]) == "a"
    assert few_of(list("abcd")) == "a, b, c, d"
    assert few_of(list("abcde")) == "a, b, c, d and 1 more"
    assert few_of([str(number) for number in range(2004)]) == "0, 1, 2, 3 and 2,000 more"


def test_the_classifier_is_the_matrix_of_the_last_stage_with_live_parameters() -> None:
    found = classifier_of(subject())
    assert found.name == CLASSIFIER
    found = classifier_of(subject(head=head(parameter(DENSE), parameter(CLASSIFIER, live=False))))
    assert found.name == DENSE
    assert classifier_of(subject(head=head(parameter(BIAS, live=False)))) is None


@pytest.mark.parametrize("identifier", ["HS101", "HS102", "HS103", "HS104", "HS105", "HS301", "HS303", "HS402"])
def test_without_a_head_path_nothing_is_decided(identifier: str) -> None:
    with pytest.raises(NotKnown, match="headscope could not determine the head path"):
        findings(identifier, subject(head=None))


@pytest.mark.parametrize("identifier", ["HS102", "HS103", "HS104"])
def test_an_unknown_status_of_a_live_weight_is_not_decided(identifier: str) -> None:
    with pytest.raises(NotKnown, match=f"whether the checkpoint gives {BIAS} is not known"):
        findings(identifier, subject(head=head(parameter(CLASSIFIER), parameter(BIAS, UNKNOWN))))
    beside = subject(head=head(parameter(CLASSIFIER), parameter(BIAS, UNKNOWN, live=False)))
    assert findings(identifier, beside) == []


BASE = tuple(origin(f"base.layer.{number}") for number in range(4))
OUTSIDE = tuple(item.name for item in BASE)


def missing(count: int, *unused: str, extra: tuple[ParameterOrigin, ...] = (), **changes: Any) -> Subject:
    diff = weights(new=OUTSIDE[:count], unused=unused, parameters=(*BASE, *extra), **changes)
    return subject(weights=diff)


def test_new_weights_of_the_base_model_are_an_error() -> None:
    (found,) = findings("HS101", missing(1))
    assert (found.severity, found.parameters) == (ERROR, OUTSIDE[:1])


BUFFERS = tuple(origin(f"base.buffer.{number}", is_buffer=True) for number in range(4))
HEADS = tuple(origin(f"head.{number}", in_base=False) for number in range(4))


def test_many_new_weights_beside_unused_ones_are_names_that_do_not_match() -> None:
    remedies = [
        findings("HS101", about)[0].remedy
        for about in (missing(2, "a.b", "c.d"), missing(2, "a.b", extra=BUFFERS), missing(2, "a.b", extra=HEADS))
    ]
    assert len(set(remedies)) == 1
    assert findings("HS101", missing(1, "a.b"))[0].remedy not in remedies


WRAPPED = tuple(f"module.{name}" for name in OUTSIDE)
STATE = CheckpointState(
    StateKind.WRAPPED_KEYS,
    "a tool",
    "They are wrapped.",
    ("all 4 keys begin with 'module.'",),
    Repair("Unwrap:", "x = 1"),
)


def wrapped(*still_new: str) -> Subject:
    """A checkpoint whose keys a repair makes those of the model, but for some."""
    before = missing(4, *WRAPPED)
    diff = weights(new=still_new, parameters=BASE)
    report = replace(
        before.report, checkpoint=checkpoint(states=(STATE,)), repaired=Repaired(("HS802",), "unwrapped", diff)
    )
    return replace(before, report=report)


def test_a_state_is_reported_with_its_evidence_and_its_repair() -> None:
    (found,) = findings("HS802", wrapped())
    assert (found.severity, found.remedy, found.code) == (ERROR, "Unwrap:", "x = 1")
    assert findings("HS802", missing(4, *WRAPPED)) == []
    bare = replace(STATE, evidence=(), repair=None)
    report = replace(wrapped().report, checkpoint=checkpoint(states=(bare,)))
    (found,) = findings("HS802", replace(wrapped(), report=report))
    assert (found.remedy, found.code) == ("", "")


def test_other_rules_point_to_the_repair_where_it_gives_what_they_miss() -> None:
    (mended,), (still_new,) = findings("HS101", wrapped()), findings("HS101", wrapped(OUTSIDE[0]))
    assert ("HS802" in mended.remedy, "HS802" in still_new.remedy) == (True, False)


EMPTY = Mismatch("base.layer.0", (0,), (8,))


def test_empty_placeholders_have_their_own_rule() -> None:
    one = subject(weights=weights(mismatched=(EMPTY,), parameters=BASE))
    assert findings("HS101", one) == []
    (found,) = findings("HS801", one)
    assert (found.severity, found.parameters) == (ERROR, ("base.layer.0",))
    both_empty = subject(weights=weights(mismatched=(Mismatch("a", (0,), (0, 8)), Mismatch("b", (3,), (8,)))))
    assert findings("HS801", both_empty) == []
    faults = (AdapterFault(AdapterFaultKind.SHAPE, "lora_A", "0", "(8, 4)", is_empty=True),
              AdapterFault(AdapterFaultKind.REFUSED, "ValueError", "PEFT raises ValueError: r is 0", ""))  # fmt: skip
    (found,) = findings("HS801", subject(adapter=adapter(faults=faults)))
    assert found.parameters == ("lora_A",)


def adapter(**changes: Any) -> AdapterFacts:
    return replace(AdapterFacts("org/adapter", "LORA", "SEQ_CLS", "org/model", 2), **changes)


ALL_NEW = head(parameter(CLASSIFIER, NEW), parameter(BIAS, NEW))
STATISTICS = (parameter("bn.running_mean", NEW, kind=TensorKind.BUFFER),)
NEW_CLASSIFIER = head(parameter(DENSE), parameter(CLASSIFIER, NEW), parameter(BIAS, NEW))
NEW_DENSE = head(parameter(DENSE, NEW), parameter(CLASSIFIER), parameter(BIAS))


def test_a_new_head_is_a_note_before_training_and_an_error_before_use() -> None:
    assert severities("HS102", head=ALL_NEW) == ([NOTE], [ERROR])
    assert severities("HS103", head=ALL_NEW) == SILENT
    assert severities("HS102", head=ALL_NEW, adapter=adapter()) == SILENT
    assert findings("HS102", subject(head=ALL_NEW))[0].parameters == (CLASSIFIER, BIAS)
    assert severities("HS102", head=head(parameter(CLASSIFIER, live=False))) == SILENT


def test_a_head_that_is_new_in_parts() -> None:
    assert severities("HS103", head=NEW_CLASSIFIER) == ([NOTE], [ERROR])
    assert severities("HS102", head=NEW_CLASSIFIER) == SILENT
    assert severities("HS103", head=NEW_DENSE) == ([WARNING], [ERROR])
    lost = head(parameter(DENSE, NEW), parameter(CLASSIFIER, MISMATCHED), parameter(BIAS))
    assert severities("HS103", head=lost) == ([NOTE], [ERROR])
    assert severities("HS103", head=NEW_DENSE, adapter=adapter()) == SILENT
    assert severities("HS103", head=head(buffers=STATISTICS)) == ([WARNING], [ERROR])
    beside = head(parameter(DENSE, NEW, live=False), parameter(CLASSIFIER))
    assert severities("HS103", head=beside) == SILENT
    nameless = head(parameter(DENSE, NEW), parameter(BIAS), stages=(stage("select"),))
    assert severities("HS103", head=nameless) == ([NOTE], [ERROR])


OTHER_SHAPE = head(parameter(DENSE, MISMATCHED, checkpoint_shape=(9, 8)), parameter(CLASSIFIER))
IDLE = {"head": head(not_live=("idle.weight",)), "weights": weights(mismatched=(Mismatch("idle.weight", (9,), (8,)),))}


def test_weights_of_another_shape_are_an_error_unless_it_is_the_class_count() -> None:
    assert severities("HS104", head=OTHER_SHAPE) == ([ERROR], [ERROR])
    assert findings("HS104", subject(head=OTHER_SHAPE))[0].parameters == (DENSE,)
    classes = parameter(CLASSIFIER, MISMATCHED, checkpoint_shape=(2, 8))
    assert severities("HS104", head=head(classes)) == SILENT
    assert severities("HS104", head=head(classes), model=model(num_labels=4)) == ([ERROR], [ERROR])
    both = parameter(CLASSIFIER, MISMATCHED, checkpoint_shape=(2, 9))
    assert severities("HS104", head=head(both)) == ([ERROR], [ERROR])
    rank = parameter(CLASSIFIER, MISMATCHED, checkpoint_shape=(2,))
    assert severities("HS104", head=head(rank)) == ([ERROR], [ERROR])
    unread = parameter(CLASSIFIER, MISMATCHED)
    assert severities("HS104", head=head(unread)) == ([ERROR], [ERROR])
    empty = weights(mismatched=(Mismatch(DENSE, (0,), (8, 8)),))
    zeros = head(parameter(DENSE, MISMATCHED, checkpoint_shape=(0,)))
    assert severities("HS104", head=zeros, weights=empty) == SILENT


def test_a_mismatch_is_an_error_wherever_the_tensor_is() -> None:
    assert severities("HS104", **IDLE) == ([ERROR], [ERROR])
    dead = head(parameter(DENSE, MISMATCHED, checkpoint_shape=(9, 8), live=False), parameter(CLASSIFIER))
    off = weights(mismatched=(Mismatch(DENSE, (9, 8), (8, 8)),))
    assert severities("HS104", head=replace(dead, not_live=(DENSE,)), weights=off) == ([ERROR], [ERROR])
    assert severities("HS104", **IDLE, checkpoint=checkpoint(kind=CheckpointKind.MEMORY)) == ([NOTE], [NOTE])


def test_what_the_class_count_cannot_explain_is_a_mismatch() -> None:
    """Tensors that name two class counts, and tasks that have none: the rule on the class count is silent there."""
    two = head(parameter(CLASSIFIER, MISMATCHED, checkpoint_shape=(5, 8)),
               parameter(BIAS, MISMATCHED, checkpoint_shape=(4,)))  # fmt: skip
    assert severities("HS201", head=two) == SILENT
    assert severities("HS104", head=two) == ([ERROR], [ERROR])
    one = head(parameter(CLASSIFIER, MISMATCHED, checkpoint_shape=(5, 8)))
    answers = model(task=Task.QUESTION_ANSWERING)
    assert severities("HS201", head=one, model=answers) == SILENT
    assert severities("HS104", head=one, model=answers) == ([ERROR], [ERROR])


def test_new_weights_without_effect_are_a_note() -> None:
    diff = weights(new=("idle.weight", "used.weight"), parameters=BASE)
    idle = replace(head(), not_live=("idle.weight", "other"))
    assert severities("HS105", head=idle, weights=diff) == ([NOTE], [NOTE])
    (found,) = findings("HS105", subject(head=idle, weights=diff))
    assert found.parameters == ("idle.weight",)
    assert severities("HS105", head=idle) == SILENT
    (found,) = findings("HS101", subject(head=idle, weights=diff))
    assert found.parameters == ("used.weight",)
    unused = replace(idle, unused_modules=(UnusedModule("used", "Linear", executed=False),))
    assert findings("HS101", subject(head=unused, weights=diff)) == []


def leftovers(*tensors: TensorHeader, **changes: Any) -> WeightDiff:
    return weights(unused=tuple(item.key for item in tensors), unused_tensors=tensors, **changes)


FOUND = TensorHeader("head.out.weight", "float32", (3, 8))


def test_a_classifier_of_another_name_is_a_warning() -> None:
    new = head(parameter(DENSE), parameter(CLASSIFIER, NEW))
    assert severities("HS106", head=new, weights=leftovers(FOUND)) == ([WARNING], [WARNING])
    (found,) = findings("HS106", subject(head=new, weights=leftovers(FOUND)))
    assert found.parameters == ("head.out.weight",)
    assert severities("HS106", weights=leftovers(FOUND)) == SILENT
    lost = head(parameter(CLASSIFIER, MISMATCHED, checkpoint_shape=(2, 8)))
    assert severities("HS106", head=lost, weights=leftovers(FOUND)) == ([WARNING], [WARNING])
    assert severities("HS106", head=new, weights=leftovers(replace(FOUND, shape=(2, 8)))) == SILENT
    known = UnusedGroup((FOUND.key,), "a language model's head")
    assert severities("HS106", head=new, weights=leftovers(FOUND, unused_groups=(known,))) == SILENT
    unknown = UnusedGroup((FOUND.key,), "")
    assert severities("HS106", head=new, weights=leftovers(FOUND, unused_groups=(unknown,))) == ([WARNING], [WARNING])
    twin = origin("encoder.out.weight", shape=(3, 8))
    assert severities("HS106", head=new, weights=leftovers(FOUND, parameters=(twin,))) == SILENT
    other = origin("encoder.out.weight", shape=(4, 8))
    assert severities("HS106", head=new, weights=leftovers(FOUND, parameters=(other,))) == ([WARNING], [WARNING])
    own = origin(CLASSIFIER, shape=(3, 8), in_base=False)
    same = TensorHeader("old.classifier.weight", "float32", (3, 8))
    assert severities("HS106", head=new, weights=leftovers(same, parameters=(own,))) == ([WARNING], [WARNING])
    flat = head(parameter(BIAS, NEW))
    vector = TensorHeader("head.bias", "float32", (3,))
    assert severities("HS106", head=flat, weights=leftovers(vector)) == SILENT
    assert severities("HS106", head=head(stages=()), weights=leftovers(FOUND)) == SILENT


def test_an_adapter_that_does_not_carry_the_head() -> None:
    assert severities("HS107", adapter=adapter()) == SILENT
    lacking = adapter(not_carried=(CLASSIFIER,), modules_to_save=("classifier",))
    assert severities("HS107", adapter=lacking) == ([ERROR], [ERROR])
    (found,) = findings("HS107", subject(adapter=lacking))
    assert (found.parameters, "modules_to_save=['classifier']" in found.remedy) == ((CLASSIFIER,), True)
    (found,) = findings("HS107", subject(adapter=adapter(promised=("score",))))
    assert (found.severity, found.parameters) == (ERROR, ("score",))


def fault(kind: AdapterFaultKind, name: str = "x") -> AdapterFault:
    return AdapterFault(kind, name, "found", "expected")


@pytest.mark.parametrize("kind", AdapterFaultKind)
def test_an_adapter_that_does_not_fit(kind: AdapterFaultKind) -> None:
    (found,) = findings("HS109", subject(adapter=adapter(faults=(fault(kind),))))
    assert (found.severity, found.parameters) == (ERROR, ("x",))


def test_a_pickle_is_a_warning() -> None:
    assert severities("HS108", checkpoint=checkpoint(format=WeightsFormat.TORCH)) == ([WARNING], [WARNING])


TWO = parameter(CLASSIFIER, MISMATCHED, checkpoint_shape=(2, 8))


def test_a_stored_classifier_of_another_size() -> None:
    assert severities("HS201", head=head(parameter(DENSE), TWO)) == ([WARNING], [ERROR])
    for stored in ((2, 9), (2,), (0, 8), (3, 9)):
        assert severities("HS201", head=head(replace(TWO, checkpoint_shape=stored))) == SILENT
    assert severities("HS201", head=head(replace(TWO, status=LOADED))) == SILENT
    assert severities("HS201", head=head(replace(TWO, checkpoint_shape=None))) == SILENT
    four = parameter(BIAS, MISMATCHED, checkpoint_shape=(4,))
    assert severities("HS201", head=head(TWO, four)) == SILENT
    choices = model(task=Task.MULTIPLE_CHOICE)
    assert severities("HS201", head=head(TWO), model=choices) == SILENT


def test_other_class_counts_than_the_configurations() -> None:
    assert severities("HS201", wanted_num_labels=3) == SILENT
    assert severities("HS201", wanted_num_labels=2) == ([NOTE], [ERROR])
    assert severities("HS201", wanted_labels=("a", "b")) == ([NOTE], [ERROR])
    assert severities("HS201", wanted_num_labels=2, config=ConfigFacts(3)) == SILENT
    assert severities("HS201", wanted_num_labels=2, config=ConfigFacts()) == SILENT
    assert severities("HS201", config=ConfigFacts(7, NAMED)) == ([ERROR], [ERROR])
    assert severities("HS201", config=ConfigFacts(7)) == SILENT
    assert severities("HS201", config=ConfigFacts(None, NAMED)) == SILENT


def test_classes_without_names() -> None:
    plain = model(labels_are_placeholders=True)
    assert severities("HS202", model=plain) == ([NOTE], [WARNING])
    assert severities("HS202", model=replace(plain, num_labels=1)) == SILENT
    assert severities("HS202", model=replace(plain, task=Task.QUESTION_ANSWERING)) == SILENT


TWO_NAMES = (("0", "a"), ("1", "b"))
CONTRADICTIONS = (
    ConfigFacts(None, (("1", "a"), ("2", "b"))),
    ConfigFacts(None, (("0", "a"), ("1", "a"))),
    ConfigFacts(None, TWO_NAMES, (("a", "1"), ("b", "1"))),
    ConfigFacts(None, TWO_NAMES, (("a", "0"), ("b", "1"), ("c", "2"))),
    ConfigFacts(None, TWO_NAMES, (("a", "0"),)),
)


@pytest.mark.parametrize("config", CONTRADICTIONS)
def test_label_maps_that_contradict_each_other(config: ConfigFacts) -> None:
    assert severities("HS203", config=config) == ([WARNING], [ERROR])
    assert severities("HS203", config=config, model=model(task=Task.MULTIPLE_CHOICE)) == SILENT


def test_a_map_that_is_not_there_contradicts_nothing() -> None:
    assert severities("HS203", config=ConfigFacts(None, (), (("a", "0"),))) == SILENT
    assert severities("HS203", config=ConfigFacts(None, NAMED, ())) == SILENT


def test_problem_types_that_cannot_be_meant() -> None:
    assert severities("HS204", config=ConfigFacts(problem_type="ordinal")) == ([ERROR], [ERROR])
    for known in ("regression", "single_label_classification", "multi_label_classification"):
        assert severities("HS204", config=ConfigFacts(problem_type=known)) == SILENT
    single = model(problem_type="single_label_classification")
    assert severities("HS204", model=replace(single, num_labels=1)) == ([ERROR], [ERROR])
    assert severities("HS204", model=replace(single, num_labels=2)) == SILENT
    number = model(problem_type="regression", loss="MSELoss")
    assert severities("HS204", model=number) == ([WARNING], [WARNING])
    assert severities("HS204", model=replace(number, num_labels=1)) == SILENT
    assert severities("HS204", model=replace(number, num_labels=2)) == ([WARNING], [WARNING])
    assert severities("HS204", model=replace(number, labels_are_placeholders=True)) == SILENT


def test_one_class_under_a_softmax_learns_nothing_whatever_chose_the_loss() -> None:
    one = model(num_labels=1, loss="CrossEntropyLoss", reads_problem_type=False)
    assert severities("HS204", model=one) == ([ERROR], [WARNING])
    ignored = replace(one, problem_type="single_label_classification")
    assert severities("HS204", model=ignored) == ([ERROR], [WARNING])
    assert severities("HS204", model=replace(one, task=Task.MULTIPLE_CHOICE)) == SILENT
    for loss in ("MSELoss", "BCEWithLogitsLoss", "none"):
        assert severities("HS204", model=replace(one, loss=loss)) == SILENT
    with pytest.raises(NotKnown, match="could not determine which loss the forward computes"):
        findings("HS204", subject(model=replace(one, loss="not determined")))
    several = subject(model=model(loss="not determined"))
    with pytest.raises(NotKnown, match="could not determine which loss the forward computes"):
        findings("HS204", several)
    assert not findings("HS204", replace(several, profile=INFERENCE))
    tokens = replace(several.report, model=model(loss="not determined", task=Task.MULTIPLE_CHOICE))
    assert not findings("HS204", replace(several, report=tokens))
    strange = ConfigFacts(problem_type="ordinal")
    assert severities("HS204", model=model(reads_problem_type=False), config=strange) == SILENT
    named = model(problem_type="regression", reads_problem_type=False)
    assert severities("HS204", model=named) == SILENT


def test_one_label_means_regression_where_the_loss_is_that_of_numbers() -> None:
    one = model(num_labels=1, loss="MSELoss")
    assert severities("HS205", model=one) == ([WARNING], [NOTE])
    assert severities("HS205", model=replace(one, task=Task.IMAGE_CLASSIFICATION)) == ([WARNING], [NOTE])
    assert severities("HS205", model=replace(one, task=Task.TOKEN_CLASSIFICATION)) == SILENT
    assert severities("HS205", model=one, config=ConfigFacts(problem_type="regression")) == SILENT
    for loss in ("CrossEntropyLoss", "BCEWithLogitsLoss", "none"):
        assert severities("HS205", model=replace(one, loss=loss)) == SILENT
    with pytest.raises(NotKnown, match="could not determine which loss the forward computes"):
        findings("HS205", subject(model=replace(one, loss="not determined")))
    (fixed,) = findings("HS205", subject(model=replace(one, reads_problem_type=False)))
    assert "problem_type" not in fixed.message + fixed.remedy


def test_a_problem_type_that_the_forward_does_not_read() -> None:
    several = ConfigFacts(problem_type="multi_label_classification")
    deaf = model(reads_problem_type=False)
    assert severities("HS206", model=deaf, config=several) == ([WARNING], [NOTE])
    assert severities("HS206", model=replace(deaf, loss="BCEWithLogitsLoss"), config=several) == SILENT
    assert severities("HS206", model=deaf, config=ConfigFacts()) == SILENT
    assert severities("HS206", model=replace(deaf, task=Task.MULTIPLE_CHOICE), config=several) == SILENT
    assert severities("HS206", model=replace(deaf, reads_problem_type=True), config=several) == SILENT
    unseen = replace(deaf, reads_problem_type=None)
    assert severities("HS206", model=replace(unseen, loss="none"), config=several) == SILENT
    with pytest.raises(NotKnown, match="could not determine which loss the forward computes"):
        findings("HS206", subject(model=unseen, config=several))


def test_a_head_that_was_trained_for_another_task() -> None:
    trained = BuiltFacts(3, 100, 0, trained_for=Task.TOKEN_CLASSIFICATION)
    assert severities("HS401", built=trained) == ([NOTE], [ERROR])
    assert severities("HS401", built=trained, head=ALL_NEW) == ([NOTE], [WARNING])
    assert severities("HS401", built=replace(trained, trained_for=Task.SEQUENCE_CLASSIFICATION)) == SILENT
    assert severities("HS401", built=trained, model=model(class_name="SomeModel")) == SILENT


LAST_REAL, EOS = PoolingKind.LAST_NON_PAD_TOKEN, PoolingKind.EOS_TOKEN


def test_a_head_that_looks_for_padding_needs_a_pad_token() -> None:
    unset = BuiltFacts(3, 100, None)
    assert severities("HS301", head=head(kind=LAST_REAL), built=unset) == ([ERROR], [ERROR])
    assert severities("HS301", head=head(kind=LAST_REAL)) == SILENT
    assert severities("HS301", built=unset) == SILENT


@pytest.mark.parametrize(
    ("pad", "size", "is_found"),
    [(100, 100, True), (99, 100, False), (-1, 100, True), (0, 100, False), (None, 100, False), (5, None, False)],
)
def test_a_pad_token_beyond_the_vocabulary(pad: int | None, size: int | None, is_found: bool) -> None:
    assert severities("HS302", built=BuiltFacts(3, size, pad)) == (([ERROR], [ERROR]) if is_found else SILENT)


RIGHT, LEFT = TokenizerFacts("right", "<pad>", "</s>"), TokenizerFacts("left", "<pad>", "</s>")


def test_a_tokenizer_that_pads_where_the_head_reads() -> None:
    assert severities("HS303", tokenizer=RIGHT) == SILENT
    assert severities("HS303", tokenizer=LEFT) == ([ERROR], [ERROR])
    last = head(kind=PoolingKind.LAST_TOKEN)
    assert severities("HS303", head=last, tokenizer=RIGHT) == ([ERROR], [ERROR])
    assert severities("HS303", head=last, tokenizer=LEFT) == SILENT
    assert severities("HS303", head=head(kind=PoolingKind.MEAN), tokenizer=LEFT) == SILENT


def test_padding_made_of_the_end_token() -> None:
    same = TokenizerFacts("right", "</s>", "</s>")
    assert severities("HS304", head=head(kind=EOS), tokenizer=same) == ([ERROR], [ERROR])
    assert severities("HS304", head=head(kind=LAST_REAL), tokenizer=same) == ([NOTE], [NOTE])
    assert severities("HS304", tokenizer=same) == SILENT
    assert severities("HS304", head=head(kind=EOS), tokenizer=RIGHT) == SILENT
    assert severities("HS304", head=head(kind=EOS), tokenizer=TokenizerFacts("right", None, None)) == SILENT
    assert severities("HS304", head=head(kind=EOS), built=BuiltFacts(3, 100, 2, (1, 2))) == ([ERROR], [ERROR])
    assert severities("HS304", head=head(kind=EOS), built=BuiltFacts(3, 100, None, (1, 2))) == SILENT


def measured(*effects: PaddingEffect) -> Head:
    return head(verification=Verification(True, "", (), effects))


def test_padding_that_changes_the_scores() -> None:
    changing = measured(PaddingEffect("right", True, 0.25), PaddingEffect("left", False, 0.0))
    assert severities("HS305", head=changing) == ([WARNING], [WARNING])
    assert severities("HS305", head=changing, tokenizer=LEFT) == SILENT
    assert severities("HS305", head=changing, built=BuiltFacts(3, 100, 0, padding_side="left")) == SILENT
    assert severities("HS305", head=changing, built=BuiltFacts(3, 100, None)) == SILENT
    assert severities("HS305", head=changing, built=BuiltFacts(3, 100, 100)) == SILENT
    assert severities("HS305", head=changing, built=BuiltFacts(3, None, 100)) == ([WARNING], [WARNING])
    with pytest.raises(NotKnown, match="padding on the right could not be measured: it failed"):
        findings("HS305", subject(head=measured(PaddingEffect("right", None, reason="it failed"))))
    with pytest.raises(NotKnown, match="padding on the right could not be measured: no model"):
        findings("HS305", subject(head=measured(PaddingEffect("any", None, reason="no model"))))
    other = measured(PaddingEffect("left", None, reason="it failed"), PaddingEffect("right", True, 0.5))
    assert severities("HS305", head=other) == ([WARNING], [WARNING])


LANGUAGE = BuiltFacts(3, 100, 0, kind="language model")


def test_a_checkpoint_of_another_kind() -> None:
    assert severities("HS401", built=LANGUAGE) == SILENT
    assert severities("HS401", built=LANGUAGE, head=ALL_NEW) == ([NOTE], [WARNING])


def test_number_formats_that_a_loss_dislikes() -> None:
    half = head(parameter(DENSE), parameter(CLASSIFIER, dtype="float16"))
    assert severities("HS402", head=half) == ([WARNING], [])
    assert findings("HS402", subject(head=half))[0].parameters == (CLASSIFIER,)
    packed = head(parameter(CLASSIFIER, dtype="int8"))
    assert severities("HS402", head=packed) == ([ERROR], [WARNING])
    assert severities("HS402", head=head(parameter(CLASSIFIER, dtype="float8_e4m3fn"))) == ([ERROR], [WARNING])
    assert severities("HS402", head=head(parameter(CLASSIFIER, dtype="int8", quantized="int8"))) == SILENT
    assert severities("HS402", head=head(parameter(CLASSIFIER, dtype="bfloat16"))) == SILENT


def test_code_in_the_repository() -> None:
    assert severities("HS403", config=ConfigFacts(has_auto_map=True)) == ([WARNING], [WARNING])


def quantized(**changes: Any) -> ModelFacts:
    return model(quantization=replace(Quantization("bitsandbytes", 4, False), **changes))


def test_a_head_in_few_bits() -> None:
    packed = head(parameter(DENSE), parameter(CLASSIFIER, quantized="nf4"))
    assert severities("HS404", head=packed, model=quantized(head_quantized=True)) == ([ERROR], [WARNING])
    assert severities("HS404", head=packed) == SILENT
    assert severities("HS404", model=quantized()) == SILENT
    with pytest.raises(NotKnown, match="headscope could not determine how the head is stored"):
        findings("HS404", subject(model=quantized(head_quantized=None)))
    new = head(parameter(DENSE), parameter(CLASSIFIER, NEW))
    assert severities("HS404", head=new, model=quantized(skips_head=False)) == ([ERROR], [WARNING])
    assert severities("HS404", head=new, model=quantized(skips_head=None)) == SILENT
    assert severities("HS404", head=new, model=quantized(skips_head=True)) == SILENT
    assert severities("HS404", head=new, model=quantized(skips_head=False, method="gptq")) == SILENT
    assert severities("HS404", model=quantized(skips_head=False)) == SILENT
    lost = head(parameter(CLASSIFIER, MISMATCHED))
    assert severities("HS404", head=lost, model=quantized(skips_head=False)) == ([ERROR], [WARNING])


def values(name: str, **changes: Any) -> TensorValues:
    return replace(TensorValues(name, 1000), **changes)


HEALTHY = HeadTrial()


def broken(trial: HeadTrial = HEALTHY, **changes: Any) -> tuple[list[Severity], list[Severity]]:
    return severities("HS501", **{"values": (values(CLASSIFIER),), "trial": trial, **changes})


def test_broken_numbers() -> None:
    assert broken(values=(values(CLASSIFIER, nan=1),)) == ([ERROR], [ERROR])
    assert broken(values=(values(BIAS, inf=1),)) == ([ERROR], [ERROR])
    assert broken(values=(values(CLASSIFIER, whole="int8"),)) == ([WARNING], [ERROR])
    assert broken(values=(values(CLASSIFIER, zeros=1000),)) == SILENT  # numbers decide: the trial says that it answers
    assert broken() == SILENT


TRIALS = (
    (HeadTrial(fails="dtypes differ"), ([ERROR], [ERROR])),
    (HeadTrial(finite=False), ([ERROR], [ERROR])),
    (HeadTrial(moves=False), ([WARNING], [ERROR])),
    (HeadTrial(winner=2), ([WARNING], [ERROR])),
    (HeadTrial(winner=0), ([WARNING], [ERROR])),
    (HeadTrial(stuck=(0, 2)), ([WARNING], [WARNING])),
)


@pytest.mark.parametrize(("trial", "expected"), TRIALS)
def test_a_head_that_was_tried_and_cannot_answer(trial: HeadTrial, expected: Any) -> None:
    assert broken(trial) == expected
    lost = (values(CLASSIFIER, nan=1),)  # one cause is told once: NaN makes the scores NaN
    assert len(findings("HS501", subject(values=lost, trial=trial))) == 1


def test_a_head_that_could_not_be_tried_is_not_determined_unless_its_numbers_show_a_fault() -> None:
    untried = HeadTrial(why_not="too large")
    with pytest.raises(NotKnown, match="not tried: too large"):
        broken(untried)
    with pytest.raises(NotKnown, match="not tried: the head path is not known"):
        findings("HS501", subject(values=(values(CLASSIFIER),)))
    with pytest.raises(NotKnown, match="it is packed"):
        broken(HeadTrial(unread=("it is packed",)))
    zeros = (values(CLASSIFIER, zeros=1000),)
    assert broken(untried, values=zeros) == ([WARNING], [ERROR])
    for harmless in ((values(CLASSIFIER, zeros=999),), (values(BIAS, zeros=1000),)):
        with pytest.raises(NotKnown):
            broken(untried, values=harmless)


def health(verdict: HealthVerdict = HealthVerdict.FRESH, **changes: Any) -> HeadHealth:
    basis = HealthBasis.STATISTICS
    return replace(HeadHealth(verdict, 0.97, basis, ("its bias is zero", "its spread fits"), CLASSIFIER), **changes)


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


def test_frozen_weights_of_the_head() -> None:
    assert severities("HS601", live=LiveFacts((CLASSIFIER,))) == ([ERROR], [])
    assert severities("HS601", live=LiveFacts((DENSE,))) == ([NOTE], [])
    assert severities("HS601", live=LiveFacts(())) == SILENT
    for status in (NEW, MISMATCHED):
        new = head(parameter(DENSE, status), parameter(CLASSIFIER))
        assert severities("HS601", head=new, live=LiveFacts((DENSE,))) == ([ERROR], [])


def test_weights_beside_the_optimizer() -> None:
    assert severities("HS602", live=LiveFacts((), (CLASSIFIER,))) == ([ERROR], [])
    assert severities("HS602", live=LiveFacts((), ())) == SILENT
    assert severities("HS602", live=LiveFacts(())) == SILENT
    assert findings("HS602", subject(live=LiveFacts((), (CLASSIFIER,))))[0].parameters == (CLASSIFIER,)


def result(about: Subject, **options: Any) -> CheckResult:
    return judge(about, select(**options))


def test_a_verdict_is_failed_before_not_determined_before_passed() -> None:
    assert result(subject()).verdict is Verdict.PASSED
    assert result(subject(INFERENCE, head=ALL_NEW)).verdict is Verdict.FAILED
    open_one = (Gap("head path", "guessed"),)
    assert result(subject(not_determined=open_one)).verdict is Verdict.NOT_DETERMINED
    assert result(subject(INFERENCE, head=ALL_NEW, not_determined=open_one)).verdict is Verdict.FAILED
    assert result(subject(not_determined=open_one)).not_determined == open_one
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


def test_a_fresh_head_is_an_error_for_inference_if_the_evidence_is_decisive() -> None:
    assert severities("HS502", health=health(basis=HealthBasis.DRAW, confidence=0.999)) == ([NOTE], [ERROR])
    assert severities("HS502", health=health(confidence=DECISIVE)) == ([NOTE], [ERROR])
    assert severities("HS502", health=health(confidence=DECISIVE - 0.001)) == ([NOTE], [WARNING])


PAD = TokenId("pad", "<pad>", 6, "tokenizer.json", True)
CONFIGURED = BuiltFacts(3, 100, 5, token_ids=(("pad", 5),), embedding_rows=100)


def tokenized(*tokens: TokenId, **more: Any) -> dict[str, Any]:
    return {"tokenizer": TokenizerFacts("right", "<pad>", None, tokens, **more), "built": CONFIGURED}


def with_effect(reach: AffectedTexts) -> Subject:
    effect = IdEffect("pad", 5, "config.json", reach, "in a batch get other scores")
    return subject(**tokenized(PAD, effects=(effect,)))


@pytest.mark.parametrize(
    ("reach", "severity"), [(AffectedTexts.ALL, ERROR), (AffectedTexts.SOME, WARNING), (AffectedTexts.NONE, NOTE)]
)
def test_another_id_is_as_grave_as_what_it_changes(reach: AffectedTexts, severity: Severity) -> None:
    (found,) = findings("HS306", with_effect(reach))
    assert (found.severity, found.parameters) == (severity, ("pad_token_id",))


def test_an_id_that_could_not_be_measured_or_read_is_not_silent() -> None:
    unmeasured = IdEffect("pad", 5, "config.json", None, "ValueError: no")
    with pytest.raises(NotKnown, match="what pad_token_id 5 does to the scores could not be measured: ValueError: no"):
        findings("HS306", subject(**tokenized(PAD, effects=(unmeasured,))))
    with pytest.raises(NotKnown, match="17 MB"):
        findings("HS306", subject(**tokenized(replace(PAD, id=None), ids_unread="it has 17 MB")))
    with pytest.raises(NotKnown, match="17 MB"):
        findings("HS307", subject(**tokenized(PAD, ids_unread="it has 17 MB")))
    assert severities("HS306", **tokenized(PAD)) == SILENT


@pytest.mark.parametrize(("number", "is_found"), [(99, False), (100, True)])
@pytest.mark.parametrize(("occurs", "severity"), [(True, ERROR), (False, WARNING)])
def test_a_token_counts_from_the_first_row_that_is_missing(
    number: int, is_found: bool, occurs: bool, severity: Severity
) -> None:
    facts = tokenized(TokenId("", "w", number, "tokenizer.json", occurs))
    assert severities("HS307", **facts) == (([severity], [severity]) if is_found else SILENT)
    facts["built"] = replace(CONFIGURED, embedding_rows=None)
    assert severities("HS307", **facts) == (([severity], [severity]) if is_found else SILENT)


@pytest.mark.parametrize(("kind", "appended", "is_found"), [
    (EOS, False, True), (EOS, True, False), (EOS, None, False), (PoolingKind.FIRST_TOKEN, False, False),
])  # fmt: skip
def test_a_head_that_reads_the_end_token_needs_texts_that_end_with_it(
    kind: PoolingKind, appended: bool | None, is_found: bool
) -> None:
    facts = tokenized(PAD, appends_eos=appended)
    assert severities("HS310", head=head(kind=kind), **facts) == (([ERROR], [ERROR]) if is_found else SILENT)


TOO_LONG = tokenized(max_length=513, too_long="IndexError") | {"built": replace(CONFIGURED, positions=512)}


def test_a_text_as_long_as_the_tokenizer_allows_is_tried() -> None:
    assert severities("HS308", **tokenized(too_long="")) == SILENT
    assert severities("HS308", **TOO_LONG) == ([ERROR], [ERROR])
    with pytest.raises(NotKnown, match="513"):
        findings("HS308", subject(**tokenized(max_length=513, too_long=None)))


def test_the_gravest_findings_come_first() -> None:
    about = subject(
        INFERENCE, head=ALL_NEW, model=model(labels_are_placeholders=True),
        checkpoint=checkpoint(format=WeightsFormat.TORCH), built=BuiltFacts(3, 100, 100),
    )  # fmt: skip
    assert [item.id for item in result(about).findings] == ["HS102", "HS302", "HS108", "HS202"]


def test_a_result_says_what_was_asked_of_what() -> None:
    found = result(subject(INFERENCE, checkpoint=checkpoint(notices=("a notice",))), wanted=("HS30",))
    assert found.reference == "org/model"
    assert found.profile is INFERENCE
    assert found.rules == tuple(f"HS30{number}" for number in range(1, 10))
    assert found.notices == ("a notice",)
    assert found.command == "check"


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
    assert (old.verdict, old.ignored[0].reason) == (Verdict.PASSED, "in the baseline")
    assert result(about, baseline=frozenset({("other", *print_of[1:])})).verdict is Verdict.FAILED
    first = result(about, ignores=(Ignore("HS102", "known"),), baseline=frozenset({print_of}))
    assert first.ignored[0].reason == "known"


def ids(selection: Selection) -> list[str]:
    return [item.id for item in selection.rules]


def test_rules_are_chosen_by_id_beginning_or_name() -> None:
    assert ids(select()) == OF_CHECK
    assert ids(select(command="verify")) == sorted(name for name, rule in RULES.items() if rule.command == "verify")
    assert ids(select(["HS102"])) == ["HS102"]
    assert ids(select(["hs5"])) == ["HS501", "HS502", "HS504"]
    assert ids(select(["Head-New", "HS108"])) == ["HS102", "HS108"]
    assert ids(select(["HS"])) == OF_CHECK
    assert select(fail_on="Warning").fail_on is WARNING


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"wanted": ["HS999"]}, "no such rule: HS999", "did you mean HS"),
        ({"wanted": ["head-knew"]}, "no such rule: head-knew", "did you mean head-new?"),
        ({"wanted": ["qqqqqq"]}, "no such rule: qqqqqq", "rules: HS101, HS102, HS103"),
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


MEMORY = checkpoint(kind=CheckpointKind.MEMORY)
ZEROS = TensorValues(BIAS, 3, zeros=3)


def test_a_head_that_was_new_at_load_is_not_called_random_of_a_model_in_memory() -> None:
    moved = replace(ZEROS, zeros=2)
    (found,) = findings("HS102", subject(INFERENCE, head=ALL_NEW, checkpoint=MEMORY, values=(ZEROS,)))
    assert (found.severity, found.parameters) == (ERROR, (CLASSIFIER, BIAS))
    for values in ((moved,), (), None):
        with pytest.raises(
            NotKnown, match="headscope could not determine whether the weights were trained since the load"
        ):
            findings("HS102", subject(INFERENCE, head=ALL_NEW, checkpoint=MEMORY, values=values))
        (found,) = findings("HS102", subject(TRAINING, head=ALL_NEW, checkpoint=MEMORY, values=values))
        assert found.severity is NOTE


CHANGED_WEIGHTS = weights(
    parameters=tuple(
        origin(name, name != CLASSIFIER, status=ParameterStatus.CHANGED) for name in (CLASSIFIER, "base.x")
    )
)
TRAINED_SINCE = subject(
    INFERENCE, head=head(parameter(CLASSIFIER, ParameterStatus.CHANGED), parameter(BIAS)), checkpoint=MEMORY,
    weights=CHANGED_WEIGHTS,
)  # fmt: skip


def test_weights_that_changed_since_the_load_are_a_note() -> None:
    (found,) = findings("HS110", TRAINED_SINCE)
    assert (found.severity, found.parameters) == (NOTE, (CLASSIFIER,))


def test_a_base_model_of_unknown_weights_is_not_passed() -> None:
    unknown = subject(INFERENCE, weights=weights(parameters=(origin("base.x", status=UNKNOWN),)))
    with pytest.raises(NotKnown, match=r"base\.x"):
        findings("HS101", unknown)
    resized = LiveFacts((), resized=("base.x",))
    with pytest.raises(NotKnown):
        findings("HS101", replace(unknown, live=resized))
    (found,) = findings("HS101", replace(unknown, live=resized, profile=TRAINING))
    assert found.severity is NOTE


def of_adapter(*kinds: AdapterFaultKind) -> Subject:
    return subject(adapter=adapter(faults=tuple(fault(kind, name) for kind, name in zip(kinds, "abcd", strict=False))))


LAST = head(kind=PoolingKind.LAST_TOKEN)
MISSING_IN_FILE = AdapterFaultKind.MISSING
PADDED_RIGHT = head(verification=Verification(True, "", (), (PaddingEffect("right", True, 0.25),)))
PADDED_LEFT = head(verification=Verification(True, "", (), (PaddingEffect("left", True, None),)))
SAID: tuple[tuple[str, Subject], ...] = (
    ("HS101", missing(1)),
    ("HS101", missing(1, "a.b")),
    ("HS101", missing(2, "a.b", "c.d")),
    ("HS101", wrapped()),
    ("HS102", subject(head=ALL_NEW)),
    ("HS102", subject(INFERENCE, head=head(parameter(CLASSIFIER, IGNORED)))),
    ("HS102", subject(head=replace(ALL_NEW, buffers=STATISTICS))),
    ("HS102", subject(INFERENCE, head=ALL_NEW, checkpoint=MEMORY, values=(ZEROS,))),
    ("HS102", subject(head=ALL_NEW, checkpoint=MEMORY)),
    ("HS103", subject(head=NEW_CLASSIFIER)),
    ("HS103", subject(head=NEW_DENSE)),
    ("HS103", subject(head=head(buffers=STATISTICS))),
    ("HS104", subject(head=OTHER_SHAPE)),
    ("HS104", subject(**IDLE)),
    ("HS104", subject(**IDLE, checkpoint=MEMORY)),
    ("HS105", subject(head=head(not_live=("idle.weight",)), weights=weights(new=("idle.weight",)))),
    ("HS106", subject(head=NEW_CLASSIFIER, weights=leftovers(FOUND))),
    ("HS107", subject(adapter=adapter(not_carried=(CLASSIFIER,), modules_to_save=("classifier",)))),
    ("HS107", subject(adapter=adapter(promised=("score",)))),
    ("HS108", subject(checkpoint=checkpoint(format=WeightsFormat.TORCH))),
    *(("HS109", of_adapter(kind)) for kind in AdapterFaultKind),
    ("HS109", of_adapter(*[MISSING_IN_FILE] * 3)),
    ("HS109", of_adapter(*[MISSING_IN_FILE] * 4)),
    ("HS110", TRAINED_SINCE),
    ("HS201", subject(head=head(TWO))),
    ("HS201", subject(head=head(TWO), wanted_num_labels=3)),
    ("HS201", subject(head=head(TWO), wanted_num_labels=3, config=ConfigFacts())),
    ("HS201", subject(wanted_num_labels=2)),
    ("HS201", subject(config=ConfigFacts(7, NAMED))),
    ("HS202", subject(model=model(labels_are_placeholders=True))),
    *(("HS203", subject(config=config)) for config in CONTRADICTIONS),
    ("HS204", subject(config=ConfigFacts(problem_type="ordinal"))),
    ("HS204", subject(model=model(num_labels=1, reads_problem_type=False))),
    ("HS204", subject(INFERENCE, model=model(num_labels=1, reads_problem_type=False))),
    ("HS205", subject(model=model(num_labels=1, loss="MSELoss"))),
    ("HS205", subject(model=model(num_labels=1, loss="MSELoss", reads_problem_type=False))),
    ("HS206", subject(model=model(reads_problem_type=False), config=ConfigFacts(problem_type="regression"))),
    ("HS301", subject(head=head(kind=LAST_REAL), built=BuiltFacts(3, 100, None))),
    ("HS302", subject(built=BuiltFacts(3, 100, 100))),
    ("HS303", subject(tokenizer=LEFT)),
    ("HS303", subject(head=LAST, tokenizer=RIGHT)),
    ("HS304", subject(head=head(kind=EOS), tokenizer=TokenizerFacts("right", "</s>", "</s>"))),
    ("HS305", subject(head=PADDED_RIGHT)),
    ("HS305", subject(head=PADDED_LEFT, tokenizer=LEFT)),
    *(("HS306", with_effect(reach)) for reach in AffectedTexts),
    ("HS307", subject(**tokenized(TokenId("", "w", 100, "tokenizer.json", True)))),
    ("HS308", subject(**TOO_LONG)),
    ("HS310", subject(head=head(kind=EOS), **tokenized(PAD, appends_eos=False))),
    ("HS401", subject(built=LANGUAGE, head=ALL_NEW)),
    ("HS401", subject(built=LANGUAGE, head=ALL_NEW, checkpoint=checkpoint(architectures=()))),
    ("HS402", subject(head=head(parameter(CLASSIFIER, dtype="int8")))),
    ("HS403", subject(config=ConfigFacts(has_auto_map=True))),
    ("HS404", subject(head=NEW_CLASSIFIER, model=quantized(skips_head=False))),
    ("HS404", subject(head=NEW_CLASSIFIER, model=quantized(skips_head=False, skipped=("lm_head",)))),
    *(("HS501", subject(values=(values(CLASSIFIER),), trial=trial)) for trial, _ in TRIALS),
    ("HS501", subject(values=(values(BIAS, nan=1),), trial=HEALTHY)),
    ("HS502", subject(health=health())),
    ("HS502", subject(health=health(basis=HealthBasis.DRAW))),
    ("HS502", subject(health=health(), head=head(parameter(CLASSIFIER, UNKNOWN)))),
    ("HS601", subject(live=LiveFacts((CLASSIFIER,)))),
    ("HS601", subject(live=LiveFacts((CLASSIFIER, BIAS), modules_to_save=("classifier",)))),
    ("HS602", subject(live=LiveFacts((), (CLASSIFIER,)))),
    ("HS602", subject(live=LiveFacts((), (CLASSIFIER, BIAS)))),
    ("HS801", subject(weights=weights(mismatched=(EMPTY,), parameters=BASE))),
    ("HS802", wrapped()),
)


def test_what_the_rules_say_is_as_the_golden_file_shows(same_as_golden: Callable[[Path, str], bool]) -> None:
    shown = [
        f"{item.id} {item.severity}, {about.profile}\n{item.message}\n{item.remedy}\n"
        for rule_id, about in SAID
        for item in findings(rule_id, about)
    ]
    assert len(shown) == len(SAID)
    assert same_as_golden(Path(__file__).parent / "golden" / "rules.txt", "\n".join(shown))
