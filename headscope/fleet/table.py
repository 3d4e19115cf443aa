"""The table of a scan by its name: JSON lines or a folder of Parquet files."""

from __future__ import annotations

import os
from pathlib import Path

from headscope.errors import UsageError
from headscope.fleet.output import RowFile, Seen, leads_to_stream
from headscope.fleet.parquet import RowFolder
from headscope.fleet.remote import RemoteFolder

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
