"""The table of a scan as JSON lines: whole lines only, appended, and read again to go on."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from headscope.errors import HeadscopeError, UsageError
from headscope.slices.fleet.facts import SCAN_SCHEMA, ScanRow, is_row, storable

ANOTHER = "name another one with -o, or remove this one"
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
        self._file = _open_for_rows(path)
        try:
            self._is_stream = not stat.S_ISREG(os.fstat(self._file).st_mode)
            if self._is_stream and go_on:
                raise UsageError(f"{path} is a pipe or a device, which holds no rows to continue", "name a file")
            if not self._is_stream:
                if take_lock(self._file) is False:
                    raise UsageError(f"another scan is writing {path}", "wait for it, or name another place with -o")
                self._take_up(go_on, seen)
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
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, before.st_size)
            raise HeadscopeError(
                f"{self.path} can't be written any more: {err.strerror}; it holds every row so far",
                "make room, and run the same command with --resume",
            ) from err

    def _take_up(self, go_on: bool, seen: RowObserver | None) -> None:
        """Reads what the file holds, and makes its end the end of a row."""
        if self.size and not go_on:
            raise exists_already(self.path)
        with os.fdopen(os.dup(self._file), "rb") as stream:
            stream.seek(0)
            whole, rest = _hand_on_rows(stream, self.path, self._count_and_hand_on(seen))
        if rest:
            self._mend_last_line(whole, rest, self._count_and_hand_on(seen))

    def _count_and_hand_on(self, seen: RowObserver | None) -> RowObserver:
        def count(row: Mapping[str, Any]) -> None:
            self.known.add(row)
            if seen is not None:
                seen(row)

        return count

    def _mend_last_line(self, whole: int, rest: bytes, seen: RowObserver) -> None:
        """Ends a last line that lacks its end. Half a row, left by a kill or a full disk, is cut off."""
        row = _parse_line(rest)
        if is_row(row):
            seen(row)
            self._append_line(b"\n")
        elif row is None and (rest.startswith(_BEGINNING) or _BEGINNING.startswith(rest) or not rest.strip(b"\0")):
            os.ftruncate(self._file, whole)
        else:
            raise UsageError(f"the last line of {self.path} isn't a row of a scan", ANOTHER)


def exists_already(path: Path) -> UsageError:
    """Makes the error for a table that holds rows, where nobody asked to continue it."""
    return UsageError(
        f"{path} exists already", f"add --resume to continue it or --only-new to add new commits; or {ANOTHER}"
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
            raise UsageError(what, ANOTHER)
        whole += len(line)
        seen(row)
    return whole, b""


def _parse_line(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
