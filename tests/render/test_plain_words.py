"""The head in one sentence: what the formula and the loss say, and nothing where they do not say it."""

from dataclasses import replace

import pytest
from reports import bert, gpt2, roberta

from headscope.facts import ModelFacts, PoolingKind, Report, Shape, Task, Unavailable
from headscope.render.plain_words import plain_words

BATCH = "batch"


def with_formula(formula: str) -> Report:
    report = roberta()
    assert report.head is not None
    return replace(report, head=replace(report.head, formula=formula))


def with_model(report: Report, **changes: object) -> Report:
    model: ModelFacts = replace(report.model, **changes)  # type: ignore[arg-type]
    return replace(report, model=model)


def test_a_linear_layer_under_softmax_is_a_logistic_regression_on_its_input() -> None:
    assert plain_words(bert()) == "A logistic regression with 3 classes on tanh(bert.pooler.dense(h[[CLS]]))"
    assert plain_words(roberta()) == "A logistic regression with 3 classes on tanh(dense(h[<s>]))"


def test_a_position_picked_after_the_linear_layer_is_one_of_its_input() -> None:
    assert plain_words(gpt2()) == "A logistic regression with 3 classes on h[last non-pad]"


@pytest.mark.parametrize(
    ("loss", "activation", "number", "words"),
    [
        ("BCEWithLogitsLoss", "sigmoid", 3, "3 yes-or-no logistic regressions"),
        ("MSELoss", "none", 3, "3 linear regressions"),
        ("none", "none", 3, ""),
        ("not determined", "not determined", 3, ""),
    ],
)
def test_the_loss_decides_what_the_layer_is_called(loss: str, activation: str, number: int, words: str) -> None:
    told = plain_words(with_model(roberta(), loss=loss, activation=activation, num_labels=number))
    assert told == (f"{words} on tanh(dense(h[<s>]))" if words else "")


def test_scores_of_each_token_are_a_regression_for_each_token() -> None:
    report = with_model(roberta(), task=Task.TOKEN_CLASSIFICATION)
    assert report.head is not None
    head = replace(
        report.head, formula="logits = out_proj(h)", pooling=replace(report.head.pooling, kind=PoolingKind.NONE)
    )
    assert plain_words(replace(report, head=head)) == "For each token, a logistic regression with 3 classes on h"


@pytest.mark.parametrize("task", [Task.QUESTION_ANSWERING, Task.MULTIPLE_CHOICE])
def test_a_softmax_over_positions_or_choices_is_no_regression_on_classes(task: Task) -> None:
    assert plain_words(with_model(roberta(), task=task)) == ""


@pytest.mark.parametrize("shapes", [((BATCH, 3), (BATCH, 3)), ((BATCH, "sequence", 3), (BATCH, "sequence"))])
def test_a_pick_among_the_scores_themselves_takes_the_name_away(shapes: tuple[Shape, Shape]) -> None:
    report = gpt2()
    assert report.head is not None
    linear, index = report.head.stages
    picked = replace(index, input_shapes=(shapes[0],), output_shape=shapes[1])
    assert plain_words(replace(report, head=replace(report.head, stages=(linear, picked)))) == ""


@pytest.mark.parametrize(
    "formula",
    [
        "",
        "logits = (out_proj(h[0]) + out_proj(h[1])) / 2",
        "logits = out_proj(h[0]) * out_proj(h[1])",
        "logits = mean(out_proj(h))",
        "logits = tanh(out_proj(h))",
        "logits = other(tanh(dense(h[<s>])))",
        "logits = out_proj(normalize(h[<s>]), normalize(out_proj.weight))",
    ],
)
def test_a_formula_that_does_not_end_in_the_last_layer_gets_no_name(formula: str) -> None:
    assert plain_words(with_formula(formula)) == ""


def test_what_is_not_determined_gets_no_name() -> None:
    assert plain_words(replace(roberta(), not_determined=(Unavailable("pooling", "it moved"),))) == ""


def test_a_stage_after_the_layer_that_changes_the_scores_takes_the_name_away() -> None:
    report = roberta()
    assert report.head is not None
    *before, tanh, dropout, linear = report.head.stages
    changed = replace(report.head, stages=(*before, dropout, linear, tanh))
    assert plain_words(replace(report, head=changed)) == ""
