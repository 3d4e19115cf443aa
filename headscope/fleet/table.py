"""The table of a scan by its name: JSON lines, CSV, a folder of Parquet files, or a folder with a URL (`s3://...`)."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any

from headscope.errors import HeadscopeError, UsageError, first_line
from headscope.facts.results.scan import columns
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
from headscope.fleet.parquet import RowFolder, rows_of_part, schema
from headscope.render.text.cells import csv_cells
from headscope.upstream.optional.ray import FILE


class RemoteFolder:
    """A folder with a URL. It holds nothing at the start of a scan: it can't be continued."""

    def __init__(self, url: str) -> None:
        """Looks at the folder. Raises UsageError where it can't be reached, or holds something."""
        schema()
        self.url = url
        self.known = Known()
        self._system, self._path = _system(url)
        try:
            found = self._files()
        except OSError as err:
            raise UsageError(f"{url} can't be read: {first_line(err)}", "check the URL and your credentials") from err
        if found:
            raise UsageError(
                f"{url} holds files already",
                "name another folder; --resume and --only-new continue local folders only",
            )

    def __enter__(self) -> RemoteFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def rows_added(self) -> Iterator[TableRow]:
        """The rows of the files that Ray has written. Raises UsageError where one can't be read."""
        for path in self._files():
            if FILE.fullmatch(path.name):
                with self._system.open_input_file(str(path)) as file:
                    yield from rows_of_part(path, file)

    def _files(self) -> list[PurePosixPath]:
        from pyarrow import fs

        every = self._system.get_file_info(fs.FileSelector(self._path, recursive=True, allow_not_found=True))
        return sorted(PurePosixPath(one.path) for one in every if one.type == fs.FileType.File)


def _system(url: str) -> tuple[Any, str]:
    """The file system of a URL as Ray finds it, by Arrow or by fsspec, and the path in it. Raises UsageError."""
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
        new = target.with_name(f"{target.name}{_LOG}.new")
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


RowTable = RowFile | RowFolder | RowSheet
"""Where this process writes the rows of a scan."""
SharedTable = RowFolder | RemoteFolder
"""What the workers of a cluster write, each its own files."""


def open_table(name: str | Path, *, go_on: bool = False, seen: RowObserver | None = None) -> RowTable:
    """The table of this name: Parquet for `FOLDER/` and `NAME.parquet`, CSV for `NAME.csv`, otherwise JSON lines.

    With `go_on` it may hold rows already, and `seen` is called with each. Raises UsageError where it can't be written.
    """
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


def open_shared_table(name: str | Path | None, *, go_on: bool = False, seen: RowObserver | None = None) -> SharedTable:
    """The table of this name that the workers of a cluster write: a folder that all can write, or one with a URL.

    Raises UsageError for anything else.
    """
    hint = "name a folder that every node can write with -o: FOLDER/, NAME.parquet, or a URL such as s3://bucket/heads"
    if name is None:
        raise UsageError("the workers of a Ray cluster write no rows to stdout", hint)
    if "://" in str(name):
        if go_on:
            raise UsageError(f"{name} can't be continued: only local folders can", "name another folder")
        return RemoteFolder(str(name))
    if not _is_folder(name):
        raise UsageError(f"the workers of a Ray cluster write Parquet, and {name} is one file", hint)
    return RowFolder(_path_of(name), go_on=go_on, seen=seen)


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
