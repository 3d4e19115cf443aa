"""What other libraries read in a table of JSON lines, and what DuckDB makes of it."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pytest
from pyarrow import parquet
from tables import row, written

from headscope.errors import UsageError
from headscope.slices.fleet.table import open_table


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten rows in the current folder, under the name that hints use."""
    monkeypatch.chdir(tmp_path)
    return written(tmp_path / "rows.jsonl", *(row(f"m{number}", number) for number in range(10)))


def expected(numbers: Iterable[int]) -> dict[str, dict[str, Any]]:
    return {f"m{number}": row(f"m{number}", number).to_dict() for number in numbers}


_DUCKDB = "import duckdb, json, sys; print(json.dumps(duckdb.sql(sys.argv[1]).fetchall()))"
_COPY = "import duckdb, sys; duckdb.sql(sys.argv[1])"


def run_duckdb(code: str, statement: str) -> str:
    """What a statement prints, from a process of its own: at its end DuckDB complains of what it did not free."""
    return subprocess.run([sys.executable, "-c", code, statement], capture_output=True, text=True, check=True).stdout


def printed_conversion() -> str:
    """The statement in the hint for a table that was to be Parquet."""
    with pytest.raises(UsageError) as refused:
        open_table("rows.parquet")
    before, statement, after = refused.value.hint.split('"')
    assert (before, after) == ("write rows.jsonl; then: duckdb -c ", "")
    return statement


def test_json_lines_need_no_pyarrow(tmp_path: Path) -> None:
    code = (
        "import sys; from headscope.slices.fleet import table; table.open_table(sys.argv[1]); "
        "print('pyarrow' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.jsonl")], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "False\n"


def test_pandas_reads_every_row(table: Path) -> None:
    frame = pandas.read_json(table, lines=True, dtype_backend="numpy_nullable").set_index("reference")
    for name, one in expected(range(10)).items():
        found = frame.loc[name]
        assert list(found["labels"]) == one["labels"]
        assert found["verdict"] == one["verdict"]
        assert (None if found["new"] is pandas.NA else found["new"]) == one["new"]
        assert found["seconds"] == one["seconds"]
    assert frame["new"].dtype == "Int64"


def test_duckdb_reads_every_row(table: Path) -> None:
    query = f"SELECT reference, verdict, new, labels FROM '{table}' ORDER BY reference"
    assert json.loads(run_duckdb(_DUCKDB, query)) == [
        [one["reference"], one["verdict"], one["new"], one["labels"]] for one in expected(range(10)).values()
    ]


def test_the_printed_conversion_writes_every_row_as_parquet(table: Path) -> None:
    run_duckdb(_COPY, printed_conversion())
    found = parquet.read_table(table.with_suffix(".parquet"))
    assert {one["reference"]: one for one in found.to_pylist()} == expected(range(10))
    types = {field.name: field.type for field in found.schema}
    assert types["labels"] == pyarrow.list_(pyarrow.string())
    assert (types["new"], types["seconds"], types["run"]) == (pyarrow.int64(), pyarrow.float64(), pyarrow.bool_())


def test_the_printed_conversion_keeps_what_only_the_last_of_many_rows_holds(table: Path) -> None:
    """By default DuckDB takes the types from the first 20,480 rows, and drops what later rows have beside null."""
    line = json.dumps(row("early", new=None, labels=()).to_dict()) + "\n"
    table.write_text(line * 20_500 + json.dumps(row("late", new=7, labels=("a",)).to_dict()) + "\n")
    run_duckdb(_COPY, printed_conversion())
    *_, last = parquet.read_table("rows.parquet", columns=["reference", "new", "labels"]).to_pylist()
    assert last == {"reference": "late", "new": 7, "labels": ["a"]}
