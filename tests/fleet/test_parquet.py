"""The table of Parquet files: what pyarrow, pandas and DuckDB read in it, and that no kill loses a row."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pytest
from pyarrow import dataset, parquet
from tables import VERDICTS, files_in, names_in, row, rows_in

from headscope.errors import HeadscopeError, UsageError
from headscope.facts.results.check import Verdict
from headscope.facts.results.scan import ScanRow, columns
from headscope.fleet.output import RowFile
from headscope.fleet.parquet import ROW_LOG, RowFolder, schema
from headscope.fleet.table import open_table

TEXTS = ("reference", "commit", "revision", "kind", "format", "model_type", "class", "task", "pooling_kind", "formula",
         "saved_class",
         "dtype", "profile", "not_determined", "not_run", "reason", "schema_version",
         "verdict")  # fmt: skip
COUNTS = ("num_labels", "new", "new_in_head", "mismatched", "unused", "head_parameters", "parameters", "bytes_read",
          "bytes_total", "requests")  # fmt: skip
TYPES = (
    {name: pyarrow.string() for name in TEXTS}
    | {name: pyarrow.int64() for name in COUNTS}
    | {name: pyarrow.list_(pyarrow.string()) for name in ("labels", "findings", "not_checked", "unplaced")}
    | {"seconds": pyarrow.float64(), "run": pyarrow.bool_()}
)


def written(path: Path, numbers: Iterable[int], *, go_on: bool = False) -> Path:
    with RowFolder(path, go_on=go_on) as table:
        for number in numbers:
            table.write(row(f"m{number}", number))
    return path


def counted(path: Path) -> Counter[str]:
    """How often pyarrow finds each reference in a folder."""
    return Counter(names_in(path))


def expected(numbers: Iterable[int]) -> dict[str, dict[str, Any]]:
    return {f"m{number}": row(f"m{number}", number).to_dict() for number in numbers}


_DUCKDB = "import duckdb, json, sys; print(json.dumps(duckdb.sql(sys.argv[1]).fetchall()))"


def by_duckdb(query: str) -> list[list[Any]]:
    """The rows of a query, from a process of its own: at its end DuckDB complains of what it did not free."""
    ran = subprocess.run([sys.executable, "-c", _DUCKDB, query], capture_output=True, text=True, check=True)
    rows: list[list[Any]] = json.loads(ran.stdout)
    return rows


# What readers see


def test_a_folder_with_a_url_gets_files_of_so_many_rows(tmp_path: Path) -> None:
    url, numbers = f"file://{tmp_path}/rows", range(2_003)
    with open_table(url) as table:
        for number in numbers:
            table.write(row(f"m{number}", number))
    found = dataset.dataset(tmp_path / "rows", partitioning="hive")
    assert {field.name: field.type for field in found.schema} == TYPES
    assert {one["reference"]: one for one in found.to_table().to_pylist()} == expected(numbers)
    assert len(found.files) == 3 * len(VERDICTS)
    with pytest.raises(UsageError, match="holds files already"):
        open_table(url)
    with pytest.raises(UsageError, match="can't be continued: only local folders can"):
        open_table(url, go_on=True)


def test_a_folder_with_a_url_that_takes_no_more_is_one_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(HeadscopeError, match="rows can't be written any more"),
        open_table(f"file://{tmp_path}/rows") as table,
    ):
        table.write(row("m1"))
        (tmp_path / "rows").write_text("a file")


def test_pyarrow_reads_every_row_and_every_column_with_its_type(tmp_path: Path) -> None:
    found = dataset.dataset(written(tmp_path / "rows.parquet", range(10)), partitioning="hive")
    assert {field.name: field.type for field in found.schema} == TYPES
    assert {one["reference"]: one for one in found.to_table().to_pylist()} == expected(range(10))


def test_a_table_of_nulls_has_the_same_types(tmp_path: Path) -> None:
    with open_table(tmp_path / "rows.parquet") as table:
        table.write(ScanRow("a", Verdict.NOT_DETERMINED))
    found = dataset.dataset(tmp_path / "rows.parquet", partitioning="hive")
    assert {field.name: field.type for field in found.schema} == TYPES
    assert found.to_table().to_pylist() == [ScanRow("a", Verdict.NOT_DETERMINED).to_dict()]


def test_pandas_reads_every_row(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.parquet", range(10))
    frame = pandas.read_parquet(path, dtype_backend="numpy_nullable").set_index("reference")
    for name, one in expected(range(10)).items():
        found = frame.loc[name]
        assert list(found["labels"]) == one["labels"]
        assert found["verdict"] == one["verdict"]
        assert (None if found["new"] is pandas.NA else found["new"]) == one["new"]
        assert found["seconds"] == one["seconds"]
    assert frame["new"].dtype == "Int64"


def test_duckdb_reads_every_row_of_both_formats(tmp_path: Path) -> None:
    written(tmp_path / "rows.parquet", range(10))
    with open_table(tmp_path / "rows.jsonl") as table:
        for number in range(10):
            table.write(row(f"m{number}", number))
    wanted = sorted(
        [one["reference"], one["verdict"], one["new"], one["labels"]] for one in expected(range(10)).values()
    )
    for source in ("rows.parquet/*/*.parquet", "rows.jsonl"):
        query = f"SELECT reference, verdict, new, labels FROM '{tmp_path / source}' ORDER BY reference"
        assert by_duckdb(query) == wanted, source


def test_a_number_that_64_bits_cannot_hold_is_left_out(tmp_path: Path) -> None:
    with open_table(tmp_path / "rows.parquet") as table:
        table.write(row("a", parameters=2**63, head_parameters=2**63 - 1))
    [found] = dataset.dataset(tmp_path / "rows.parquet", partitioning="hive").to_table().to_pylist()
    assert (found["parameters"], found["head_parameters"]) == (None, 2**63 - 1)


def test_while_it_is_written_a_folder_holds_a_log_that_readers_of_datasets_skip(tmp_path: Path) -> None:
    """What was written before a kill can be read without headscope."""
    path = tmp_path / "rows.parquet"
    with RowFolder(path) as table:
        for number in range(6):
            table.write(row(f"m{number}", number))
        assert files_in(path) == [ROW_LOG]
        assert dataset.dataset(path, partitioning="hive").files == []
        assert {one["reference"]: one for one in rows_in(path / ROW_LOG)} == expected(range(6))
        with pytest.raises(UsageError, match="another scan"):
            RowFile(path / ROW_LOG, go_on=True)
    assert counted(path) == dict.fromkeys(expected(range(6)), 1)
    assert files_in(path) == [ROW_LOG, *sorted(f"verdict={verdict.value}/part-0.parquet" for verdict in VERDICTS)]


@pytest.mark.parametrize("name", ["rows/", "rows.parquet", "ROWS.PARQUET", "there"])
def test_a_folder_and_a_name_of_parquet_are_folders(tmp_path: Path, name: str) -> None:
    (tmp_path / "there").mkdir()
    with open_table(f"{tmp_path}/{name}") as table:
        table.write(row("a"))
    assert names_in(tmp_path / name) == ["a"]
    [found] = rows_in(tmp_path / name)
    assert found.keys() == columns().keys()


# Going on, and kills


def test_a_table_grows_run_by_run(tmp_path: Path) -> None:
    path, seen = written(tmp_path / "rows.parquet", range(5)), list[dict[str, Any]]()
    written(path, range(5, 9), go_on=True)
    with RowFolder(path, go_on=True, seen=lambda one: seen.append(dict(one))) as table:
        assert table.known.holds("m8")
        assert table.known.holds_commit("m3", "c3")
        assert not table.known.holds_commit("m3", "c4")
    assert {one["reference"]: one for one in seen} == expected(range(9))
    assert len(seen) == 9
    assert counted(path) == dict.fromkeys(expected(range(9)), 1)
    assert [one["reference"] for one in rows_in(path / ROW_LOG)] == list(expected(range(9)))


def test_a_log_that_somebody_removed_is_made_again_of_the_parquet_files(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.parquet", range(5))
    (path / ROW_LOG).unlink()
    written(path, range(5, 9), go_on=True)
    assert {one["reference"]: one for one in rows_in(path / ROW_LOG)} == expected(range(9))
    assert counted(path) == dict.fromkeys(expected(range(9)), 1)


def test_a_scan_that_writes_no_row_leaves_the_parquet_files_of_a_killed_one_whole(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.parquet", range(5))
    (path / "verdict=passed" / "part-0.parquet").write_bytes(b"PAR1 and no more")
    written(path, (), go_on=True)
    assert counted(path) == dict.fromkeys(expected(range(5)), 1)


class Killed(BaseException):
    """Stands for a kill: nothing that a process does at its end happens."""


STEPS = ((dataset, "write_dataset"), (os, "fsync"), (Path, "mkdir"), (Path, "replace"), (shutil, "rmtree"))


@pytest.mark.parametrize("step", range(1, 13))
@pytest.mark.parametrize("is_done", [False, True])
def test_a_kill_at_any_step_of_writing_parquet_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, is_done: bool
) -> None:
    """Log and files are written, then each of three files moves; `is_done`: the process dies after a step, not before.

    At every step a reader finds the rows of the scan before, and some of this one, none twice and no half file.
    """
    path, left = written(tmp_path / "rows.parquet", range(4)), [step]

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

    table = RowFolder(path, go_on=True)
    for number in range(4, 7):
        table.write(row(f"m{number}", number))
    for owner, name in STEPS:
        dying(owner, name)
    with pytest.raises(Killed):
        table.__exit__(None, None, None)
    monkeypatch.undo()
    assert names_in(path / ROW_LOG) == list(expected(range(7)))
    after_kill = counted(path)
    assert set(expected(range(4))) <= set(after_kill) <= set(expected(range(7)))
    assert set(after_kill.values()) == {1}
    seen = Counter[str]()
    with RowFolder(path, go_on=True, seen=lambda one: seen.update((one["reference"],))) as table:
        assert seen == dict.fromkeys(expected(range(7)), 1)
        table.write(row("m7", 7))
    assert counted(path) == dict.fromkeys(expected(range(8)), 1)
    assert files_in(path) == [ROW_LOG, *sorted(f"verdict={verdict.value}/part-0.parquet" for verdict in VERDICTS)]


def test_a_kill_amid_a_parquet_file_is_seen_by_no_reader(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.parquet", range(4))
    half = path / "_new-0123abcd" / "verdict=passed" / "part-0.parquet"
    half.parent.mkdir(parents=True)
    half.write_bytes((path / "verdict=passed" / "part-0.parquet").read_bytes()[:-20])
    assert counted(path) == dict.fromkeys(expected(range(4)), 1)
    written(path, range(4, 6), go_on=True)
    assert counted(path) == dict.fromkeys(expected(range(6)), 1)
    assert not list(path.glob("_new*"))


# Bad input


def holding(content: bytes, *place: str) -> Callable[[Path], None]:
    """Makes a file in the folder of the table."""

    def make(path: Path) -> None:
        file = path.joinpath(*place)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    return make


def of_schema(schema_version: str) -> Callable[[Path], None]:
    """Makes a part with one column that no scan writes, and a version of its own ("" for none)."""

    def make(path: Path) -> None:
        (path / "verdict=passed").mkdir(parents=True)
        metadata = {"headscope.scan": schema_version} if schema_version else None
        parquet.write_table(pyarrow.table({"a": [1]}).replace_schema_metadata(metadata), path / PART)

    return make


def no_reference(path: Path) -> None:
    (path / "verdict=passed").mkdir(parents=True)
    values = row("a").to_dict()
    table = pyarrow.Table.from_pylist([values, values | {"reference": None, "seconds": None}], schema=schema())
    parquet.write_table(table.drop_columns("verdict"), path / PART)


def broken_part(path: Path) -> None:
    written(path, range(1))
    (path / PART).write_bytes((path / PART).read_bytes()[:-20])
    (path / ROW_LOG).unlink()


PART = Path("verdict=passed", "part-0.parquet")
BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "a file": (holding(b"PAR1"), "is a file, and a table in Parquet is a folder"),
    "notes": (holding(b"mine", "notes.txt"), "holds notes.txt, which isn't part of a scan's table"),
    "another part": (holding(b"", "verdict=passed", "0.parquet"), "holds 0.parquet, which isn't part of a scan's"),
    "another schema": (of_schema(""), "part-0.parquet isn't part of a scan's table"),
    "a later schema": (of_schema("2.0"), "has rows of schema '2.0', and this headscope writes schema '1.0'"),
    "other columns": (of_schema("1.0"), "hasn't the columns of schema '1.0'"),
    "no reference": (no_reference, "part-0.parquet has a row that isn't a row of a scan"),
    "a broken part": (broken_part, "part-0.parquet can't be read: "),
    "an empty part": (holding(b"", *PART.parts), "part-0.parquet can't be read: "),
    "another log": (holding(b"notes", ROW_LOG), "_rows.jsonl isn't a row of a scan"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_folder_of_something_else_is_refused_and_stays_as_it_is(tmp_path: Path, case: str) -> None:
    path, (make, sentence) = tmp_path / "rows.parquet", BAD[case]
    make(path)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(UsageError) as refused:
        RowFolder(path, go_on=True)
    assert sentence in refused.value.message
    assert "\n" not in refused.value.message
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_what_other_tools_hide_in_a_folder_does_no_harm(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.parquet", range(2))
    for name in (".DS_Store", "_SUCCESS", "verdict=passed/.hidden"):
        (path / name).touch()
    written(path, range(2, 4), go_on=True)
    assert len(names_in(path)) == 4


def test_without_pyarrow_one_sentence_tells_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="pyarrow") as refused:
        open_table(tmp_path / "rows.parquet")
    assert 'pip install "headscope[parquet]"' in refused.value.hint
    assert not (tmp_path / "rows.parquet").exists()


def test_json_lines_need_no_pyarrow(tmp_path: Path) -> None:
    code = (
        "import sys; from headscope.fleet import table; table.open_table(sys.argv[1]); print('pyarrow' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.jsonl")], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "False\n"
