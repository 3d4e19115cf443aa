"""The table of a scan by its name: JSON lines or CSV."""

from __future__ import annotations

import csv
import os
import secrets
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from headscope.core.words.cells import csv_cells
from headscope.errors import HeadscopeError, UsageError
from headscope.slices.fleet.facts import ScanRow, columns
from headscope.slices.fleet.table.files import ANOTHER, RowFile, RowObserver, exists_already, leads_to_stream


class RowSheet:
    """A CSV file for spreadsheets, and the JSON lines behind it: `NAME.csv.jsonl`, which stays.

    Each row goes to the lines immediately. Where a scan ends in any way but a kill, all of them are written as CSV,
    into a new file that takes the place of the old one. After a kill, the next run does that.
    """

    def __init__(self, path: Path, *, go_on: bool = False, seen: RowObserver | None = None) -> None:
        """Opens the lines; with `go_on` they may hold rows already, and `seen` is called with each.

        Raises UsageError for a file that can't be written, is written by another process, or holds something else.
        """
        self.path = path
        log = path.with_name(f"{path.name}{_LOG}")
        if leads_to_stream(path):
            raise UsageError(f"{path} isn't a file, and CSV is written to one at the end of a scan", "name a file")
        if path.exists():
            if not go_on:
                raise exists_already(path)
            _check_sheet(path)
            if not log.exists():
                raise UsageError(f"{path} can't be continued without the rows in {log.name}", ANOTHER)
        self._log = RowFile(log, go_on=go_on, seen=seen)
        self.known = self._log.known

    def __enter__(self) -> RowSheet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._write_sheet()
        except HeadscopeError:
            if error is None:
                raise
        finally:
            self._log.close()

    def write(self, row: ScanRow) -> None:
        """Adds a row to the lines: whole, or not at all. Raises HeadscopeError where the disk takes no more."""
        self._log.write(row)

    def _write_sheet(self) -> None:
        """Writes the lines as CSV; a file without lines is removed, as nothing was written."""
        if not self._log.size:
            self._log.path.unlink(missing_ok=True)
            return
        target = Path(os.path.realpath(self.path))
        new = target.with_name(f"{target.name}{_LOG}.{secrets.token_hex(4)}")
        try:
            with new.open("w", encoding="utf-8-sig", newline="") as stream:  # the mark without which Excel guesses
                writer = csv.writer(stream, lineterminator="\n")
                writer.writerow(columns())
                writer.writerows(map(csv_cells, self._log.rows()))
                stream.flush()
                os.fsync(stream.fileno())
            new.replace(target)
        except OSError as err:
            raise HeadscopeError(
                f"{self.path} can't be written: {err.strerror}; {self._log.path.name} keeps the rows",
                "make room, and run the same command with --resume",
            ) from err
        finally:
            with suppress(OSError):
                new.unlink(missing_ok=True)


_LOG = ".jsonl"


def _check_sheet(path: Path) -> None:
    """Raises UsageError for a file that no scan has written."""
    heading = ",".join(columns())
    try:
        with path.open("rb") as stream:
            found = stream.readline(len(heading) + 9).decode("utf-8-sig", "replace").rstrip("\r\n")
    except OSError as err:
        raise UsageError(f"{path} can't be read: {err.strerror}", "name another file with -o") from err
    if found != heading:
        raise UsageError(f"{path} isn't the table of a scan", ANOTHER)


# By default DuckDB takes the types from the first 20,480 rows: a column that is null in these would be null in all.
_TO_PARQUET = """duckdb -c "COPY (FROM read_json('rows.jsonl', sample_size = -1)) TO 'rows.parquet'\""""
_HINT_BY_SUFFIX = dict.fromkeys(
    (".tsv", ".xlsx", ".arrow", ".feather", ".db", ".gz", ".zst", ".bz2", ".xz", ".zip"),
    "name it rows.jsonl or rows.csv",
) | {".parquet": f"write rows.jsonl; then: {_TO_PARQUET}"}
"""Formats that aren't written, by the ends of their names: what to do instead."""

RowTable = RowFile | RowSheet
"""Where the rows of a scan are written."""


def open_table(name: str | Path, *, go_on: bool = False, seen: RowObserver | None = None) -> RowTable:
    """Opens the table of this name: CSV for `NAME.csv`, or JSON lines.

    With `go_on` it may hold rows already, and `seen` is called with each. Raises UsageError where it can't be written.
    """
    check_table_name(name)
    path = Path(name)
    if path.suffix.lower() == ".csv":
        return RowSheet(path, go_on=go_on, seen=seen)
    return RowFile(path, go_on=go_on, seen=seen)


def read_table_name(given: str) -> str | None:
    """Reads the name of a table; None for `-`, which means stdout. Raises UsageError as `check_table_name`."""
    check_table_name(given)
    return None if given == "-" else given


def check_table_name(name: str | Path) -> None:
    """Raises UsageError for what can't name a file of rows: an empty text, a URL, a folder, or another format."""
    path, text = Path(name), str(name)
    suffix = path.suffix.lower()
    if not text:  # its path would be the folder that the command runs in
        raise UsageError("the name of the table is empty", "name a file with -o")
    if "://" in text:
        raise UsageError(
            f"{text} is a URL, and a table is written to a file of JSON lines or CSV",
            "write rows.jsonl, then copy it there",
        )
    if suffix in _HINT_BY_SUFFIX:
        raise UsageError(f"{text}: a table is written as JSON lines or CSV, not as {suffix}", _HINT_BY_SUFFIX[suffix])
    if text.endswith(("/", os.sep)) or path.is_dir():
        raise UsageError(
            f"{text} names a folder, and a table is written to a file of JSON lines or CSV",
            f"name a file in it, such as {path / 'rows.jsonl'}",
        )
