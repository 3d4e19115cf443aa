"""The table of a scan by its name: JSON lines, a folder of Parquet files, or a folder with a URL (`s3://...`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any

from headscope.errors import UsageError, first_line
from headscope.fleet.output import Known, Row, RowFile, Seen, leads_to_stream
from headscope.fleet.parquet import RowFolder, rows_of_part, schema
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

    def rows_added(self) -> Iterator[Row]:
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


_OTHERS = {".csv", ".tsv", ".xlsx", ".arrow", ".feather", ".db", ".gz", ".zst", ".bz2", ".xz", ".zip"}


RowTable = RowFile | RowFolder
"""Where this process writes the rows of a scan."""
SharedTable = RowFolder | RemoteFolder
"""What the workers of a cluster write, each its own files."""


def open_table(name: str | Path, *, go_on: bool = False, seen: Seen | None = None) -> RowTable:
    """The table of this name: Parquet for `FOLDER/` and `NAME.parquet`, otherwise a file of JSON lines.

    With `go_on` it may hold rows already, and `seen` is called with each. Raises UsageError where it can't be written.
    """
    path = _path_of(name)
    if _is_folder(name):
        return RowFolder(path, go_on=go_on, seen=seen)
    if path.suffix.lower() in _OTHERS:
        raise UsageError(
            f"{path}: a table is written as JSON lines or as Parquet, not as {path.suffix}",
            f"name it {path.with_suffix('.jsonl').name} or {path.with_suffix('.parquet').name}",
        )
    return RowFile(path, go_on=go_on, seen=seen)


def open_shared_table(name: str | Path | None, *, go_on: bool = False, seen: Seen | None = None) -> SharedTable:
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
