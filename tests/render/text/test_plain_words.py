"""The head in one sentence: what the formula and the loss say, and nothing where they do not say it."""

from dataclasses import replace

import pytest
from reports import bert, gpt2, roberta

from headscope.core.words.plain_words import plain_words
from headscope.facts import Gap, GapTopic, ModelFacts, PoolingKind, Report, Shape, Task

BATCH = "batch"


def with_model(report: Report, **changes: object) -> Report:
    model: ModelFacts = replace(report.model, **changes)  # type: ignore[arg-type]
    return replace(report, model=model)


def test_a_linear_layer_under_softmax_is_a_logistic_regression_on_its_input() -> None:
    assert (
        plain_words(bert()) == "With integer labels, a 3-class softmax regression on tanh(bert.pooler.dense(h[[CLS]]))"
    )
    assert plain_words(roberta()) == "With integer labels, a 3-class softmax regression on tanh(dense(h[<s>]))"


def test_a_position_picked_after_the_linear_layer_is_one_of_its_input() -> None:
    assert plain_words(gpt2()) == "With integer labels, a 3-class softmax regression on h[last non-pad]"


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
    head = replace(report.head, features="h", pooling=replace(report.head.pooling, kind=PoolingKind.NONE))
    assert plain_words(replace(report, head=head)) == "For each token, a 3-class softmax regression on h"


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


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (2, "a 2"), (8, "an 8"), (11, "an 11"), (18, "an 18"), (80, "an 80"), (100, "a 100"), (110, "a 110"),
        (1100, "a 1,100"), (11_000, "an 11,000"),
    ],
)  # fmt: skip
def test_the_number_of_classes_has_its_article(number: int, words: str) -> None:
    report = with_model(roberta(), num_labels=number)
    last = report.head.parameters[-2]
    assert len(last.shape) == 2
    wide = (*report.head.parameters[:-2], replace(last, shape=(number, 768)), report.head.parameters[-1])
    told = plain_words(replace(report, head=replace(report.head, parameters=wide)))
    kind = "logistic" if number == 2 else "softmax"
    assert told.startswith(f"With integer labels, {words}-class {kind} regression on")


def with_scores(task: Task, scores: int, **changes: object) -> Report:
    """RoBERTa's head with so many scores from its last layer."""
    report = with_model(roberta(), task=task, **changes)
    found = tuple(
        replace(item, shape=(scores, 768)) if item.name == "classifier.out_proj.weight" else item
        for item in report.head.parameters
    )
    return replace(report, head=replace(report.head, parameters=found))


@pytest.mark.parametrize(
    ("task", "scores", "words"),
    [
        (Task.MULTIPLE_CHOICE, 1, "A linear score for each choice on {}, softmax over the choices"),
        (Task.QUESTION_ANSWERING, 2, "Two linear scores for each token (start, end) on {}, softmax over the tokens"),
    ],
)
def test_a_softmax_over_positions_or_choices_is_no_regression_on_classes(task: Task, scores: int, words: str) -> None:
    assert plain_words(with_scores(task, scores)) == words.format("tanh(dense(h[<s>]))")
    assert plain_words(with_scores(task, 3)) == ""
    assert plain_words(with_scores(task, scores, loss="none", activation="none")) == ""


def test_starts_and_ends_are_parted_after_the_layer_and_classes_are_not() -> None:
    report = with_scores(Task.QUESTION_ANSWERING, 2)
    parted = replace(report.head.stages[-1], operation="split", parameters=())
    head = replace(report.head, stages=(*report.head.stages, parted))
    assert plain_words(replace(report, head=head)).startswith("Two linear scores")
    classes = with_model(roberta(), num_labels=3)
    assert plain_words(replace(classes, head=replace(classes.head, stages=(*classes.head.stages, parted)))) == ""


@pytest.mark.parametrize("shapes", [((BATCH, 3), (BATCH, 3)), ((BATCH, "sequence", 3), (BATCH, "sequence"))])
def test_a_pick_among_the_scores_themselves_takes_the_name_away(shapes: tuple[Shape, Shape]) -> None:
    report = gpt2()
    linear, index = report.head.stages
    picked = replace(index, input_shapes=(shapes[0],), output_shape=shapes[1])
    assert plain_words(replace(report, head=replace(report.head, stages=(linear, picked)))) == ""


def test_a_formula_that_does_not_end_in_the_last_layer_gets_no_name() -> None:
    report = roberta()
    assert plain_words(replace(report, head=replace(report.head, features=""))) == ""


def test_what_is_not_determined_gets_no_name() -> None:
    for topic in set(GapTopic) - {GapTopic.CHECKPOINT}:
        assert plain_words(replace(roberta(), not_determined=(Gap(topic, "it moved"),))) == ""


@pytest.mark.parametrize("what", ["weights", "10 of 10 shards"])
def test_weights_that_are_not_known_leave_what_the_head_does(what: str) -> None:
    assert plain_words(replace(roberta(), not_determined=(Gap(what, "missing"),))) == plain_words(roberta())


def test_a_stage_after_the_layer_that_changes_the_scores_takes_the_name_away() -> None:
    report = roberta()
    *before, tanh, dropout, linear = report.head.stages
    changed = replace(report.head, stages=(*before, dropout, linear, tanh))
    assert plain_words(replace(report, head=changed)) == ""
