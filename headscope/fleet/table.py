"""The table of a scan by its name: JSON lines, CSV, a folder of Parquet files, or a folder with a URL (`s3://...`)."""

from __future__ import annotations

import csv
import os
import secrets
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from headscope.errors import HeadscopeError, UsageError, first_line
from headscope.facts.results.scan import ScanRow, columns
from headscope.fleet.output import (
    ANOTHER,
    Known,
    LoggedTable,
    RowFile,
    RowObserver,
    TableRow,
    exists_already,
    leads_to_stream,
)
from headscope.fleet.parquet import RowFolder, schema, write_dataset
from headscope.render.text.cells import csv_cells


class RemoteFolder:
    """A folder with a URL, in Parquet. It holds nothing at the start of a scan: it can't be continued.

    Rows are written in files of up to 1,000. A kill loses those that are in no file yet.
    """

    def __init__(self, url: str) -> None:
        """Looks at the folder. Raises UsageError where it can't be reached, or holds something."""
        schema()
        self.url = url
        self.known = Known()
        self._rows: list[TableRow] = []
        self._files = 0
        self._system, self._path = _system(url)
        if self._holds_files():
            raise UsageError(
                f"{url} holds files already",
                "name another folder; --resume and --only-new continue local folders only",
            )

    def __enter__(self) -> RemoteFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with nullcontext() if error is None else suppress(HeadscopeError):
            self._write_out()

    def write(self, row: ScanRow) -> None:
        """Adds a row. Raises HeadscopeError where the folder takes no more."""
        self._rows.append(row.to_dict())
        if len(self._rows) == 1_000:
            self._write_out()

    def _write_out(self) -> None:
        """Writes the rows that are in no file yet."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        try:
            write_dataset(iter(rows), self._path, f"part-{self._files}-{{i}}.parquet", self._system)
        except OSError as err:
            raise HeadscopeError(
                f"{self.url} can't be written any more: {first_line(err)}", "check the URL and your credentials"
            ) from err
        self._files += 1

    def _holds_files(self) -> bool:
        from pyarrow import fs

        try:
            found = self._system.get_file_info(fs.FileSelector(self._path, recursive=True, allow_not_found=True))
        except OSError as err:
            raise UsageError(
                f"{self.url} can't be read: {first_line(err)}", "check the URL and your credentials"
            ) from err
        return any(one.type == fs.FileType.File for one in found)


def _system(url: str) -> tuple[Any, str]:
    """The file system of a URL by Arrow or by fsspec, and the path in it. Raises UsageError."""
    import pyarrow
    from pyarrow import fs

    try:
        system, path = fs.FileSystem.from_uri(url)
    except (pyarrow.ArrowException, OSError, ValueError) as err:
        try:
            from fsspec.core import url_to_fs

            found, path = url_to_fs(url)
        except (ImportError, ValueError, OSError) as other:
            raise UsageError(
                f"{url} can't be written: {first_line(other)}", "install what fsspec needs for such URLs"
            ) from err
        system = fs.PyFileSystem(fs.FSSpecHandler(found))
    return system, path.rstrip("/")


class RowSheet(LoggedTable):
    """A CSV file for spreadsheets, and the JSON lines behind it: `NAME.csv.jsonl`, which stays.

    As for Parquet, each row goes to the lines immediately. Where a scan ends in any way but a kill, all of them are
    written as CSV, into a new file that takes the place of the old one. After a kill, the next run does that.
    """

    def __init__(self, path: Path, *, go_on: bool = False, seen: RowObserver | None = None) -> None:
        """Opens the lines; with `go_on` they may hold rows already, and `seen` is called with each.

        Raises UsageError for a file that can't be written, is written by another process, or holds something else.
        """
        self.path = path
        log = path.with_name(f"{path.name}{_LOG}")
        if leads_to_stream(path) or path.is_dir():
            raise UsageError(f"{path} isn't a file, and CSV is written to one at the end of a scan", "name a file")
        if path.exists():
            if not go_on:
                raise exists_already(path)
            _check_sheet(path)
            if not log.exists():
                raise UsageError(f"{path} can't be continued without the rows in {log.name}", ANOTHER)
        self._log = RowFile(log, go_on=go_on, seen=seen)
        self.known = self._log.known

    def _write_out(self) -> None:
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


_OTHERS = {".tsv", ".xlsx", ".arrow", ".feather", ".db", ".gz", ".zst", ".bz2", ".xz", ".zip"}


RowTable = RowFile | RowFolder | RowSheet | RemoteFolder
"""Where the rows of a scan are written."""


def open_table(name: str | Path, *, go_on: bool = False, seen: RowObserver | None = None) -> RowTable:
    """The table of this name: Parquet for a URL, `FOLDER/` and `NAME.parquet`, CSV for `NAME.csv`, or JSON lines.

    With `go_on` it may hold rows already, and `seen` is called with each. Raises UsageError where it can't be written.
    """
    if "://" in str(name):
        if go_on:
            raise UsageError(f"{name} can't be continued: only local folders can", "name another folder")
        return RemoteFolder(str(name))
    path = _path_of(name)
    if _is_folder(name):
        return RowFolder(path, go_on=go_on, seen=seen)
    if path.suffix.lower() == ".csv":
        return RowSheet(path, go_on=go_on, seen=seen)
    if path.suffix.lower() in _OTHERS:
        names = [path.with_suffix(suffix).name for suffix in (".jsonl", ".parquet", ".csv")]
        raise UsageError(
            f"{path}: a table is written as JSON lines, Parquet or CSV, not as {path.suffix}",
            f"name it {', '.join(names[:-1])} or {names[-1]}",
        )
    return RowFile(path, go_on=go_on, seen=seen)


def is_stream(name: str | Path) -> bool:
    """Whether a table of this name is a pipe or a device, which can be opened for one scan only."""
    return not _is_folder(name) and leads_to_stream(Path(name))


def _path_of(name: str | Path) -> Path:
    """The path of a table. Raises UsageError for an empty name: `Path("")` is the folder that the command runs in."""
    if not str(name):
        raise UsageError("the name of the table is empty", "name a file with -o")
    return Path(name)


def _is_folder(name: str | Path) -> bool:
    ends = ("/", os.sep)
    return str(name).endswith(ends) or Path(name).suffix.lower() == ".parquet" or Path(name).is_dir()
