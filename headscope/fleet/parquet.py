"""The table of a scan as a folder of Parquet files, one partition for each verdict.

Rows that no file holds yet are in a journal of JSON lines beside them, `_rows-000003.jsonl`: readers of datasets skip
names that begin with `_`. A full journal becomes the files `verdict=*/part-000003.parquet` and is then removed. Where
a kill left both, the journal is the one that counts, and its files are written again.

The workers of a Ray cluster write into the folder too, each its own files, under the names that Ray gives them. One
that a kill left half written is not read, and is removed when the scan goes on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from types import TracebackType
from typing import TYPE_CHECKING, Any, get_args, get_origin

from headscope.errors import HeadscopeError, UsageError, first_line
from headscope.facts.check import Verdict
from headscope.facts.scan import SCAN_SCHEMA, ScanRow, columns, is_row
from headscope.fleet.output import ANOTHER, Known, Row, RowFile, Seen, lines_of, lock
from headscope.upstream.ray import FILE as RAY_FILE

if TYPE_CHECKING:
    import pyarrow

PARTITION = "verdict"
_VERSION = b"headscope.scan"
_ROWS = 5_000
_LARGEST = 2**63 - 1
_PART = re.compile(r"part-(\d{6,})\.parquet")
_OF_RAY = -1
_MAGIC = b"PAR1"
_JOURNAL = re.compile(r"_rows-(\d{6,})\.jsonl")


class RowFolder:
    """A folder that grows by whole rows, whatever ends the process; one process at a time writes it."""

    def __init__(self, path: Path, *, go_on: bool = False, seen: Seen | None = None, rows: int = _ROWS) -> None:
        """Opens the folder; with `go_on` it may hold rows already, and `seen` is called with each.

        A file gets at most `rows` rows. Raises UsageError without pyarrow, and for a folder that can't be written, is
        written by another process, or holds something else.
        """
        schema()
        self.path = path
        self.known = Known()
        self._rows = rows
        self._journal: RowFile | None = None
        self._pending: list[Row] = []
        self._descriptor = _made(path)
        try:
            if self._descriptor is not None:
                lock(self._descriptor, path)
            self._take_up(go_on, seen)
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> RowFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._empty_journal()
        except HeadscopeError:
            if error is None:
                raise
        finally:
            self._close()

    def write(self, row: ScanRow) -> None:
        """Adds a row: whole, or not at all. Raises HeadscopeError where the disk takes no more."""
        if self._journal is None:
            self._journal = RowFile(self._journal_path())
        self._journal.write(row)
        self._pending.append(row.to_dict())
        if len(self._pending) >= self._rows:
            self._empty_journal()

    def added(self) -> tuple[Path, ...]:
        """The whole files that the workers of a Ray cluster have written since the folder was opened."""
        return tuple(path for number, path in _parts(self.path) if number == _OF_RAY and path not in self._before)

    def rows_of(self, path: Path) -> Iterator[Row]:
        """The rows of one of its files. Raises UsageError where it can't be read."""
        return rows_of_part(path, path)

    def _take_up(self, go_on: bool, seen: Seen | None) -> None:
        foreign = next(_foreign(self.path), None)
        if foreign is not None:
            raise UsageError(f"{self.path} holds {foreign.name}, which isn't part of a scan's table", ANOTHER)
        parts, journals = _parts(self.path), _journals(self.path)
        half = [path for number, path in _numbered_parts(self.path) if not _is_whole(number, path)]
        if (parts or journals or half) and not go_on:
            raise UsageError(
                f"{self.path} exists already",
                f"add --resume to continue it or --only-new to add new commits; or {ANOTHER}",
            )
        for path in half:
            path.unlink(missing_ok=True)
        self._before = frozenset(path for _, path in parts)
        latest = max(0, *(number for number, _ in (*parts, *journals)), 0)
        for row in _rows_of(part for number, part in parts if number not in dict(journals)):
            self._count(row, seen)
        for number, journal in journals:
            self._read_journal(number, journal, seen)
            if number != latest or number in dict(parts):
                self._empty_journal()
        self._number = latest if self._journal is not None else latest + 1

    def _read_journal(self, number: int, journal: Path, seen: Seen | None) -> None:
        def count(row: Mapping[str, Any]) -> None:
            self._pending.append(dict(row))
            self._count(row, seen)

        self._number = number
        self._journal = RowFile(journal, go_on=True, seen=count)

    def _count(self, row: Mapping[str, Any], seen: Seen | None) -> None:
        self.known.add(row)
        if seen is not None:
            seen(row)

    def _journal_path(self) -> Path:
        return self.path / f"_rows-{self._number:06}.jsonl"

    def _empty_journal(self) -> None:
        """Moves the rows of the journal to Parquet files, and begins the next one with the next row."""
        if self._journal is None:
            return
        journal = self._journal.path
        try:
            for verdict in Verdict:
                self._write_part(verdict, [row for row in self._pending if row[PARTITION] == verdict.value])
            self._journal.close()
            self._journal = None
            journal.unlink(missing_ok=True)
        except OSError as err:
            raise HeadscopeError(
                f"{self.path} can't be written any more: {_told(err)}; {journal.name} in it keeps the rows",
                "make room, and run the same command with --resume",
            ) from err
        self._pending = []
        self._number += 1

    def _write_part(self, verdict: Verdict, rows: list[Row]) -> None:
        """Writes a file of rows of one verdict through a temporary name, which readers skip."""
        import pyarrow
        from pyarrow import parquet

        if not rows:
            return
        folder = self.path / f"{PARTITION}={verdict.value}"
        folder.mkdir(exist_ok=True)
        name = f"part-{self._number:06}.parquet"
        temporary = folder / f"_{name}"
        table = pyarrow.Table.from_pylist([in_range(row) for row in rows], schema=schema())
        with temporary.open("wb") as file:
            parquet.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / name)

    def _close(self) -> None:
        if self._journal is not None:
            self._journal.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


def rows_in(folder: Path) -> Iterator[Row]:
    """The rows of a folder, those that are in the journal still among them. Raises UsageError."""
    journals = _journals(folder)
    yield from _rows_of(part for number, part in _parts(folder) if number not in dict(journals))
    for _, journal in journals:
        yield from lines_of(journal)


def schema() -> pyarrow.Schema:
    """The columns of every file, with their types. Raises UsageError without pyarrow."""
    try:
        import pyarrow
    except ImportError as err:
        raise UsageError(
            "a table in Parquet needs pyarrow, which is not installed",
            'pip install "headscope[parquet]", or name a file such as rows.jsonl with -o',
        ) from err
    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}

    def arrow_type(hint: Any) -> pyarrow.DataType:
        if get_origin(hint) is tuple:
            return pyarrow.list_(pyarrow.string())
        return types[(get_args(hint) or (hint,))[0]]

    fields = {name: arrow_type(hint) for name, hint in columns().items() if name != PARTITION}
    return pyarrow.schema(list(fields.items()), metadata={_VERSION: SCAN_SCHEMA.encode()})


def in_range(row: Row) -> Row:
    """The row with every number that 64 bits can't hold left out."""
    return {name: None if isinstance(value, int) and abs(value) > _LARGEST else value for name, value in row.items()}


def _made(path: Path) -> int | None:
    """The descriptor of the folder, which is made if need be; None on systems that open no folders."""
    hint = "name another folder with -o"
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file, and a table in Parquet is a folder", hint)
    try:
        path.mkdir(exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY) if os.name == "posix" else None
    except FileNotFoundError as err:
        raise UsageError(f"{path} can't be written: there is no folder {path.parent}", "make the folder first") from err
    except OSError as err:
        raise UsageError(f"{path} can't be written: {err.strerror}", hint) from err
    if not os.access(path, os.W_OK | os.X_OK):
        if descriptor is not None:
            os.close(descriptor)
        raise UsageError(f"{path} can't be written: Permission denied", hint)
    return descriptor


def _partitions(folder: Path) -> list[Path]:
    every = (folder / f"{PARTITION}={verdict.value}" for verdict in Verdict)
    return [path for path in every if path.is_dir()]


def _foreign(folder: Path) -> Iterator[Path]:
    """What a reader of the folder would take for a part of the table, and no scan has written."""
    partitions = _partitions(folder)
    for path in sorted(folder.iterdir()):
        if path not in partitions and not path.name.startswith(("_", ".")):
            yield path
    for path in (one for partition in partitions for one in sorted(partition.iterdir())):
        if _number(path) is None and not path.name.startswith(("_", ".")):
            yield path


def _parts(folder: Path) -> list[tuple[int, Path]]:
    """The whole files of rows, in order, each with its number: that of its journal, or `_OF_RAY`."""
    return [(number, path) for number, path in _numbered_parts(folder) if _is_whole(number, path)]


def _numbered_parts(folder: Path) -> list[tuple[int, Path]]:
    paths = (one for partition in _partitions(folder) for one in partition.iterdir())
    return sorted((number, path) for path in paths if (number := _number(path)) is not None)


def _number(path: Path) -> int | None:
    """The number in the name of a file of rows; None for other names."""
    match = _PART.fullmatch(path.name)
    return int(match[1]) if match else _OF_RAY if RAY_FILE.fullmatch(path.name) else None


def _is_whole(number: int, path: Path) -> bool:
    """Whether a file has its end. Ray writes in place, so a kill can leave a beginning; what it isn't is another's."""
    if number != _OF_RAY:
        return True
    try:
        with path.open("rb") as file:
            begins = file.read(len(_MAGIC))
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - len(_MAGIC)))
            return not _MAGIC.startswith(begins) or (size > 2 * len(_MAGIC) and file.read() == _MAGIC)
    except OSError:  # the reader reports it
        return True


def _journals(folder: Path) -> list[tuple[int, Path]]:
    return _numbered(folder.iterdir(), _JOURNAL)


def _numbered(paths: Iterable[Path], pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    found = ((pattern.fullmatch(path.name), path) for path in paths)
    return sorted((int(match[1]), path) for match, path in found if match)


def _rows_of(parts: Iterable[Path]) -> Iterator[Row]:
    """The rows of Parquet files, their verdict by the name of the folder. Raises UsageError for what isn't one."""
    for path in parts:
        yield from rows_of_part(path, path)


def rows_of_part(path: PurePath, source: Any) -> Iterator[Row]:
    """The rows of the Parquet file at `path`, read from `source`: a path or an open file. Raises UsageError."""
    import pyarrow
    from pyarrow import parquet

    verdict = path.parent.name.partition("=")[2]
    try:
        with parquet.ParquetFile(source) as file:
            _check_schema(file.schema_arrow, path)
            for batch in file.iter_batches(batch_size=1_024):
                for values in batch.to_pylist():
                    row = {name: values.get(name, verdict) for name in columns()}
                    if not is_row(row):
                        raise UsageError(f"{path} has a row that isn't a row of a scan", ANOTHER)
                    yield row
    except (pyarrow.ArrowException, OSError) as err:
        raise UsageError(f"{path} can't be read: {_told(err)}", ANOTHER) from err


def _check_schema(found: pyarrow.Schema, path: PurePath) -> None:
    version = (found.metadata or {}).get(_VERSION, b"").decode("utf-8", "replace")
    if version != SCAN_SCHEMA:
        told = f"has rows of schema {version!r}" if version else "isn't part of a scan's table"
        raise UsageError(f"{path} {told}, and this headscope writes schema {SCAN_SCHEMA!r}", ANOTHER)
    if not found.remove_metadata().equals(schema().remove_metadata()):
        raise UsageError(f"{path} hasn't the columns of schema {SCAN_SCHEMA!r}", ANOTHER)


def _told(err: Exception) -> str:
    """What the system said, in one line."""
    told = err.strerror if isinstance(err, OSError) and err.errno else ""
    return told or first_line(err)
