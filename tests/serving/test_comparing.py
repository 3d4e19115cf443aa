"""What is said of an engine's scores, for engines whose scores are made of known logits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

from headscope.core.facts.heads.head import AS_IT_IS
from headscope.shared.serving.answers import Answer, Answers
from headscope.shared.serving.comparing import AskAgain, ReferenceScores, VariantScores, compare_scores
from headscope.shared.serving.explaining import FORWARD_BY_NAME, Scores
from headscope.shared.serving.measures.aligning import match_names
from headscope.shared.serving.measures.class_changes import wilson_interval
from headscope.shared.serving.served_facts import ServedScores

LABELS = ("no", "maybe", "yes")
OWN = np.random.default_rng(5).normal(size=(40, 3)) * 2
OTHER = np.random.default_rng(6).normal(size=(40, 3)) * 2


def softmax(logits: Scores) -> Scores:
    powers = np.exp(logits)
    return np.asarray(powers / powers.sum(1, keepdims=True))


def answered(scores: Scores, labels: Sequence[str] = LABELS, *, is_raw: bool = False) -> Answers:
    return Answers(
        "engine", "1", "protocol", is_raw, tuple(Answer(tuple(row), tuple(labels)) for row in scores.tolist())
    )


def compared(
    answers: Answers,
    activation: str = "softmax",
    *,
    own: Scores = OWN,
    labels: Sequence[str] = LABELS,
    label2id: Mapping[str, int] | None = None,
    half: Scores | None = None,
    again: AskAgain | None = None,
    **variants: Scores,
) -> ServedScores:
    """The comparison with a checkpoint whose logits are `own`, and OTHER without its pooler."""
    known = {AS_IT_IS: own, "without the pooler": OTHER[:, : own.shape[1]], **variants}
    found = {name: VariantScores(logits, f"formula of {name}") for name, logits in known.items()}
    rounded = {"float16": half}.get
    return compare_scores(
        ReferenceScores(own, labels, activation, rounded, lambda: found, label2id or {}), answers, again
    )


def top(scores: Scores) -> Answers:
    """The answers of a server that gives only the class with the highest score."""
    rows = [Answer((float(row.max()),), (LABELS[row.argmax()],), is_partial=True) for row in scores]
    return Answers("engine", "1", "protocol", False, tuple(rows))


@pytest.mark.parametrize(
    "answers",
    [
        answered(softmax(OWN)),
        answered(softmax(OWN)[:, [2, 0, 1]], ["yes", "no", "maybe"]),
        answered(softmax(OWN), ["LABEL_0", "LABEL_1", "LABEL_2"]),
        answered(softmax(OWN), []),
        answered(OWN, is_raw=True),
    ],
    ids=["named", "in another order, by name", "placeholders", "without names", "logits"],
)
def test_equal_scores_are_the_same(answers: Answers) -> None:
    found = compared(answers)
    assert (found.same, found.explanation, found.precision, found.reason) == (True, None, "float32", "")
    assert found.class_changes is not None and found.class_changes.share == 0 < found.class_changes.high < 0.1


def test_another_head_is_named() -> None:
    found = compared(answered(OTHER, is_raw=True))
    assert found.same is False and found.explanation is not None
    assert (found.explanation.variant, found.explanation.activation) == ("without the pooler", "none")
    assert found.explanation.formula == "formula of without the pooler"
    changed = float((OWN.argmax(1) != OTHER.argmax(1)).mean())
    assert found.class_changes is not None and found.class_changes.share == changed > 0
    assert found.max_difference == pytest.approx(np.abs(OWN - OTHER).max())


def test_another_function_is_named() -> None:
    found = compared(answered(1 / (1 + np.exp(-OWN))))
    assert found.same is False and found.explanation is not None
    assert (found.explanation.variant, found.explanation.activation) == (AS_IT_IS, "sigmoid")
    assert found.class_changes is not None and found.class_changes.share == 0


def test_names_that_are_exchanged_are_another_order() -> None:
    found = compared(answered(softmax(OWN), ["maybe", "no", "yes"]))
    assert found.same is False and found.explanation is not None and found.explanation.order == (1, 0, 2)


@pytest.mark.parametrize(
    ("labels", "names", "label2id"),
    [
        (("red", "green", "blue"), ["RED", "GREEN", "BLUE"], {}),
        (("very good", "so-so", "bad"), ["Very_Good", "so_so", "BAD"], {}),
        (("rot", "gruen", "blau"), ["red", "green", "blue"], {"red": 0, "green": 1, "blue": 2}),
        (("red", "green", "blue"), ["0", "1", "2"], {}),
        (("red", "green", "blue"), ["label_0", "label_1", "label_2"], {}),
    ],
)
def test_names_are_matched_without_case_and_through_the_maps(
    labels: Sequence[str], names: list[str], label2id: dict[str, int]
) -> None:
    order = sorted(range(3), key=lambda at: names[at])  # as `ask` gives them
    given = answered(softmax(OWN)[:, order], [names[at] for at in order])
    found = compared(given, labels=labels, label2id=label2id)
    assert (found.same, found.explanation) == (True, None), found
    assert found.class_changes is not None and found.class_changes.share == 0


@pytest.mark.parametrize(
    ("labels", "names", "label2id"),
    [
        (LABELS, ["nein", "vielleicht", "ja"], {}),
        (LABELS, ["no", "maybe", "JA"], {}),
        (LABELS, ["LABEL_1", "LABEL_2", "LABEL_3"], {}),
        (("a", "b", "c"), ["RED", "GREEN", "BLUE"], {"red": 0, "green": 1, "Green": 2}),
        (("Red", "red", "blue"), ["RED", "Red", "BLUE"], {}),
        (("red", "green", "blue"), ["RED", "GREEN", "BLUE"], {"red": 2, "green": 1, "blue": 0}),
    ],
)
@pytest.mark.parametrize("is_equal", [True, False])
def test_names_that_do_not_match_give_no_order_and_no_changes_of_class(
    labels: Sequence[str], names: list[str], label2id: dict[str, int], is_equal: bool
) -> None:
    order = sorted(range(3), key=lambda at: names[at])
    given = softmax(OWN if is_equal else OTHER)[:, order]
    found = compared(answered(given, [names[at] for at in order]), labels=labels, label2id=label2id)
    assert found.same is (None if is_equal else False)
    assert (found.explanation, found.class_changes) == (None, None)
    assert "names the classes" in found.reason and ("equal" in found.reason) is is_equal


def test_other_names_in_an_order_that_the_server_states_are_compared_by_index() -> None:
    given = replace(answered(softmax(OWN), ["nein", "vielleicht", "ja"]), is_indexed=True)
    found = compared(given)
    assert found.same is True
    assert "by their index" in found.notes[0]


def test_the_top_class_alone_can_show_a_difference_but_not_that_scores_are_equal() -> None:
    equal, other = compared(top(softmax(OWN))), compared(top(softmax(OTHER)))
    assert (equal.same, other.same, other.explanation) == (None, False, None)
    assert "only the class with the highest score" in equal.reason and "equal" in equal.reason
    assert equal.class_changes is not None and equal.class_changes.share == 0
    assert other.class_changes is not None
    assert other.class_changes.share == float((OWN.argmax(1) != OTHER.argmax(1)).mean())
    renamed = replace(top(softmax(OWN)), items=tuple(Answer((0.5,), ("ja",), True) for _ in OWN))
    assert compared(renamed).same is None


def _asked_again(*scores: Scores) -> AskAgain:
    rounds = iter(scores)
    return lambda places: answered(next(rounds)[list(places)])


def test_a_server_that_answers_otherwise_when_asked_again_has_no_other_explanation() -> None:
    right, noise = softmax(OWN), np.random.default_rng(3).normal(size=OWN.shape) * 0.2
    shuffled = compared(answered(right[::-1]), half=HALF, again=_asked_again(right, right))
    assert shuffled.same is False and "alone, where they are the checkpoint's" in shuffled.reason
    noisy = compared(answered(right + noise), half=HALF, again=_asked_again(right, right - noise))
    assert noisy.same is False and "from one request to the next" in noisy.reason
    slight = noise * 1e-3
    slightly = compared(answered(right + slight), half=HALF, again=_asked_again(right, right - slight))
    assert slightly.same is None and "from one request to the next" in slightly.reason
    assert compared(answered(right), half=HALF, again=_asked_again()).same is True


@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
def test_a_function_that_is_applied_twice_is_named(name: str) -> None:
    function = FORWARD_BY_NAME[name]
    found = compared(answered(function(function(OWN))), activation=name)
    assert found.explanation is not None and found.explanation.activation == f"{name} of {name}"


def test_classes_of_a_model_with_several_labels_are_those_above_one_half() -> None:
    found = compared(answered(1 / (1 + np.exp(-OTHER))), activation="sigmoid")
    assert found.class_changes is not None
    assert found.class_changes.share == float(((OWN > 0) != (OTHER > 0)).any(1).mean())


def test_what_no_variant_gives_has_no_explanation() -> None:
    found = compared(answered(softmax(OWN + OTHER)))
    assert (found.same, found.explanation) == (False, None) and "no explanation" in found.reason


HALF = OWN * (1 + np.random.default_rng(7).uniform(-5e-4, 5e-4, OWN.shape))
ROUNDED = OWN * (1 + np.random.default_rng(8).uniform(-5e-4, 5e-4, OWN.shape))


NEAR_HALF = HALF + np.random.default_rng(9).uniform(-1e-4, 1e-4, OWN.shape)
"""Scores of another implementation that rounds where the checkpoint's own model does."""


def test_half_precision_counts_as_the_same_only_where_scores_are_off_as_the_models_own_are() -> None:
    assert compared(answered(ROUNDED, is_raw=True)).same is False
    found = compared(answered(NEAR_HALF, is_raw=True), half=HALF)
    assert (found.same, found.precision, found.notes) == (True, "float16", ())
    assert compared(answered(OWN + 10 * (ROUNDED - OWN), is_raw=True), half=HALF).same is False


@pytest.mark.parametrize(
    "given",
    [
        ROUNDED,
        OWN + np.random.default_rng(10).normal(size=3) * 1e-3,
        OWN + np.tanh(OTHER) * 1e-3,
        OWN + np.random.default_rng(11).normal(size=OWN.shape) * 5e-4,
    ],
    ids=["rounded elsewhere", "another bias", "another layer", "noise"],
)
def test_small_differences_of_another_kind_are_never_green(given: Scores) -> None:
    for stated in ("", "float16"):
        found = compared(replace(answered(given, is_raw=True), dtype=stated), half=HALF)
        assert found.same is None and found.explanation is None
        assert "float16" in found.reason and "slightly different weights" in found.reason
    assert compared(replace(answered(given, is_raw=True), dtype="float32"), half=HALF).same is False


def test_variants_that_half_precision_cannot_tell_apart_are_named() -> None:
    found = compared(answered(NEAR_HALF, is_raw=True), half=HALF, nearly=OWN * (1 + 2e-4))
    assert found.same is True
    [note] = found.notes
    assert note.startswith("float16 ") and note.endswith(": nearly")


def test_a_variant_is_named_from_scores_in_half_precision() -> None:
    given = answered(OTHER * (1 + (HALF / OWN - 1)), is_raw=True)
    unstated = compared(given, half=HALF)
    assert (unstated.same, unstated.explanation) == (False, None) and "--dtype float16" in unstated.reason
    found = compared(replace(given, dtype="float16"), half=HALF)
    assert found.explanation is not None and found.precision == "float16"
    assert (found.explanation.variant, found.explanation.activation) == ("without the pooler", "none")


def test_variants_of_the_model_are_computed_only_where_scores_differ() -> None:
    def never(*_: object) -> None:
        raise AssertionError

    found = compare_scores(ReferenceScores(OWN, LABELS, "softmax", never, never), answered(softmax(OWN)))
    assert found.same is True


def test_a_head_without_an_expression_is_said_to_have_none() -> None:
    reference = ReferenceScores(OWN, LABELS, "softmax", lambda name: None, lambda: {AS_IT_IS: VariantScores(OWN)})
    assert "expression" in compare_scores(reference, answered(OTHER, is_raw=True)).reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda answers: replace(answers, items=answers.items[1:]), "39 answers to 40 texts"),
        (lambda answers: answered(softmax(OWN)[:, :2], []), "the engine gave 2 scores for a text"),
        (lambda answers: answered(np.where(OWN > 3, np.inf, OWN)), "scores that are not finite"),
        (lambda answers: answered(np.where(OWN > 3, np.nan, OWN)), "scores that are not finite"),
        (
            lambda answers: replace(answers, items=tuple(replace(item, is_partial=True) for item in answers.items)),
            "the scores of some classes only",
        ),
    ],
)
def test_what_cannot_be_compared_is_not_determined(change: Callable[[Answers], Answers], reason: str) -> None:
    found = compared(change(answered(softmax(OWN))))
    assert found.same is None and reason in found.reason
    assert (found.max_difference, found.class_changes) == (None, None)


def test_an_unknown_function_is_not_determined() -> None:
    found = compared(answered(softmax(OWN)), activation="not determined")
    assert found.same is None and "on the scores" in found.reason


def test_equal_scores_that_are_the_same_for_all_texts_show_nothing() -> None:
    constant = OWN[:1].repeat(40, 0)
    found = compared(answered(softmax(constant)), own=constant)
    assert found.same is None and "hardly differ" in found.reason


@pytest.mark.parametrize(("count", "whole"), [(0, 1), (1, 1), (0, 40), (3, 40), (20, 40), (40, 40), (7, 1000)])
def test_the_interval_is_wilsons(count: int, whole: int) -> None:
    expected = binomtest(count, whole).proportion_ci(method="wilson")
    found = wilson_interval(count, whole)
    assert (found.share, found.low, found.high) == pytest.approx((count / whole, expected.low, expected.high), abs=1e-6)


def test_a_factor_that_half_precision_would_hide_is_named() -> None:
    found = compared(answered(OWN * (1 - 4e-4), is_raw=True), half=HALF)
    assert (found.same, found.precision) == (False, "float32")
    assert found.explanation is not None and found.explanation.scale == pytest.approx(1 - 4e-4)


@pytest.mark.parametrize("classes", [1, 2])
def test_scores_at_the_ends_of_a_function_do_not_show_that_logits_are_equal(classes: int) -> None:
    function = "softmax" if classes > 1 else "sigmoid"
    forward = FORWARD_BY_NAME[function]
    logits = np.where(OWN[:, :classes] > 0, 30.0, -30.0)
    logits[0] = 0.4
    given = forward(2 * logits - logits[0] * (np.arange(40) == 0)[:, None])
    found = compared(answered(given, ()), function, own=logits, labels=LABELS[:classes])
    assert found.same is None and "close to 0 or 1" in found.reason and "--logits" in found.reason
    raw = answered(logits, (), is_raw=True)
    assert compared(raw, function, own=logits, labels=LABELS[:classes]).same is True


def test_a_few_texts_that_are_off_alike_by_chance_are_not_rounding() -> None:
    noise = np.random.default_rng(4).normal(size=OWN.shape) * 1e-6
    half, given = OWN + noise, OWN - noise
    half[7] += 2e-3
    given[7] += [2.2e-3, 1.9e-3, 1.8e-3]
    half[8] -= 2e-3
    given[8] -= [2.2e-3, 1.9e-3, 1.8e-3]
    found = compared(answered(given, is_raw=True), half=half)
    assert found.same is None


def test_an_engine_that_was_run_is_not_equal_where_scores_hardly_differ() -> None:
    logits, noise = OWN[:1] + OWN * 1e-3, np.random.default_rng(4).normal(size=OWN.shape) * 1e-3
    given = replace(answered(logits + noise[::-1]), dtype="float16", is_run=True)
    found = compared(given, "none", own=logits, half=logits + noise)
    assert found.same is None and "hardly differ" in found.reason


def test_texts_that_were_alone_in_their_requests_are_not_said_to_have_been_with_others() -> None:
    right, first = softmax(OWN), answered(softmax(OWN)[::-1])
    alone = replace(first, items=tuple(replace(item, is_alone=True) for item in first.items))
    found = compared(alone, again=_asked_again(right, right))
    assert found.same is False and "from one request to the next" in found.reason


def test_servers_that_take_turns_are_not_taken_for_ones_that_are_wrong_in_batches() -> None:
    count = iter(range(100))
    servers = softmax(OWN), softmax(OTHER)

    def again(places: Sequence[int]) -> Answers:
        return answered(np.stack([servers[next(count) % 2][place] for place in places]))

    found = compared(answered(np.where(np.arange(40)[:, None] < 16, *servers)), again=again)
    assert found.same is False and "from one request to the next" in found.reason


def test_answers_of_another_form_are_not_compared_with_the_first() -> None:
    found = compared(answered(softmax(OWN)[::-1]), again=lambda places: top(softmax(OWN)[list(places)]))
    assert found.same is False and "another form" in found.reason


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (("1", "2"), ("negative", "neutral", "positive")),
        (("LABEL_1", "LABEL_2"), ("negative", "neutral", "positive")),
        (("-1", "0"), ("negative", "neutral")),
    ],
)
def test_numbers_that_may_be_counted_otherwise_are_no_index(names: Sequence[str], labels: Sequence[str]) -> None:
    assert match_names(names, labels, {}) is None


def test_one_score_is_all_that_a_model_of_one_class_has() -> None:
    items = tuple(Answer((float(row[0]),), ("LABEL_0",), True) for row in OWN)
    given = Answers("engine", "1", "protocol", True, items)
    assert compared(given, "sigmoid", own=OWN[:, :1], labels=("class 0",)).same is True
