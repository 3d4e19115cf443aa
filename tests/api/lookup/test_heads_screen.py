"""`heads` on a screen: a line for each class where it fits, and what it says of a pattern that fits nothing."""

import pytest

import headscope
from headscope.core.words.console import plain_text
from headscope.errors import UsageError
from headscope.slices.atlas.run import Heads
from headscope.slices.atlas.screen import heads_screen


@pytest.fixture(scope="module")
def squeezebert() -> Heads:
    return headscope.heads("squeezebert", task="sequence-classification", workers=1)


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (140, ["first_token  select > linear > tanh > linear  2 of 4 new after SqueezeBertForMaskedLM"]),
        (100, ["first_token  select > linear > tanh > linear", "2 of 4 new after SqueezeBertForMaskedLM"]),
        (55, ["first_token", "select > linear > tanh > linear, 2 of 4 new after", "SqueezeBertForMaskedLM"]),
    ],
)
def test_what_has_no_room_beside_a_class_stands_below_it(squeezebert: Heads, width: int, shown: list[str]) -> None:
    lines = plain_text(heads_screen(squeezebert), width).splitlines()
    at = next(at for at, line in enumerate(lines) if "SqueezeBertForSequenceClassification" in line)
    lines[at] = lines[at].replace("SqueezeBertForSequenceClassification", "")
    assert [line.strip() for line in lines[at : at + len(shown)]] == shown
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(
    ("pattern", "task", "hint"),
    [
        ("robrta", None, "did you mean roberta"),
        ("RobertaForSequenceClasification", None, "did you mean RobertaForSequenceClassification"),
        ("squeezebert", "image-classification", "it has classes for sequence-classification"),
        ("first token", None, "headscope heads --pooling first_token lists"),
        ("zzzzzz", None, "try a part of a class name, such as bert; * and ? stand for any characters"),
    ],
)
def test_a_pattern_that_fits_nothing_gets_the_nearest_name(pattern: str, task: str | None, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        headscope.heads(pattern, task=task)
    assert (caught.value.hint or "").startswith(hint)


def test_a_class_that_two_families_share_is_told_apart_by_its_family() -> None:
    shown = plain_text(heads_screen(headscope.heads("GPT2ForSequenceClassification", cache=True)), 120)
    assert "GPT2ForSequenceClassification (gpt2) " in shown
    assert "GPT2ForSequenceClassification (gpt-sw3) " in shown


def test_no_heads_at_all_lead_to_the_whole_list() -> None:
    shown = plain_text(heads_screen(()), 200)
    assert shown.startswith("0 heads") and "`headscope heads`" in shown
