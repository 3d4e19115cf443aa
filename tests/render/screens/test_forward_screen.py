"""The screen of `forward`: the scores first, and values in columns that stay aligned."""

from dataclasses import replace

import pytest
from reports import roberta

from headscope.core.facts.seen import SeenStage, Statistics
from headscope.core.words.console import plain_text
from headscope.slices.forward.facts import ForwardReport, LabelScore, Scored
from headscope.slices.forward.screen import forward_screen, forward_verdict

NOTE = "the scores mean nothing yet"
VALUES = Statistics(-0.24123, 0.0047012, 2.4661, 1.0, 0, 0)
BROKEN = Statistics(None, None, None, None, 3, 0)


def forwarded(*values: Statistics | None, scored: bool = True) -> ForwardReport:
    """A run of RoBERTa with so many stages on the CPU, or on meta."""
    report = roberta()
    stages = (SeenStage(stage, (2, 768), found) for stage, found in zip(report.head.stages, values, strict=False))
    scores = (LabelScore("good", 0.25, 0.75), LabelScore("bad", None, None))
    return ForwardReport(
        tool_version="0",
        environment=report.environment,
        checkpoint=replace(report.checkpoint, notices=()),
        model=report.model,
        device="cpu" if scored else "meta",
        dtype="float32",
        inputs=(("input_ids", (2, 6)),),
        dummy_inputs=False,
        hidden_shape=(2, 6, 768),
        stages=tuple(stages),
        logits_shape=(2, 3),
        scored=(Scored("a text", scores),) if scored else (),
        notes=(NOTE,),
    )


def test_scores_come_before_the_stages_and_what_makes_them_doubtful_before_them() -> None:
    text = plain_text(forward_screen(forwarded(VALUES, VALUES)), 80)
    places = [text.index(words) for words in ("real weights on cpu", NOTE, "a text", "hidden", "select")]
    assert places == sorted(places)
    assert text.count(NOTE) == 1


@pytest.mark.parametrize(("activation", "said"), [("softmax", "softmax over"), ("sigmoid", "sigmoid of"), ("gelu", "")])
def test_the_function_that_makes_scores_of_logits_is_named(activation: str, said: str) -> None:
    report = forwarded(VALUES)
    first = plain_text(forward_screen(replace(report, model=replace(report.model, activation=activation))), 200)
    assert ("; scores: " in first, said in first) == (bool(said), True)
    assert "; scores: " not in plain_text(forward_screen(forwarded(None, scored=False)), 200)


def test_without_scores_the_remarks_come_last() -> None:
    text = plain_text(forward_screen(forwarded(None, None, scored=False)), 80)
    assert text.index("logits") < text.index(NOTE)
    assert text.count(NOTE) == 1


def test_q_shows_the_best_label_of_each_input_or_the_shape() -> None:
    scored = plain_text(forward_verdict(forwarded(VALUES, VALUES)), 80)
    assert scored.splitlines() == ["a text: good 0.7500", NOTE]
    assert plain_text(forward_verdict(forwarded(None, scored=False)), 80) == "logits [2, 3]\n"


@pytest.mark.parametrize("width", [80, 100, 200])
def test_values_stand_in_columns_under_their_names(width: int) -> None:
    lines = plain_text(forward_screen(forwarded(VALUES, VALUES, BROKEN)), width).splitlines()
    [head] = [line for line in lines if line.split() == ["min", "mean", "max", "std"]]
    rows = [line for line in lines if "[2, 768]" in line]
    assert len(rows) == 3
    for row, ends in zip(rows[:2], [["-0.241", "0.0047", "2.47", "1"]] * 2, strict=True):
        for name, number in zip(("min", "mean", "max", "std"), ends, strict=True):
            end = head.index(name) + len(name)
            assert row[:end].endswith(f" {number}")
    assert rows[2].endswith("3 NaN")


def test_in_narrow_terminals_values_go_below_with_their_names() -> None:
    text = plain_text(forward_screen(forwarded(VALUES, BROKEN)), 50)
    assert "    min -0.241  mean 0.0047  max 2.47  std 1\n" in text
    assert all(len(line) <= 50 for line in text.splitlines())


def test_a_score_that_is_no_number_is_called_that() -> None:
    text = plain_text(forward_screen(forwarded(VALUES)), 80)
    assert "bad   no probability  logit not finite" in text
    assert "none" not in text
