"""The head in one sentence: what the formula and the loss say, and nothing where they do not say it."""

from dataclasses import replace
from typing import Any

import pytest
from reports import a_head, bert, gpt2, roberta, with_head, with_model

from headscope.core.words.plain_words import plain_words
from headscope.facts import Gap, GapTopic, PoolingKind, Report, Shape, Task

BATCH = "batch"


def test_a_linear_layer_under_softmax_is_a_logistic_regression_on_its_input() -> None:
    start = "With integer labels, a 3-class softmax regression on "
    assert plain_words(bert()) == f"{start}tanh(bert.pooler.dense(h[[CLS]]))"
    assert plain_words(roberta()) == f"{start}tanh(dense(h[<s>]))"
    assert plain_words(gpt2()) == f"{start}h[last non-pad]"  # a position that is picked after the layer


@pytest.mark.parametrize(
    ("loss", "activation", "number", "words"),
    [
        ("BCEWithLogitsLoss", "sigmoid", 3, "Multi-label: 3 sigmoids (one-vs-rest)"),
        ("MSELoss", "none", 3, "3 linear regressions"),
        ("none", "none", 3, ""),
        ("not determined", "not determined", 3, ""),
    ],
)
def test_the_loss_decides_what_the_layer_is_called(loss: str, activation: str, number: int, words: str) -> None:
    told = plain_words(with_model(roberta(), loss=loss, activation=activation, num_labels=number))
    assert told == (f"{words} on tanh(dense(h[<s>]))" if words else "")


def test_scores_of_each_token_are_a_regression_for_each_token() -> None:
    report = with_model(roberta(), task=Task.TOKEN_CLASSIFICATION, reads_problem_type=False)
    each = with_head(report, features="h", pooling=replace(report.head.pooling, kind=PoolingKind.NONE))
    assert plain_words(each) == "For each token, a 3-class softmax regression on h"


@pytest.mark.parametrize(
    ("problem", "reads", "words"),
    [
        (None, True, "With integer labels, a 3-class softmax regression"),
        ("single_label_classification", True, "A 3-class softmax regression"),
        (None, False, "A 3-class softmax regression"),
        (None, None, "A 3-class softmax regression"),
    ],
)
def test_a_loss_that_the_labels_choose_is_named_with_its_condition(
    problem: str | None, reads: bool | None, words: str
) -> None:
    told = plain_words(with_model(roberta(), problem_type=problem, reads_problem_type=reads))
    assert told == f"{words} on tanh(dense(h[<s>]))"


def with_scores(scores: int, **changes: Any) -> Report:
    """RoBERTa's head with so many scores from its last layer."""
    *before, weight, bias = a_head(roberta()).parameters
    wide = (*before, replace(weight, shape=(scores, 768)), bias)
    return with_head(with_model(roberta(), **changes), parameters=wide)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (2, "a 2"), (8, "an 8"), (11, "an 11"), (18, "an 18"), (80, "an 80"), (100, "a 100"), (110, "a 110"),
        (1100, "a 1,100"), (11_000, "an 11,000"),
    ],
)  # fmt: skip
def test_the_number_of_classes_has_its_article(number: int, words: str) -> None:
    told = plain_words(with_scores(number, num_labels=number))
    kind = "logistic" if number == 2 else "softmax"
    assert told.startswith(f"With integer labels, {words}-class {kind} regression on")


@pytest.mark.parametrize(
    ("task", "scores", "words"),
    [
        (Task.MULTIPLE_CHOICE, 1, "A linear score for each choice on {}, softmax over the choices"),
        (Task.QUESTION_ANSWERING, 2, "Two linear scores for each token (start, end) on {}, softmax over the tokens"),
    ],
)
def test_a_softmax_over_positions_or_choices_is_no_regression_on_classes(task: Task, scores: int, words: str) -> None:
    assert plain_words(with_scores(scores, task=task)) == words.format("tanh(dense(h[<s>]))")
    assert plain_words(with_scores(3, task=task)) == ""
    assert plain_words(with_scores(scores, task=task, loss="none", activation="none")) == ""


def test_starts_and_ends_are_parted_after_the_layer_and_classes_are_not() -> None:
    stages = a_head(roberta()).stages
    parted = (*stages, replace(stages[-1], operation="split", parameters=()))
    answers = with_scores(2, task=Task.QUESTION_ANSWERING)
    assert plain_words(with_head(answers, stages=parted)).startswith("Two linear scores")
    assert plain_words(with_head(roberta(), stages=parted)) == ""


@pytest.mark.parametrize("shapes", [((BATCH, 3), (BATCH, 3)), ((BATCH, "sequence", 3), (BATCH, "sequence"))])
def test_a_pick_among_the_scores_themselves_takes_the_name_away(shapes: tuple[Shape, Shape]) -> None:
    linear, index = a_head(gpt2()).stages
    picked = replace(index, input_shapes=(shapes[0],), output_shape=shapes[1])
    assert plain_words(with_head(gpt2(), stages=(linear, picked))) == ""


def test_a_formula_that_does_not_end_in_the_last_layer_gets_no_name() -> None:
    assert plain_words(with_head(roberta(), features="")) == ""


def test_what_is_not_determined_gets_no_name() -> None:
    for topic in set(GapTopic) - {GapTopic.CHECKPOINT}:
        assert plain_words(replace(roberta(), not_determined=(Gap(topic, "it moved"),))) == ""


@pytest.mark.parametrize("what", ["weights", "10 of 10 shards"])
def test_weights_that_are_not_known_leave_what_the_head_does(what: str) -> None:
    assert plain_words(replace(roberta(), not_determined=(Gap(what, "missing"),))) == plain_words(roberta())


def test_a_stage_after_the_layer_that_changes_the_scores_takes_the_name_away() -> None:
    *before, tanh, dropout, linear = a_head(roberta()).stages
    assert plain_words(with_head(roberta(), stages=(*before, dropout, linear, tanh))) == ""
