"""The rules HS1xx, HS6xx and HS8xx on facts written by hand: weights, adapters, states, training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headscope.checks.facts import LiveFacts
from headscope.checks.rules import judge
from headscope.checks.rules.rule import NotKnown, classifier_of
from headscope.checks.rules.selection import select
from headscope.core.facts.stored.checkpoint import ScoreHead
from headscope.core.facts.stored.unplaced import UnplacedReason
from headscope.core.facts.stored.weights import DroppedGroup
from headscope.core.facts.verdict import Verdict
from headscope.facts import (
    AdapterFault,
    AdapterFaultKind,
    Mismatch,
    Task,
    TensorHeader,
    UnusedGroup,
    UnusedModule,
)
from tests.checks.rules.subjects import (
    ALL_NEW,
    BASE,
    BIAS,
    CLASSIFIER,
    DENSE,
    EMPTY,
    ERROR,
    FOUND,
    IDLE,
    INFERENCE,
    MEMORY,
    MISMATCHED,
    NEW,
    NEW_CLASSIFIER,
    NEW_DENSE,
    NOTE,
    OTHER_SHAPE,
    OUTSIDE,
    SILENT,
    STATE,
    STATISTICS,
    TRAINED_SINCE,
    TRAINING,
    UNKNOWN,
    WARNING,
    WRAPPED,
    ZEROS,
    adapter,
    checkpoint,
    fault,
    findings,
    head,
    leftovers,
    missing,
    model,
    origin,
    parameter,
    severities,
    stage,
    subject,
    weights,
    wrapped,
)


def test_the_classifier_is_the_matrix_of_the_last_stage_with_live_parameters() -> None:
    found = classifier_of(subject())
    assert found.name == CLASSIFIER
    found = classifier_of(subject(head=head(parameter(DENSE), parameter(CLASSIFIER, live=False))))
    assert found.name == DENSE
    assert classifier_of(subject(head=head(parameter(BIAS, live=False)))) is None


@pytest.mark.parametrize("identifier", ["HS101", "HS102", "HS103", "HS104", "HS105", "HS301", "HS303", "HS402"])
def test_without_a_head_path_nothing_is_decided(identifier: str) -> None:
    with pytest.raises(NotKnown, match="head path"):
        findings(identifier, subject(head=None))


@pytest.mark.parametrize("identifier", ["HS102", "HS103", "HS104"])
def test_an_unknown_status_of_a_live_weight_is_not_decided(identifier: str) -> None:
    with pytest.raises(NotKnown, match=BIAS):
        findings(identifier, subject(head=head(parameter(CLASSIFIER), parameter(BIAS, UNKNOWN))))
    beside = subject(head=head(parameter(CLASSIFIER), parameter(BIAS, UNKNOWN, live=False)))
    assert findings(identifier, beside) == []


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


def test_a_new_head_is_a_note_before_training_and_an_error_before_use() -> None:
    assert severities("HS102", head=ALL_NEW) == ([NOTE], [ERROR])
    assert severities("HS103", head=ALL_NEW) == SILENT
    assert severities("HS102", head=ALL_NEW, adapter=adapter()) == SILENT
    assert findings("HS102", subject(head=ALL_NEW))[0].parameters == (CLASSIFIER, BIAS)
    assert severities("HS102", head=head(parameter(CLASSIFIER, live=False))) == SILENT


@pytest.mark.parametrize(("identifier", "made"), [("HS102", ALL_NEW), ("HS103", NEW_CLASSIFIER)])
def test_a_classifier_that_was_saved_and_is_gone_was_lost(identifier: str, made: Any) -> None:
    about = subject(head=made)
    saved = replace(about.report.checkpoint, architectures=(about.report.model.class_name,))
    (found,) = findings(identifier, subject(head=made, checkpoint=saved))
    assert found.severity is WARNING and "its classifier was lost" in found.message
    assert found.remedy.startswith("Use the save that holds it")
    (found,) = findings(identifier, subject(INFERENCE, head=made, checkpoint=saved))
    assert found.severity is ERROR and found.remedy.startswith("Use the save that holds it")
    (found,) = findings("HS103", subject(head=NEW_DENSE, checkpoint=saved))
    assert "was lost" not in found.message
    memory = replace(MEMORY, architectures=saved.architectures)
    for found in findings(identifier, subject(head=made, checkpoint=memory)):
        assert "was lost" not in found.message


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
    dead = replace(dead, not_live=(DENSE,))
    assert severities("HS104", head=dead, weights=off) == ([ERROR], [ERROR])
    assert severities("HS104", head=dead, weights=off, checkpoint=MEMORY) == ([NOTE], [NOTE])
    assert severities("HS104", **IDLE, checkpoint=MEMORY) == ([NOTE], [NOTE])
    assert severities("HS104", head=OTHER_SHAPE, checkpoint=MEMORY) == ([ERROR], [ERROR])


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
    two_saves = checkpoint(unread=("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"))
    assert severities("HS106", checkpoint=two_saves) == ([WARNING], [WARNING])


@pytest.mark.parametrize(
    ("keys", "is_weight"),
    [
        (("old.parametrizations.weight.original",), False),
        (("old.weight_v", "old.weight_g"), False),
        (("old.weight_orig",), False),
        (("old.weight_v",), True),
        (("old.original",), True),
    ],
)
def test_what_a_weight_is_computed_from_is_not_to_be_renamed(keys: tuple[str, ...], is_weight: bool) -> None:
    found = replace(FOUND, key=keys[0])
    beside = [TensorHeader(key, "float32", (3, 1)) for key in keys[1:]]
    new = head(parameter(DENSE), parameter(CLASSIFIER, NEW))
    (finding,) = findings("HS106", subject(head=new, weights=leftovers(found, *beside)))
    assert ("Don't rename the tensor" not in finding.remedy) == is_weight


OLD = TensorHeader("old.weight", "float32", (3, 8)), TensorHeader("old.bias", "float32", (3,))
RENAMED = {"old.weight": CLASSIFIER, "old.bias": BIAS}
CONV = TensorHeader("conv.weight", "float32", (3, 8, 3))


@pytest.mark.parametrize(
    ("tensors", "changes", "renamed"),
    [
        (OLD, {}, RENAMED),
        (OLD[:1], {}, {}),
        ((OLD[0], replace(OLD[1], shape=(4,))), {}, {}),
        ((*OLD, FOUND), {}, {}),
        ((*OLD, CONV), {}, RENAMED),
        ((*OLD, replace(CONV, key="old.conv.weight")), {}, {}),
        ((*OLD, replace(CONV, key="old.scale", shape=(1,))), {}, RENAMED),
        (OLD, {"wanted_num_labels": 3}, {}),
        (OLD, {"wanted_labels": ("a", "b", "c")}, {}),
        (OLD, {"checkpoint": checkpoint(architectures=("Other",))}, {}),
        (OLD, {"weights": leftovers(*OLD, mismatched=(EMPTY,))}, {}),
    ],
)
def test_a_classifier_is_renamed_where_nothing_else_is_lacking_or_left_out(
    tensors: tuple[TensorHeader, ...], changes: dict[str, Any], renamed: dict[str, str]
) -> None:
    saved = checkpoint(architectures=(model().class_name,))
    about: dict[str, Any] = {"checkpoint": saved, "weights": leftovers(*tensors), "folder": "it"} | changes
    (found,) = findings("HS106", subject(head=NEW_CLASSIFIER, **about))
    assert [line for line in found.code.splitlines() if line.startswith("state[")] == [
        f"state[{new!r}] = state.pop({old!r})" for old, new in renamed.items()
    ]


def test_an_adapter_that_does_not_carry_the_head() -> None:
    assert severities("HS107", adapter=adapter()) == SILENT
    lacking = adapter(not_carried=(CLASSIFIER,), modules_to_save=("classifier",))
    assert severities("HS107", adapter=lacking) == ([ERROR], [ERROR])
    (found,) = findings("HS107", subject(adapter=lacking))
    assert (found.parameters, "modules_to_save=['classifier']" in found.remedy) == ((CLASSIFIER,), True)
    (found,) = findings("HS107", subject(adapter=adapter(promised=("score",))))
    assert (found.severity, found.parameters) == (ERROR, ("score",))
    other = adapter(own_class="BertModel", not_carried=(CLASSIFIER,))
    (found,) = findings("HS107", subject(adapter=other))
    assert found.parameters == (CLASSIFIER,) and "it holds no classifier" in found.message
    assert severities("HS107", adapter=replace(other, not_carried=())) == SILENT
    (found,) = findings("HS107", replace(missing(1), report=replace(missing(1).report, adapter=other, head=None)))
    assert found.parameters == OUTSIDE[:1]
    untraced = replace(missing(1).report, adapter=adapter(), head=None)
    assert findings("HS107", replace(missing(1), report=untraced)) == []  # PEFT gives all that it promised


def test_an_adapter_that_fits_after_a_resize_is_a_warning() -> None:
    assert severities("HS109") == severities("HS109", adapter=adapter()) == SILENT
    for changes in ({"load_options": ("num_labels=5",)}, {"word_rows": 140}):
        assert severities("HS109", adapter=adapter(**changes)) == ([WARNING], [WARNING])
        both = adapter(**changes, faults=(fault(AdapterFaultKind.SHAPE),))
        assert severities("HS109", adapter=both) == ([ERROR], [ERROR])


@pytest.mark.parametrize("kind", AdapterFaultKind)
def test_an_adapter_that_does_not_fit(kind: AdapterFaultKind) -> None:
    (found,) = findings("HS109", subject(adapter=adapter(faults=(fault(kind),))))
    assert (found.severity, found.parameters) == (ERROR, ("x",))


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


def test_a_head_that_was_new_at_load_is_not_called_random_of_a_model_in_memory() -> None:
    moved = replace(ZEROS, zeros=2)
    (found,) = findings("HS102", subject(INFERENCE, head=ALL_NEW, checkpoint=MEMORY, values=(ZEROS,)))
    assert (found.severity, found.parameters) == (ERROR, (CLASSIFIER, BIAS))
    for values in ((moved,), (), None):
        with pytest.raises(NotKnown, match="since the load"):
            findings("HS102", subject(INFERENCE, head=ALL_NEW, checkpoint=MEMORY, values=values))
        (found,) = findings("HS102", subject(TRAINING, head=ALL_NEW, checkpoint=MEMORY, values=values))
        assert found.severity is NOTE


def test_buffers_that_no_load_gave_may_have_been_filled_by_a_training_since() -> None:
    """As a batch norm in train mode updates its statistics with each batch."""
    about = subject(head=head(buffers=STATISTICS), checkpoint=MEMORY)
    assert [item.severity for item in findings("HS103", about)] == [WARNING]
    result = judge(replace(about, profile=INFERENCE), select(("HS103",)))
    ((found,), (gap,)) = result.findings, result.not_determined
    assert (result.verdict, found.severity) == (Verdict.NOT_DETERMINED, WARNING)
    assert "whether they were filled since the load" in found.message
    assert "whether the buffers were filled since the load: bn.running_mean" in gap.reason
    # Only of a parameter do zeros show that no training moved it.
    zero = head(buffers=(replace(STATISTICS[0], name="bn.bias"),))
    with pytest.raises(NotKnown, match="filled since the load"):
        findings("HS103", subject(INFERENCE, head=zero, checkpoint=MEMORY, values=(replace(ZEROS, name="bn.bias"),)))


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
    two = weights(parameters=tuple(origin(name, status=UNKNOWN) for name in ("base.x", "base.y")))
    with pytest.raises(NotKnown, match=r"base\.y"):
        findings("HS101", subject(TRAINING, weights=two, live=resized))


LSTM = TensorHeader("lstm.weight_ih_l0", "float32", (32, 8)), TensorHeader("lstm.weight_hh_l0", "float32", (32, 8))


def test_weights_without_a_place_are_an_error_for_inference() -> None:
    assert severities("HS112", weights=leftovers(*LSTM)) == ([WARNING], [ERROR])
    (found,) = findings("HS112", subject(weights=leftovers(*LSTM)))
    assert found.parameters == ("lstm.weight_ih_l0", "lstm.weight_hh_l0")
    assert "lstm.* (2 tensors, an LSTM over the positions, 8 -> 8)" in found.message
    keys = tuple(item.key for item in LSTM)
    for reason in UnplacedReason:
        group = UnusedGroup(keys, "what it is", reason=reason)
        assert severities("HS112", weights=leftovers(*LSTM, unused_groups=(group,))) == SILENT
    dropped = (DroppedGroup(keys),)
    assert severities("HS112", weights=leftovers(*LSTM, dropped=dropped)) == SILENT
    assert severities("HS111", weights=leftovers(*LSTM, dropped=dropped)) == ([WARNING], [ERROR])


def test_weights_without_a_place_are_told_once() -> None:
    new = head(parameter(DENSE), parameter(CLASSIFIER, NEW))
    assert severities("HS112", head=new, weights=leftovers(FOUND)) == SILENT  # HS106 names it
    value = replace(checkpoint(), score_heads=(ScoreHead("v_head", 1, "v_head.weight", ("v_head.weight",)),))
    beside = leftovers(TensorHeader("v_head.weight", "float32", (1, 8)))
    assert severities("HS112", checkpoint=value, weights=beside) == SILENT  # HS406 names it


def test_a_class_of_ones_own_is_not_determined_for_inference() -> None:
    own = replace(subject().report.model, saved_class="BertLSTM", is_saved_by_own_code=True)
    assert [item.severity for item in findings("HS113", subject(model=own))] == [NOTE]
    with pytest.raises(NotKnown, match="BertLSTM"):
        findings("HS113", subject(INFERENCE, model=own))
    assert severities("HS113", model=replace(own, is_saved_by_own_code=False)) == SILENT
