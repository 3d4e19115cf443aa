"""Hostile text comes out visible, inert and otherwise as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscope.render.safe import label, safe

CASES = (
    ("plain", "plain"),
    ("sentiment positif é 正面", "sentiment positif é 正面"),
    ("\x1b[31mred", r"\x1b[31mred"),
    ("\x9b31m", r"\x9b31m"),
    ("nul\x00", r"nul\x00"),
    ("a\nb\tc\r", r"a\nb\tc\r"),
    ("\u202eevil", r"\u202eevil"),
    ("zero\u200bwidth", r"zero\u200bwidth"),
    ("\u2028", r"\u2028"),
    ("\ud800", r"\ud800"),
    ("\U000e0041", r"\U000e0041"),
    ("del\x7f", r"del\x7f"),
    ("[red]markup[/]", "[red]markup[/]"),
)


@pytest.mark.parametrize(("text", "shown"), CASES)
def test_text_is_shown_as(text: str, shown: str) -> None:
    assert safe(text) == shown
    assert label(text).plain == shown


@given(st.text(st.characters()))
def test_what_is_shown_is_printable_and_can_be_encoded(text: str) -> None:
    shown = safe(text)
    assert shown.isprintable()
    shown.encode()
