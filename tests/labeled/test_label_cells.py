"""Cells that hold no label: words for a missing number, infinite values, and names that may mean "missing"."""

from pathlib import Path

import pytest

from headscope.checks.labeled_data import DataRequest, read_labeled
from headscope.core.facts.heads.tasks import Input
from headscope.errors import UsageError
from headscope.shared.labeled.facts import LabelKind
from headscope.slices.probe.data.rows import AskedData, count_labels
from headscope.slices.probe.facts.result import Problem

FRACTIONS = [f"{number}.5" for number in range(20)]


def counted(folder: Path, labels: list[str], *, asked: Problem | None = None, suffix: str = "csv") -> AskedData:
    """What is in a column `y`; a jsonl file holds the labels as they are spelled."""
    data = folder / f"rows.{suffix}"
    lines = ["t,y", *(f"text {at},{label}" for at, label in enumerate(labels))]
    if suffix == "jsonl":
        lines = [f'{{"t": "text {at}", "y": {label}}}' for at, label in enumerate(labels)]
    data.write_text("\n".join(lines), encoding="utf-8")
    return count_labels(str(data), ("t",), ("y",), None, asked, Input.TEXT)


@pytest.mark.parametrize("word", ["nan", "NaN", "NA", "n/a", "null", "<NA>", "None"])
@pytest.mark.parametrize("labels", [FRACTIONS, ["0", "1", "1"]])
def test_among_numbers_a_word_for_nothing_is_a_missing_label(word: str, labels: list[str], tmp_path: Path) -> None:
    found = counted(tmp_path, [word, *labels, word])
    assert found.facts.missing == 2
    assert found.facts.kind in (LabelKind.NUMBERS, LabelKind.INTEGERS)
    [note] = found.notes
    assert note.startswith(repr(word)) and "2 cells" in note


def test_a_regression_leaves_such_rows_out(tmp_path: Path) -> None:
    assert counted(tmp_path, [*FRACTIONS, "nan"], asked=Problem.REGRESSION).facts.missing == 1


@pytest.mark.parametrize("word", ["nan", "NA", "null", "N/A"])
def test_among_names_the_word_is_a_class_that_a_note_names(word: str, tmp_path: Path) -> None:
    found = counted(tmp_path, ["DE", "FR", word, "DE", word])
    assert {item.label: item.rows for item in found.facts.classes} == {"DE": 2, "FR": 1, word: 2}
    [note] = found.notes
    assert note.startswith(f"{word!r} (2 rows)")


@pytest.mark.parametrize("labels", [["favor", "against", "none"], ["none", "1", "2"], ["a", "", "b"], FRACTIONS])
def test_other_labels_get_no_note(labels: list[str], tmp_path: Path) -> None:
    assert counted(tmp_path, labels).notes == ()


@pytest.mark.parametrize("is_asked", [False, True])
@pytest.mark.parametrize("is_list", [False, True])
@pytest.mark.parametrize(
    ("word", "of_number", "of_list", "suffix"),
    [
        ("inf", "inf", "inf", "csv"),
        ("-Infinity", "-Infinity", "-Infinity", "csv"),
        ("1e999", "1e999", "inf", "csv"),
        ("Infinity", "inf", "inf", "jsonl"),
    ],
)
def test_an_infinite_number_is_named_with_its_row(
    *, word: str, of_number: str, of_list: str, suffix: str, is_list: bool, is_asked: bool, tmp_path: Path
) -> None:
    cells = ["[0, 1]", "[1]", f"[0, {word}]", "[1, 0]"] if is_list else ["0.5", "1.5", word, "2.5"]
    labels = [f'"{cell}"' if is_list and suffix == "csv" else cell for cell in cells]
    asked = (Problem.MULTI_LABEL if is_list else Problem.REGRESSION) if is_asked else None
    shown = of_list if is_list else of_number
    with pytest.raises(UsageError, match=f"'y' of .* infinite .*'{shown}'.* row 3") as raised:
        counted(tmp_path, labels, asked=asked, suffix=suffix)
    assert raised.value.hint == HINTS[suffix]


HINTS = {
    "csv": "write a finite number, or leave the cell empty: its row is left out then",
    "jsonl": "write a finite number, or null as the label: its row is left out then",
}


def test_in_lists_of_names_the_word_is_a_class(tmp_path: Path) -> None:
    found = counted(tmp_path, ['"[joy, inf]"', "[joy]", '"[inf, nan]"'])
    assert {item.label: item.rows for item in found.facts.classes} == {"inf": 2, "joy": 2, "nan": 1}


@pytest.mark.parametrize("labels", [["1", "null", "2"], ["[1]", "null", "[2]"]])
def test_null_is_no_label_in_jsonl(labels: list[str], tmp_path: Path) -> None:
    assert counted(tmp_path, labels, suffix="jsonl").facts.missing == 1


@pytest.mark.parametrize("word", ["NA", "nan", "null"])
def test_check_reads_the_word_as_probe_does(word: str, tmp_path: Path) -> None:
    for labels in (["0", "1", "1"], ["DE", "FR", "DE"]):
        found = counted(tmp_path, [*labels, word]).facts
        checked = read_labeled(DataRequest(str(tmp_path / "rows.csv"), ("y",), ("t",))).facts
        assert checked == found
