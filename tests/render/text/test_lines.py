"""Where lines break: at spaces, else behind the parts of a name, and not at all for names in a pipe."""

import pytest
from rich.text import Text

from headscope.core.words.lines import wrapped


def lines_of(text: str, width: int, *, keeps_names: bool = False) -> list[str]:
    return [line.plain for line in wrapped(Text(text), width, keeps_names=keeps_names)]


def test_a_name_moves_to_the_next_line_whole() -> None:
    assert lines_of("new: classifier.{weight,bias} (2 tensors)", 26) == [
        "new:",
        "classifier.{weight,bias}",
        "(2 tensors)",
    ]


def test_a_name_wider_than_the_line_breaks_behind_its_parts() -> None:
    assert lines_of("cls.predictions.transform.dense.{weight,bias}", 24) == [
        "cls.predictions.",
        "transform.dense.{weight,",
        "bias}",
    ]


@pytest.mark.parametrize("width", [1, 3, 7, 20, 80])
@pytest.mark.parametrize("text", ["a" * 90, "one two.three/four five", "界" * 30, "", "a\nb c", "  indented text"])
def test_nothing_is_lost_and_no_line_is_too_wide(text: str, width: int) -> None:
    lines = wrapped(Text(text), width)
    assert "".join(line.plain for line in lines).replace(" ", "") == text.replace(" ", "").replace("\n", "")
    assert all(line.cell_len <= max(width, 2 if "界" in text else 1) for line in lines)


def test_a_line_break_of_the_text_stays() -> None:
    assert lines_of("a\nb c", 80) == ["a", "b c"]


def test_names_stay_whole_where_nobody_looks_at_columns() -> None:
    name = "model." * 50
    assert lines_of(f"new: {name} tied", 200, keeps_names=True) == ["new:", name, "tied"]
