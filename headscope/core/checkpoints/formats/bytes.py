"""Bytes read by range: a local file, or anything that can answer a range; counts what it read."""

import io
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

from headscope.errors import Malformed, NotFound

FIRST_BYTES = 16_384
"""How much of a file is read first, in the hope that it holds the header."""
_LARGEST_READ = 64_000_000
_MOST_BYTES = 4 * _LARGEST_READ
REFUSED: ContextVar[dict[tuple[str, int], tuple[str, str]] | None] = ContextVar("refused", default=None)
"""Message and hint for each file whose pickle is over a limit, inside `refusing_once`."""


class ByteSource(Protocol):
    """Random access to the bytes of one weight file."""

    name: str
    size: int
    bytes_read: int

    def read_at(self, offset: int, length: int) -> bytes:
        """Reads exactly `length` bytes from `offset`. Raises Malformed if the file ends before."""
        ...


class LocalBytes:
    """A regular file on disk."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self.bytes_read = 0
        self._path = path
        self.size = _regular_size(path, name)

    def read_at(self, offset: int, length: int) -> bytes:
        """See `ByteSource`. Raises NotFound if the file can't be read."""
        try:
            with self._path.open("rb") as file:
                file.seek(offset)
                data = file.read(length)
        except OSError as err:
            raise NotFound(f"{self.name} cannot be read: {err.strerror}", "check its permissions") from err
        self.bytes_read += len(data)
        return complete(data, length, self.name)


def complete(data: bytes, length: int, name: str) -> bytes:
    """Returns `data` if it is `length` bytes long. Raises Malformed otherwise."""
    if len(data) != length:
        raise Malformed(
            f"{name} ends early: {length} bytes were expected, {len(data)} are there", "download or save the file again"
        )
    return data


def _regular_size(path: Path, name: str) -> int:
    """Gives the size of a regular file; a FIFO or a device would hang a reader and is refused."""
    try:
        status = path.stat()
    except OSError as err:
        raise NotFound(f"{name} cannot be read: {err.strerror}", "check the path and its permissions") from err
    if not stat.S_ISREG(status.st_mode):
        raise Malformed(f"{name} is not a regular file", "give a folder, a weight file or a snapshot")
    return status.st_size


class RangeFile(io.RawIOBase):
    """A byte source as a seekable binary file, read in blocks so that neighboring reads are one.

    A block has at least `block` bytes; a single read of more than 64 MB is a ValueError.
    """

    def __init__(self, source: ByteSource, block: int = 1 << 16) -> None:
        super().__init__()
        self._least = block
        self._source = source
        self._at = 0
        self._start = 0
        self._block = b""
        self._fetched = 0

    def readable(self) -> bool:
        """Always True."""
        return True

    def seekable(self) -> bool:
        """Always True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to a position; the end is the size of the source."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """Reads up to `size` bytes; fewer at the end. Raises ValueError for a single read over the limit."""
        left = max(0, self._source.size - self._at)
        wanted = left if size < 0 else min(size, left)
        if wanted > _LARGEST_READ:
            raise ValueError(f"a single read of {wanted:,} bytes is over the limit of {_LARGEST_READ:,}")
        inside = self._start <= self._at and self._at + wanted <= self._start + len(self._block)
        if not inside:
            # A file that sends its reader back and forth could make it fetch the same bytes without end.
            self._fetched += max(wanted, self._least)
            if self._fetched > _MOST_BYTES:
                raise ValueError(f"more than {_MOST_BYTES} bytes of it would be read")
            self._start = self._at
            self._block = self._source.read_at(self._at, min(max(wanted, self._least), self._source.size - self._at))
        begin = self._at - self._start
        self._at += wanted
        return self._block[begin : begin + wanted]

    def readinto(self, buffer: Any, /) -> int:
        """Reads as much as fits into `buffer`, or what is left; `io.BufferedReader` reads through it."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def refusing_once() -> Iterator[None]:
    """Reads a file whose pickle is over a limit only once; a second read raises the same error without reading.

    For the files of one place: they are told apart by name and size. A pickle over a limit as a state dict is over it
    as any object too, and the other way round no state dict can come of it.
    """
    token = REFUSED.set({})
    try:
        yield
    finally:
        REFUSED.reset(token)
