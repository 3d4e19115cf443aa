"""The table of a scan as JSON lines: whole lines only, appended, and read again to go on."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from headscope.errors import HeadscopeError, UsageError
from headscope.facts.scan import SCAN_SCHEMA, ScanRow

_ANOTHER = "name another file, or remove this one"


@dataclass(frozen=True, slots=True)
class Known:
    """What a table holds already: the references of its rows, and the commits of each."""

    rows: int = 0
    commits: dict[str, set[str | None]] = field(default_factory=dict)

    def holds(self, reference: str) -> bool:
        """Whether a row is of this reference, whatever its commit."""
        return reference in self.commits

    def holds_commit(self, reference: str, commit: str | None) -> bool:
        """Whether a row is of this reference at this commit."""
        return commit is not None and commit in self.commits.get(reference, ())


class RowFile:
    """A file of JSON lines that grows by whole rows, whatever ends the process; one process at a time writes it."""

    def __init__(self, path: Path, *, go_on: bool = False) -> None:
        """Opens the file; with `go_on` it may hold rows already.

        Raises UsageError for a file that can't be written, is written by another process, or holds something else.
        """
        self.path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
        except OSError as err:
            raise UsageError(f"{path} can't be written: {err.strerror}", "name another file with -o") from err
        try:
            self._lock()
            if os.fstat(self._file).st_size and not go_on:
                raise UsageError(
                    f"{path} exists already",
                    f"add --resume to go on with it, --only-new to add new commits, or {_ANOTHER}",
                )
            self.known = self._read()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> RowFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def write(self, row: ScanRow) -> None:
        """Appends a row: whole, or not at all. Raises HeadscopeError where the disk takes no more."""
        line = (json.dumps(row.to_dict()) + "\n").encode()
        before = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError as err:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, before)
            raise HeadscopeError(
                f"{self.path} can't be written any more: {err.strerror}; it holds every row so far",
                "make room, and run the same command with --resume",
            ) from err

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # Windows
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise UsageError(f"another scan is writing {self.path}", "wait for it, or name another file") from err
        except OSError:  # a file system without locks
            return

    def _read(self) -> Known:
        """What the file holds; half a line at its end, left by a kill or a full disk, is cut off."""
        commits: dict[str, set[str | None]] = {}
        rows = whole = 0
        with self.path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                reference, commit = _identity(line, number, self.path)
                commits.setdefault(reference, set()).add(commit)
                rows += 1
        if whole < os.fstat(self._file).st_size:
            os.ftruncate(self._file, whole)
        return Known(rows, commits)


def _identity(line: bytes, number: int, path: Path) -> tuple[str, str | None]:
    try:
        row = json.loads(line)
        version, reference, commit = row["schema_version"], row["reference"], row.get("commit")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
        raise UsageError(f"line {number} of {path} isn't a row of a scan", _ANOTHER) from err
    if version != SCAN_SCHEMA:
        raise UsageError(f"{path} has rows of schema {version!r}, and this headscope writes {SCAN_SCHEMA}", _ANOTHER)
    if not isinstance(reference, str) or not isinstance(commit, str | None):
        raise UsageError(f"line {number} of {path} isn't a row of a scan", _ANOTHER)
    return reference, commit


def read_rows(path: Path) -> Iterator[dict[str, object]]:
    """The whole rows of a file of JSON lines."""
    with path.open("rb") as stream:
        for line in stream:
            if line.endswith(b"\n"):
                yield json.loads(line)
