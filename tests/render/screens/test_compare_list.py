"""The list of `compare`: every model has a sign and a line, however many there are."""

from dataclasses import replace

from reports import roberta

from headscope.core.words.console import plain_text
from headscope.facts import Report
from headscope.slices.compare.facts import Aspect, Comparison, Difference
from headscope.slices.compare.screen import compare_screen


def numbered(at: int) -> Report:
    report = roberta()
    return replace(report, checkpoint=replace(report.checkpoint, reference=f"model-{at}"))


def test_models_beyond_the_alphabet_are_listed_by_number() -> None:
    comparison = Comparison("0", "compare", tuple(map(numbered, range(1, 31))), ())
    lines = plain_text(compare_screen(comparison), 80).splitlines()
    assert [line.split() for line in lines if "model-" in line] == [
        *([sign, f"model-{at}"] for at, sign in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 1)),
        *([str(at), f"model-{at}"] for at in range(27, 31)),
    ]


def of_classes(*numbers: int) -> Comparison:
    """Models that differ in the number of their classes."""
    reports = tuple(map(numbered, range(len(numbers))))
    return Comparison("0", "compare", reports, (Difference("classes", tuple(map(str, numbers)), Aspect.CLASSES),))


def test_models_with_one_value_share_a_line() -> None:
    text = plain_text(compare_screen(of_classes(3, 2, 3, 3, 5)), 80)
    assert "classes       A C D  3\n              B      2\n              E      5\n" in text


def test_the_signs_of_very_many_models_have_a_line_before_their_value() -> None:
    text = plain_text(compare_screen(of_classes(*[3] * 8, 2)), 80)
    assert "classes       A B C D E F G H\n                 3\n              I  2\n" in text


def test_two_models_have_a_line_each() -> None:
    assert "classes       A  3\n              B  2\n" in plain_text(compare_screen(of_classes(3, 2)), 80)


def test_columns_are_no_wider_than_what_is_in_them() -> None:
    comparison = of_classes(3, 2)
    shown = plain_text(compare_screen(comparison), 200).splitlines()
    [first] = [line for line in shown if line.startswith("classes")]
    longest = max(
        len(line[14:].split("  ")[0]) for line in shown if line[:14].strip() in {"class", "formula", "weights"}
    )
    assert first.index("2") == 14 + longest + 2
    assert plain_text(compare_screen(comparison), 1_000).splitlines() == shown
