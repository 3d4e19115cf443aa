"""Templates of a number: they give the values that they were made of, and those of other numbers, or there is none."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headscope.facts.counting import counted, list_of
from headscope.render.text.plain_words import article_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from look_templates import MORE_SAMPLES, MOST, SAMPLES, Unfit, filled, proven_template

OTHERS = (6, 7, 10, 12, 18, 80, 88, 100, 110, 800, 881, 1_001, 1_800, 8_000, 8_999, 9_998)


def _words(number: int) -> str:
    return f"{article_of(number)} {number:,}-class head, {counted(769 * number + 5, 'parameter')}, {number} x 768"


@pytest.mark.parametrize(
    "said",
    [
        _words,
        lambda number: _words(number).capitalize(),
        lambda number: {"shape": [number, 768], "count": 768 * number + 3, "name": "classifier"},
        lambda number: list_of([f"LABEL_{at}" for at in range(number)], 4),
        lambda number: ["wide" if number > 999 else "narrow", number],
        lambda number: [None, True, 1.5, "same"],
    ],
)
def test_a_template_gives_the_value_of_any_number(said: Callable[[int], Any]) -> None:
    samples = sorted(MORE_SAMPLES)
    template = proven_template({number: said(number) for number in samples})
    assert [filled(template, number) for number in (*samples, *OTHERS)] == [said(n) for n in (*samples, *OTHERS)]
    assert max(samples) == MOST


@pytest.mark.parametrize(
    "said",
    [
        lambda number: number * number,
        lambda number: f"{100 / number:.1f}%",
        lambda number: "odd" if number % 2 else "even",
        lambda number: [0] * number,
        lambda number: number if number < 6 else str(number),
    ],
)
def test_what_is_no_straight_line_has_no_template(said: Callable[[int], Any]) -> None:
    for samples in (SAMPLES, sorted(MORE_SAMPLES)):
        with pytest.raises(Unfit):
            proven_template({number: said(number) for number in samples})
