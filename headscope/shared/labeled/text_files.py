"""Text files of rows: csv, tsv and JSON lines, read line by line within bounds."""

import codecs
import csv
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from headscope.errors import Malformed
from headscope.shared.labeled.rows import RowCells, RowSource, check_columns

_LONGEST = 4_000_000
"""Characters in a line or a cell: more than any text that a tokenizer takes."""
_ROWS = 16
"""How many rows are parsed at a time: few, as each may be as long as a line may."""
_MOST_COLUMNS = 200
_QUOTED = re.compile(r'"[^"]*(?:""[^"]*)*"')
_OTHER_ENCODINGS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}


def delimited_source(path: Path, name: str, format_name: str) -> RowSource:
    """Opens a csv or tsv file whose first line names the columns. Raises Malformed for one that is not."""
    with _open_text(path, name) as file:
        lines = [line for line, _ in zip(_read_lines(file, name), range(1_000), strict=False)]
    if not any(line.strip() for line in lines):
        raise Malformed(f"{name} is empty", "give a file with a line of column names, and rows")
    # European Excel writes semicolons into .csv. `max` takes the first of equals, so a file with one column gets a
    # comma.
    delimiter = "\t" if format_name == "tsv" else max((",", ";", "\t", "|"), key=lines[0].count)
    # Tab-separated files often hold quotes that quote nothing. A line with as many tabs as the first needs no quotes.
    is_quoted = delimiter != "\t" or any(line.count("\t") != lines[0].count("\t") for line in lines if line.strip())
    columns = next(_split_cells(iter(lines), name, delimiter, is_quoted=is_quoted), (0, []))[1]

    def read(wanted: Sequence[str]) -> Iterator[RowCells]:
        check_columns(wanted, columns, name)
        places = [columns.index(column) for column in wanted]
        with _open_text(path, name) as file:
            rows = _split_cells(_read_lines(file, name), name, delimiter, is_quoted=is_quoted)
            next(rows, None)
            for line, cells in rows:
                if len(cells) != len(columns):
                    raise Malformed(
                        f"{name} has {len(cells)} cells in line {line:,}, but its first line names {len(columns)} "
                        "columns",
                        "quote cells that contain the delimiter or a line break, or save the file again",
                    )
                yield tuple(cells[place] for place in places)

    return RowSource(name, format_name, None, tuple(columns), read, is_typed=False)


def _split_cells(
    lines: Iterator[str], name: str, delimiter: str, *, is_quoted: bool
) -> Iterator[tuple[int, list[str]]]:
    """Yields the cells of each line that is not empty, with the line's number."""
    if not is_quoted:
        for number, line in enumerate(lines, 1):
            cells = line.rstrip("\r\n").split(delimiter)
            if line.strip("\r\n"):
                yield number, [cell[1:-1].replace('""', '"') if _QUOTED.fullmatch(cell) else cell for cell in cells]
        return
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        try:
            with _raised_field_limit():
                rows = [(reader.line_num, row) for row in islice(reader, _ROWS)]
        except csv.Error as err:
            raise Malformed(
                f"{name} is not a valid csv file: {err}, near line {reader.line_num:,}",
                'save it again with every " inside a cell written as ""',
            ) from err
        if not rows:
            return
        yield from (item for item in rows if item[1])


@contextmanager
def _raised_field_limit() -> Iterator[None]:
    """Raises the csv module's limit for one cell, which the whole process shares, and restores it afterwards."""
    before = csv.field_size_limit(_LONGEST)
    try:
        yield
    finally:
        csv.field_size_limit(before)


@contextmanager
def _open_text(path: Path, name: str) -> Iterator[TextIO]:
    try:
        with path.open("rb") as raw:
            start = raw.read(4)
        for mark, encoding in _OTHER_ENCODINGS.items():
            if start.startswith(mark):
                raise Malformed(f"{name} is encoded as {encoding}, not as UTF-8", "save it as UTF-8")
        # utf-8-sig: Excel begins a UTF-8 file with a byte order mark. newline="": the csv module splits lines itself.
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
    except OSError as err:
        raise Malformed(f"{name} cannot be read: {err.strerror or err}", "check the path and its permissions") from err


def _read_lines(file: TextIO, name: str) -> Iterator[str]:
    """Yields the lines of a text. Raises Malformed for one longer than the limit, or that isn't text."""
    number = 0
    while True:
        number += 1
        try:
            line = file.readline(_LONGEST + 1)
        except UnicodeDecodeError as err:
            raise Malformed(f"{name} is not UTF-8 text, near line {number:,}", "save it as UTF-8") from err
        if not line:
            return
        if len(line) > _LONGEST:
            raise Malformed(f"{name} has over {_LONGEST:,} characters in line {number:,}", "check what the file is")
        if "\0" in line:
            raise Malformed(f"{name} has a NUL byte in line {number:,}, so it is not a text file", "save it as UTF-8")
        yield line


def json_lines_source(path: Path, name: str) -> RowSource:
    """Opens JSON lines: an object in each line. Raises Malformed for a file that is something else."""
    first = next(_read_objects(path, name), None)
    if first is None:
        raise Malformed(f"{name} is empty", "give a file with one JSON object in each line")

    def read(wanted: Sequence[str]) -> Iterator[RowCells]:
        seen: dict[str, None] = {}
        for item in _read_objects(path, name):
            # JSON lines name their columns in every row, so whether one exists is known after the last row. A hostile
            # file may have a new column in each: the list for the message is bounded, the wanted ones are always kept.
            if len(seen) < _MOST_COLUMNS:
                seen |= dict.fromkeys(item)
            yield tuple(item.get(column) for column in wanted)
            if not seen.keys() >= set(wanted):
                seen |= {column: None for column in wanted if column in item}
        check_columns(wanted, tuple(seen), name)

    return RowSource(name, "jsonl", None, tuple(first), read)


def _read_objects(path: Path, name: str) -> Iterator[dict[str, Any]]:
    with _open_text(path, name) as file:
        for number, line in enumerate(_read_lines(file, name), 1):
            if line.strip():
                yield _parse_object(line, number, name)


def _parse_object(line: str, number: int, name: str) -> dict[str, Any]:
    try:
        item = json.loads(line)
    except (ValueError, RecursionError) as err:
        if number == 1 and line.lstrip().startswith("["):
            raise _json_list_error(name) from err
        reason = getattr(err, "msg", None) or str(err)
        raise Malformed(f"{name} is not JSON lines: {reason} in line {number:,}", _ONE_OBJECT) from err
    if isinstance(item, list) and number == 1:
        raise _json_list_error(name)
    if not isinstance(item, dict):
        raise Malformed(f"{name} is not JSON lines: line {number:,} is not an object", _ONE_OBJECT)
    return item


_ONE_OBJECT = "write one JSON object in each line"


def _json_list_error(name: str) -> Malformed:
    hint = 'write one JSON object in each line, for example with pandas: to_json(..., orient="records", lines=True)'
    return Malformed(f"{name} is one JSON list, not JSON lines", hint)
