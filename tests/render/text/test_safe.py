"""Hostile text comes out visible, inert and otherwise as it was."""

import pytest
from hypothesis import given, strategies as st

from headscope.core.words.safe import label, safe

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
    ("a\u3164b", r"a\u3164b"),
    ("a\ufe0f", r"a\ufe0f"),
    ("\u115f\u1160\uffa0", r"\u115f\u1160\uffa0"),
    ("\u2066x\u2069", r"\u2066x\u2069"),
    ("\u034f\u2800\u180e", r"\u034f\u2800\u180e"),
    ("\U000e0100", r"\U000e0100"),
    ("cafe\u0301 한국어 हिन्दी 🙂", "cafe\u0301 한국어 हिन्दी 🙂"),
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


DEFAULT_IGNORABLE = (
    "00AD 034F 061C 115F-1160 17B4-17B5 180B-180F 200B-200F 202A-202E 2060-206F 3164 FE00-FE0F FEFF FFA0 FFF0-FFF8 "
    "1BCA0-1BCA3 1D173-1D17A E0000-E0FFF"
)
"""Default_Ignorable_Code_Point of the Unicode Character Database (DerivedCoreProperties.txt, 15.0)."""


def test_nothing_that_unicode_calls_invisible_comes_through() -> None:
    for part in DEFAULT_IGNORABLE.split():
        first, _, last = part.partition("-")
        for code in range(int(first, 16), int(last or first, 16) + 1):
            assert chr(code) not in safe(f"a{chr(code)}b"), f"{code:04X}"
