"""The table of a scan: JSON lines or CSV, appended to in whole rows, and read again to go on."""

from __future__ import annotations

import csv
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from headscope.core.words.cells import csv_cells
from headscope.errors import HeadscopeError, UsageError
from headscope.slices.fleet.facts import SCAN_SCHEMA, ScanRow, columns, is_row, storable

_ANOTHER = "name another one with -o, or remove this one"
_BEGINNING = b'{"reference": "'
_LONGEST = 64 * 1024**2

TableRow = dict[str, Any]
RowObserver = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Known:
    """What a table holds already: the references of its rows, and the commits of each."""

    commits: dict[str, set[str | None]] = field(default_factory=dict)

    def add(self, row: Mapping[str, Any]) -> None:
        """Notes a row of the table."""
        self.commits.setdefault(row["reference"], set()).add(row["commit"])

    def holds(self, reference: str) -> bool:
        """True if a row is of this reference, whatever its commit."""
        return storable(reference) in self.commits

    def holds_commit(self, reference: str, commit: str | None) -> bool:
        """True if a row is of this reference at this commit."""
        return commit is not None and commit in self.commits.get(storable(reference), ())


class RowFile:
    """A file of JSON lines that grows by whole rows, whatever ends the process; one process at a time writes it.

    A pipe or a device takes rows too, and has nothing to continue.
    """

    def __init__(self, path: Path, *, go_on: bool = False, seen: RowObserver | None = None) -> None:
        """Opens the file; with `go_on` it may hold rows already, and `seen` is called with each.

        Raises UsageError for a file that can't be written, is written by another process, or holds something else.
        """
        self.path = path
        self.known = Known()
        self._seen = seen
        self._file = _open_for_rows(path)
        try:
            self._is_stream = not stat.S_ISREG(os.fstat(self._file).st_mode)
            if self._is_stream and go_on:
                raise UsageError(f"{path} is a pipe or a device, which holds no rows to continue", "name a file")
            if not self._is_stream:
                if take_lock(self._file) is False:
                    raise UsageError(f"another scan is writing {path}", "wait for it, or name another place with -o")
                self._take_up(go_on)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> RowFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the writing, and gives the lock back."""
        os.close(self._file)

    @property
    def size(self) -> int:
        """Bytes that its rows take."""
        return os.fstat(self._file).st_size

    def rows(self) -> Iterator[TableRow]:
        """Reads the rows that it holds, even if somebody has removed its name."""
        with os.fdopen(os.dup(self._file), "rb") as stream:
            stream.seek(0)
            yield from map(json.loads, stream)

    def write(self, row: ScanRow) -> None:
        """Appends a row: whole, or not at all. Raises HeadscopeError where the file takes no more."""
        self._append_line((json.dumps(row.to_dict(), allow_nan=False) + "\n").encode())

    def _append_line(self, line: bytes) -> None:
        before = os.fstat(self._file)
        if not self._is_stream and not before.st_nlink:
            raise HeadscopeError(f"{self.path} was removed while the scan was writing it", "run the same command again")
        try:
            written = os.write(self._file, line)
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError as err:
            if self._is_stream:
                raise HeadscopeError(f"{self.path} takes no more rows: {err.strerror}", "name a file with -o") from err
            with suppress(OSError):
                os.ftruncate(self._file, before.st_size)
            raise HeadscopeError(
                f"{self.path} can't be written any more: {err.strerror}; it holds every row so far",
                "make room, and run the same command with --resume",
            ) from err

    def _take_up(self, go_on: bool) -> None:
        """Reads what the file holds, and makes its end the end of a row."""
        if self.size and not go_on:
            raise _exists_already(self.path)
        with os.fdopen(os.dup(self._file), "rb") as stream:
            stream.seek(0)
            whole, rest = _hand_on_rows(stream, self.path, self._note_row)
        if rest:
            self._mend_last_line(whole, rest)

    def _note_row(self, row: Mapping[str, Any]) -> None:
        self.known.add(row)
        if self._seen is not None:
            self._seen(row)

    def _mend_last_line(self, whole: int, rest: bytes) -> None:
        """Ends a last line that lacks its end. Half a row, left by a kill or a full disk, is cut off."""
        row = _parse_line(rest)
        if is_row(row):
            self._note_row(row)
            self._append_line(b"\n")
        elif row is None and (rest.startswith(_BEGINNING) or _BEGINNING.startswith(rest) or not rest.strip(b"\0")):
            os.ftruncate(self._file, whole)
        else:
            raise UsageError(f"the last line of {self.path} isn't a row of a scan", _ANOTHER)


def _exists_already(path: Path) -> UsageError:
    """Makes the error for a table that holds rows, where nobody asked to continue it."""
    return UsageError(
        f"{path} exists already", f"add --resume to continue it or --only-new to add new commits; or {_ANOTHER}"
    )


def leads_to_stream(path: Path) -> bool:
    """True if a path is a pipe or a device."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _open_for_rows(path: Path) -> int:
    """Opens a file, which is made if need be, or a pipe or device. Raises UsageError."""
    try:
        access = os.O_WRONLY if leads_to_stream(path) else os.O_RDWR | os.O_CREAT
        return os.open(path, access | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
    except FileNotFoundError as err:
        raise UsageError(f"{path} can't be written: there is no folder {path.parent}", "make the folder first") from err
    except OSError as err:
        raise UsageError(f"{path} can't be written: {err.strerror}", "name another file with -o") from err


def take_lock(descriptor: int) -> bool | None:
    """Says if this process has the lock on a file from now on, until it closes it; None where there are no locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return None
    return True


def _hand_on_rows(stream: BinaryIO, path: Path, seen: RowObserver) -> tuple[int, bytes]:
    """Hands on every row, and returns how many bytes they take and what is behind them. Raises UsageError."""
    whole = 0
    for number, line in enumerate(iter(lambda: stream.readline(_LONGEST), b""), 1):
        if not line.endswith(b"\n") and len(line) < _LONGEST:
            return whole, line
        row = _parse_line(line)
        if not is_row(row):
            version = row.get("schema_version", SCAN_SCHEMA) if isinstance(row, dict) else SCAN_SCHEMA
            what = f"line {number} of {path} isn't a row of a scan"
            if version != SCAN_SCHEMA:
                what = f"{path} has rows of schema {version!r}, and this headscope writes {SCAN_SCHEMA!r}"
            raise UsageError(what, _ANOTHER)
        whole += len(line)
        seen(row)
    return whole, b""


def _parse_line(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


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
                raise _exists_already(path)
            _check_sheet(path)
            if not log.exists():
                raise UsageError(f"{path} can't be continued without the rows in {log.name}", _ANOTHER)
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
        raise UsageError(f"{path} isn't the table of a scan", _ANOTHER)


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
