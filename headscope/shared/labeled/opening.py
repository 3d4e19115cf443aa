"""From a path to a source of rows: decided by the first bytes of the file, then by its ending."""

from pathlib import Path

from headscope.errors import Malformed, NotFound, Unsupported, UsageError
from headscope.shared.labeled.arrow_files import parquet_source, saved_dataset_source
from headscope.shared.labeled.rows import RowSource
from headscope.shared.labeled.text_files import delimited_source, json_lines_source

_KINDS = {
    b"\x1f\x8b": ("a gzip archive", "unpack it with gunzip"),
    b"PK\x03\x04": ("a zip archive, such as an Excel file or a model", "unpack it, or save the table as csv"),
    b"BZh": ("a bzip2 archive", "unpack it with bunzip2"),
    b"\xfd7zXZ": ("an xz archive", "unpack it with unxz"),
    b"\x28\xb5\x2f\xfd": ("a Zstandard archive", "unpack it with unzstd"),
    b"%PDF": ("a PDF document", "save the table as csv"),
    b"SQLite format 3": ("an SQLite database", "export the table as csv"),
    b"\x80\x04\x95": ("a pickle, which headscope doesn't run", "save the data as csv, jsonl or parquet"),
    b"\x80\x05\x95": ("a pickle, which headscope doesn't run", "save the data as csv, jsonl or parquet"),
    b"ARROW1": ("an Arrow or Feather file", "save the data as parquet, or give the folder that `datasets` saved"),
    b"\xff\xff\xff\xff": ("an Arrow stream", "give the folder that holds it, with dataset_info.json and state.json"),
    b"version https://git-lfs": ("a Git LFS pointer", "run `git lfs pull` in the folder"),
    b"<!DOCTYPE": ("an HTML page", "download the file itself"),
    b"<!doctype": ("an HTML page", "download the file itself"),
    b"<html": ("an HTML page", "download the file itself"),
}
_DELIMITED = {".csv": "csv", ".tsv": "tsv", ".tab": "tsv"}


def open_data(path: str, split: str | None = None) -> RowSource:
    """Opens a file or a folder as a source of rows. Raises a HeadscopeError if it holds no rows that can be read."""
    place, name = Path(path), path
    if place.is_dir():
        return saved_dataset_source(place, name.rstrip("/"), split)
    if split is not None:
        raise Unsupported(f"{name} is a single file, so it has no split {split!r}", "leave the split out")
    start = _read_first_bytes(place, name)
    # The first bytes win over the ending: a renamed Parquet file is still Parquet.
    if start.startswith(b"PAR1"):
        return parquet_source(place, name)
    for mark, (kind, hint) in _KINDS.items():
        if start.startswith(mark):
            raise Unsupported(f"{name} is {kind}, not a table of labeled rows", hint)
    suffix = place.suffix.lower()
    if suffix in _DELIMITED:
        return delimited_source(place, name, _DELIMITED[suffix])
    if suffix in (".jsonl", ".ndjson", ".json"):
        return json_lines_source(place, name)
    if suffix == ".parquet":
        raise Malformed(f"{name} is not a Parquet file: its first bytes are not PAR1", "download it or save it again")
    raise UsageError(
        f"{name} doesn't end in csv, tsv, jsonl, json or parquet, and is not a folder that `datasets` saved",
        "rename the file to its format, or save the data in one of these",
    )


def _read_first_bytes(place: Path, name: str) -> bytes:
    try:
        if not place.exists():
            raise NotFound(f"{name} doesn't exist", "give the path of a file with labeled rows")
        if not place.is_file():
            raise Unsupported(f"{name} is not a regular file", "give a csv, tsv, jsonl or parquet file")
        with place.open("rb") as file:
            start = file.read(64)
    except (OSError, ValueError) as err:
        told = getattr(err, "strerror", None) or str(err)
        raise NotFound(f"{name} cannot be read: {told}", "check the path and its permissions") from err
    if not start:
        raise Malformed(f"{name} is empty", "give a file with labeled rows")
    return start
