"""The table of a scan as a folder of Parquet files, one partition for each verdict, and the log behind them.

The log is a file of JSON lines in the folder, `_rows.jsonl`: readers of datasets skip names that begin with `_`. It
gets each row as soon as that is known, it is what a scan continues, and it stays. Where a scan ends in any way but a
kill, all of the log is written as Parquet, into new files that then take the place of the old ones. After a kill, the
next run does that.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

from headscope.errors import HeadscopeError, UsageError, first_line
from headscope.facts.results.check import Verdict
from headscope.facts.results.scan import SCAN_SCHEMA, columns, is_row
from headscope.fleet.output import ANOTHER, LoggedTable, RowFile, RowObserver, TableRow, exists_already

if TYPE_CHECKING:
    import pyarrow

ROW_LOG = "_rows.jsonl"
PARTITION = "verdict"
_PART = "part-{i}.parquet"
_OWN = _PART.format(i=0)
"""The name of the one file that a partition gets from the log."""
_VERSION = b"headscope.scan"
_LARGEST = 2**63 - 1


class RowFolder(LoggedTable):
    """A folder that grows by whole rows, whatever ends the process; one process at a time writes it."""

    def __init__(self, path: Path, *, go_on: bool = False, seen: RowObserver | None = None) -> None:
        """Opens the folder; with `go_on` it may hold rows already, and `seen` is called with each.

        Raises UsageError without pyarrow, and for a folder that can't be written, is written by another process, or
        holds something else.
        """
        schema()
        _make(path)
        _refuse_foreign(path)
        if not go_on and (_log_of(path) is not None or any(_files(path))):
            raise exists_already(path)
        _restore_log(path)
        self.path = path
        self._log = RowFile(path / ROW_LOG, go_on=go_on, seen=seen)
        self.known = self._log.known

    def _write_out(self) -> None:
        """Writes the log as Parquet; a log without rows is removed."""
        new = self.path / f"_new-{secrets.token_hex(4)}"  # no folder of somebody: it is removed in the end
        if not self._log.size:
            self._log.path.unlink(missing_ok=True)
            return
        try:
            _remove_unfinished(self.path)
            self._log.sync()
            write_dataset(self._log.rows(), str(new))
            for file in _files(new):
                _sync(file)
                target = self.path / file.relative_to(new)
                target.parent.mkdir(exist_ok=True)
                file.replace(target)
        except OSError as err:
            raise HeadscopeError(
                f"{self.path} can't be written any more: {_system_words(err)}; {ROW_LOG} in it keeps the rows",
                "make room, and run the same command with --resume",
            ) from err
        finally:
            shutil.rmtree(new, ignore_errors=True)


def _remove_unfinished(folder: Path) -> None:
    """Removes what a killed scan had begun to write: folders of our names that hold files of a table only."""
    for place in folder.glob("_new-" + "[0-9a-f]" * 8):
        if not place.is_symlink() and all(path.is_dir() or path.name == _OWN for path in place.rglob("*")):
            shutil.rmtree(place, ignore_errors=True)


def write_dataset(rows: Iterator[TableRow], folder: str, part: str = _PART, system: Any = None) -> None:
    """Adds rows to a dataset: in each partition one file, named `part`. `system` is the file system of the folder."""
    import pyarrow
    from pyarrow import dataset

    some = iter(lambda: [in_range(row) for row in islice(rows, 5_000)], [])
    parquet = dataset.ParquetFileFormat()
    dataset.write_dataset(
        (pyarrow.RecordBatch.from_pylist(each, schema=schema()) for each in some),
        folder,
        schema=schema(),
        format=parquet,
        file_options=parquet.make_write_options(compression="zstd"),
        filesystem=system,
        basename_template=part,
        existing_data_behavior="overwrite_or_ignore",
        partitioning=dataset.partitioning(pyarrow.schema([(PARTITION, pyarrow.string())]), flavor="hive"),
        use_threads=False,  # keeps the order of the rows
    )


def _sync(file: Path) -> None:
    """Returns when the disk has the content of a file."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


def schema() -> pyarrow.Schema:
    """The columns of the table, the partition among them, with their types. Raises UsageError without pyarrow."""
    try:
        import pyarrow
    except ImportError as err:
        raise UsageError(
            "a table in Parquet needs pyarrow, which is not installed",
            'pip install "headscope[parquet]", or name a file such as rows.jsonl with -o',
        ) from err
    types = {str: pyarrow.string(), Verdict: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    types[bool] = pyarrow.bool_()

    def arrow_type(hint: Any) -> pyarrow.DataType:
        if get_origin(hint) is tuple:
            return pyarrow.list_(pyarrow.string())
        return types[(get_args(hint) or (hint,))[0]]

    fields = [(name, arrow_type(hint)) for name, hint in columns().items()]
    return pyarrow.schema(fields, metadata={_VERSION: SCAN_SCHEMA.encode()})


def in_range(row: TableRow) -> TableRow:
    """The row with every number that 64 bits can't hold left out."""
    return {name: None if isinstance(value, int) and abs(value) > _LARGEST else value for name, value in row.items()}


def _make(path: Path) -> None:
    """Makes the folder if need be."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file, and a table in Parquet is a folder", "name another folder with -o")
    try:
        path.mkdir(exist_ok=True)
    except FileNotFoundError as err:
        raise UsageError(f"{path} can't be written: there is no folder {path.parent}", "make the folder first") from err
    except OSError as err:
        raise UsageError(f"{path} can't be written: {err.strerror}", "name another folder with -o") from err


def _refuse_foreign(folder: Path) -> None:
    """Raises UsageError for what a reader of the folder would take for a part of the table, and no scan has written."""
    partitions = _partitions(folder)
    others = (path for path in sorted(folder.iterdir()) if path not in partitions)
    inside = (path for path in _files(folder, "*") if path.name != _OWN)
    for path in chain(others, inside):
        if not path.name.startswith(("_", ".")):
            raise UsageError(f"{folder} holds {path.name}, which isn't part of a scan's table", ANOTHER)


def _restore_log(folder: Path) -> None:
    """Makes the log again of the files that were written from it, where somebody has removed it."""
    own = [file for file in _files(folder) if file.name == _OWN]
    if not own or _log_of(folder) is not None:
        return
    temporary = folder / f"{ROW_LOG}.{secrets.token_hex(4)}"
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            for row in (row for file in own for row in _rows_of_part(file)):
                stream.write(json.dumps(row, allow_nan=False) + "\n")
        temporary.replace(folder / ROW_LOG)
    finally:
        temporary.unlink(missing_ok=True)


def _log_of(folder: Path) -> Path | None:
    """The log of a folder, if it holds rows."""
    log = folder / ROW_LOG
    return log if log.exists() and log.stat().st_size else None


def _partitions(folder: Path) -> list[Path]:
    every = (folder / f"{PARTITION}={verdict.value}" for verdict in Verdict)
    return [path for path in every if path.is_dir()]


def _files(folder: Path, pattern: str = "*.parquet") -> list[Path]:
    """The files in the partitions of a folder."""
    return sorted(file for partition in _partitions(folder) for file in partition.glob(pattern))


def _rows_of_part(path: Path) -> Iterator[TableRow]:
    """The rows of a Parquet file. Raises UsageError."""
    import pyarrow
    from pyarrow import parquet

    verdict = path.parent.name.partition("=")[2]
    try:
        with parquet.ParquetFile(path) as file:
            _check_schema(file.schema_arrow, path)
            for batch in file.iter_batches(batch_size=1_024):
                for values in batch.to_pylist():
                    row = {name: values.get(name, verdict) for name in columns()}
                    if not is_row(row):
                        raise UsageError(f"{path} has a row that isn't a row of a scan", ANOTHER)
                    yield row
    except (pyarrow.ArrowException, OSError) as err:
        raise UsageError(f"{path} can't be read: {_system_words(err)}", ANOTHER) from err


def _check_schema(found: pyarrow.Schema, path: Path) -> None:
    version = (found.metadata or {}).get(_VERSION, b"").decode("utf-8", "replace")
    if version != SCAN_SCHEMA:
        told = f"has rows of schema {version!r}" if version else "isn't part of a scan's table"
        raise UsageError(f"{path} {told}, and this headscope writes schema {SCAN_SCHEMA!r}", ANOTHER)
    stored = schema().remove(schema().get_field_index(PARTITION))  # the name of the folder tells it
    if not found.remove_metadata().equals(stored.remove_metadata()):
        raise UsageError(f"{path} hasn't the columns of schema {SCAN_SCHEMA!r}", ANOTHER)


def _system_words(err: Exception) -> str:
    """What the system said, in one line; Arrow puts that behind its own words."""
    told = err.strerror if isinstance(err, OSError) and err.errno else ""
    return (told or first_line(err)).rpartition("Detail: ")[2]
