"""Parquet files, and folders of Arrow files that the library `datasets` saved. Reading them needs pyarrow."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headscope.core.facts.stored.location import is_file_name
from headscope.errors import Malformed, Unsupported, UsageError, did_you_mean, first_line
from headscope.shared.labeled.rows import RowCells, RowSource, check_columns

# Rows are converted to Python objects batch by batch, so memory doesn't grow with the file.
_BATCH = 1_024
# The JSON beside the data is foreign text: a bound keeps a damaged or hostile file from filling the memory.
_MOST_JSON = 5_000_000


def parquet_source(path: Path, name: str) -> RowSource:
    """Opens a Parquet file, with the class names that `datasets` wrote into its metadata.

    Raises Malformed for a file that can't be read as Parquet, and Unsupported without pyarrow.
    """
    _require_pyarrow(name)
    from pyarrow import parquet

    with _broken_as_malformed(name, "Parquet"), parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        metadata = (schema.metadata or {}).get(b"huggingface", b"{}")
        columns = tuple(schema.names)

    def read(wanted: Sequence[str]) -> Iterator[RowCells]:
        check_columns(wanted, columns, name)
        with _broken_as_malformed(name, "Parquet"), parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH, columns=list(wanted)):
                yield from _rows_of_batch(batch, wanted)

    return RowSource(name, "parquet", None, columns, read, _class_names_in_metadata(metadata))


def _rows_of_batch(batch: Any, wanted: Sequence[str]) -> Iterator[RowCells]:
    return zip(*(batch.column(column).to_pylist() for column in wanted), strict=True)


def _class_names_in_metadata(text: bytes) -> dict[str, tuple[str, ...]]:
    try:
        found = json.loads(text[:_MOST_JSON])
        features = found["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}  # metadata of another tool: no names, which is what most files have
    return names_of_column(features)


def names_of_column(features: Any) -> dict[str, tuple[str, ...]]:
    """Gives the class names of each column, from the features of `datasets`; columns without names are left out."""
    if not isinstance(features, dict):
        return {}
    found = {column: _names_of_feature(feature) for column, feature in features.items()}
    return {column: names for column, names in found.items() if names}


def _names_of_feature(feature: Any) -> tuple[str, ...]:
    """Gives the names of a `ClassLabel`, or of a list of them; () for any other feature."""
    inner = feature[0] if isinstance(feature, list) and feature else feature
    if not isinstance(inner, dict):
        return ()
    if isinstance(inner.get("feature"), dict):  # Sequence, List, LargeList
        inner = inner["feature"]
    names = inner.get("names")
    is_label = inner.get("_type") == "ClassLabel" and isinstance(names, list)
    return tuple(str(name) for name in names) if is_label and names else ()


def saved_dataset_source(folder: Path, name: str, split: str | None) -> RowSource:
    """Opens a folder that `save_to_disk` wrote: one dataset, or several splits of which one is read.

    Raises UsageError for a split that it doesn't have.
    """
    splits = _read_split_names(folder, name)
    if splits:
        chosen = _choose_split(splits, split, name)
        return _dataset_source(folder / chosen, f"{name}/{chosen}", chosen)
    if split is not None:
        raise UsageError(f"{name} is one dataset without splits, so it has no split {split!r}", "leave it out")
    return _dataset_source(folder, name, None)


def _read_split_names(folder: Path, name: str) -> tuple[str, ...]:
    listing = folder / "dataset_dict.json"
    if not listing.is_file():
        return ()
    splits = _read_json(listing, name).get("splits")
    if not isinstance(splits, list) or not all(is_file_name(item) for item in splits):
        raise Malformed(f"{name}/dataset_dict.json doesn't list the names of splits", "save the dataset again")
    return tuple(splits)


def _choose_split(splits: tuple[str, ...], split: str | None, name: str) -> str:
    if split is None and len(splits) == 1:
        return splits[0]
    listed = f"splits: {', '.join(splits)}"
    if split is None:
        raise UsageError(f"{name} holds {len(splits)} splits, and none was chosen", f"add --split; {listed}")
    if split not in splits:
        raise UsageError(f"{name} has no split {split!r}", did_you_mean(split, splits, listed))
    return split


def _dataset_source(folder: Path, name: str, split: str | None) -> RowSource:
    if not (folder / "dataset_info.json").is_file() or not (folder / "state.json").is_file():
        raise Unsupported(
            f"{name} is not a folder that `datasets` saved: dataset_info.json or state.json is missing",
            "give the folder that Dataset.save_to_disk wrote, or a csv, tsv, jsonl or parquet file",
        )
    info, state = _read_json(folder / "dataset_info.json", name), _read_json(folder / "state.json", name)
    # `select` and `shuffle` keep an index and leave the rows in the data files as they were: without the index, rows
    # would come in another order, and removed ones would come back.
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise Unsupported(f"{name} was saved with an index beside its rows", "load it and save it again")
    files = _data_files(state, folder, name)
    _require_pyarrow(name)
    columns = _read_column_names(files[0], name) if files else ()

    def read(wanted: Sequence[str]) -> Iterator[RowCells]:
        check_columns(wanted, columns, name)
        for file in files:
            for batch in _read_batches(file, name):
                yield from _rows_of_batch(batch, wanted)

    return RowSource(name, "datasets", split, columns, read, names_of_column(info.get("features")))


def _data_files(state: dict[str, Any], folder: Path, name: str) -> list[Path]:
    entries = state.get("_data_files")
    listed = [item.get("filename") if isinstance(item, dict) else None for item in entries or ()] \
        if isinstance(entries, list) else [None]  # fmt: skip
    # A name with a folder in it could lead out of the dataset, so only plain file names are accepted.
    files = [item for item in listed if is_file_name(item)]
    if len(files) != len(listed):
        raise Malformed(f"{name}/state.json doesn't name files in the same folder", "save the dataset again")
    missing = [item for item in files if not (folder / item).is_file()]
    if missing:
        raise Malformed(f"{name} lacks {missing[0]}, which its state.json names", "copy the whole folder")
    return [folder / item for item in files]


def _read_column_names(file: Path, name: str) -> tuple[str, ...]:
    with _open_arrow_stream(file, name) as reader:
        return tuple(reader.schema.names)


def _read_batches(file: Path, name: str) -> Iterator[Any]:
    with _open_arrow_stream(file, name) as reader:
        for batch in reader:
            for start in range(0, batch.num_rows, _BATCH):
                yield batch.slice(start, _BATCH)


@contextmanager
def _open_arrow_stream(file: Path, name: str) -> Iterator[Any]:
    import pyarrow

    # Mapped, not read: an Arrow file can be larger than the memory.
    with (
        _broken_as_malformed(name, "Arrow"),
        pyarrow.ipc.open_stream(pyarrow.memory_map(str(file))) as reader,
    ):
        yield reader


def _read_json(file: Path, name: str) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            # One byte more than allowed shows that a file is too long, without reading all of it.
            text = opened.read(_MOST_JSON + 1)
    except OSError as err:
        raise Malformed(f"{name}/{file.name} cannot be read: {err.strerror or err}", "check its permissions") from err
    if len(text) > _MOST_JSON:
        raise Malformed(f"{name}/{file.name} has over {_MOST_JSON:,} bytes", "save the dataset again")
    try:
        found = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as err:
        raise Malformed(f"{name}/{file.name} is not valid JSON: {err}", "save the dataset again") from err
    if not isinstance(found, dict):
        raise Malformed(f"{name}/{file.name} doesn't hold a JSON object", "save the dataset again")
    return found


def _require_pyarrow(name: str) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as err:
        raise Unsupported(
            f"reading {name} needs pyarrow, which is not installed",
            "pip install pyarrow, or save the data as csv or JSON lines",
        ) from err


@contextmanager
def _broken_as_malformed(name: str, kind: str) -> Iterator[None]:
    """Raises Malformed where pyarrow can't read a file."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError) as err:
        raise Malformed(
            f"{name} is not a valid {kind} file: {first_line(err)}", "download it or save it again"
        ) from err
