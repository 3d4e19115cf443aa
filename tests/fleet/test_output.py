"""The table of JSON lines, and what holds for both formats: each reported row is in it once, whatever happens."""

import errno
import json
import multiprocessing
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from tables import Killed, lines_of, names_in, python, random_seconds, row, rows_in, write_until_killed, written

from headscope.errors import HeadscopeError, UsageError
from headscope.slices.fleet import table as output
from headscope.slices.fleet.facts import columns
from headscope.slices.fleet.run import run_scan
from headscope.slices.fleet.table import RowFile, open_table
from headscope.slices.fleet.table_scan import ScanOutput
from headscope.slices.fleet.target import ScanSources


@pytest.fixture(params=["rows.jsonl", "rows.csv"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The place of a table, in both formats."""
    found: Path = tmp_path / request.param
    return found


# Kills


def test_no_kill_loses_a_row_or_writes_it_twice(either: Path) -> None:
    reported = [name for seconds in random_seconds(8) for name in write_until_killed(either, seconds)]
    found = Counter(names_in(written(either, go_on=True)))
    assert set(reported) <= set(found)
    assert set(found.values()) == {1}
    assert max(Counter(reported).values()) == 1
    assert sorted(found) == sorted(f"m{number}" for number in range(len(found)))


def test_a_kill_after_any_byte_of_a_row_leaves_the_rows_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "rows.jsonl", row("a"), row("b"))
    before = path.read_bytes()
    length = len(json.dumps(row("c", 2).to_dict())) + 1
    for cut in range(0, length + 1, 7):
        path.write_bytes(before)
        table = RowFile(path, go_on=True)

        def write_some(descriptor: int, data: bytes, cut: int = cut) -> int:
            os.pwrite(descriptor, data[:cut], 0)  # Linux appends, wherever that is
            raise Killed

        monkeypatch.setattr(os, "write", write_some)
        with pytest.raises(Killed):
            table.write(row("c", 2))
        monkeypatch.undo()
        table.close()
        with RowFile(path, go_on=True) as table:
            if not table.known.holds("c"):
                table.write(row("c", 2))
        assert names_in(path) == ["a", "b", "c"], cut


def test_a_row_that_lacks_only_the_end_of_its_line_is_kept(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", row("a"), row("b"))
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    with RowFile(path, go_on=True) as table:
        assert table.known.holds("b")
        table.write(row("c"))
    assert names_in(path) == ["a", "b", "c"]


def test_what_a_lost_current_leaves_is_cut_off(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", row("a"))
    path.write_bytes(path.read_bytes() + b"\0" * 300)
    assert names_in(written(path, row("b"), go_on=True)) == ["a", "b"]


# What the file holds


def test_a_table_with_rows_needs_a_word_to_go_on(either: Path) -> None:
    written(either, row("a"))
    before = {file: file.read_bytes() for file in either.parent.iterdir()}
    with pytest.raises(UsageError, match=f"{either.name} exists already") as refused:
        open_table(either)
    assert "--resume" in refused.value.hint
    assert {file: file.read_bytes() for file in either.parent.iterdir()} == before


def test_an_empty_file_is_a_table_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.touch()
    assert names_in(written(path, row("a"))) == ["a"]


ROW = json.dumps(row("a").to_dict()).encode()
FOREIGN = {
    "a picture": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\0" * 40,
    "a list on one line": b"[" + ROW + b"]",
    "a list": b"[\n" + ROW + b"\n]\n",
    "prose": b"notes that somebody wrote",
    "prose with lines": b"notes\nthat somebody wrote\n",
    "an object": b'{"a": 1}\n',
    "an object without an end": b'{"a": 1',
    "a number": b"1\n",
    "null": b"null",
    "a row, then prose": ROW + b"\n" + b"notes",
    "an empty line": b"\n" + ROW + b"\n",
    "too few columns": b'{"schema_version": "1.0", "reference": "a", "commit": null}\n',
    "a column of another type": ROW.replace(b'"new": 0', b'"new": "0"') + b"\n",
    "truth for a number": ROW.replace(b'"new": 0', b'"new": true') + b"\n",
    "an unknown verdict": ROW.replace(b'"passed"', b'"fine"') + b"\n",
    "a number of 5,000 digits": ROW.replace(b'"new": 0', b'"new": ' + b"9" * 5_000) + b"\n",
    "a number that no float can hold": ROW.replace(b'"seconds": 0.0', b'"seconds": 1' + b"0" * 400) + b"\n",
    "an endless time": ROW.replace(b'"seconds": 0.0', b'"seconds": Infinity') + b"\n",
    "no number": ROW.replace(b'"seconds": 0.0', b'"seconds": NaN') + b"\n",
    "a text that UTF-8 can't hold": ROW.replace(b'"reference": "a"', b'"reference": "\\ud800"') + b"\n",
    "deep nesting": b"[" * 100_000 + b"\n",
    "UTF-16": ROW.decode().encode("utf-16") + b"\n",
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_file_of_something_else_is_refused_and_stays_as_it_is(tmp_path: Path, what: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(FOREIGN[what])
    with pytest.raises(UsageError, match=r"isn't a row of a scan$"):
        RowFile(path, go_on=True)
    assert path.read_bytes() == FOREIGN[what]


def test_rows_of_another_schema_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"reference": "a", "schema_version": "2.0", "more": 1}\n')
    with pytest.raises(UsageError, match=r"rows\.jsonl .*'2\.0'.*'1\.0'"):
        RowFile(path, go_on=True)


def test_a_line_that_is_longer_than_any_row_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_LONGEST", 10_000)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"reference": "' + b"a" * 20_000)
    with pytest.raises(UsageError, match=r"line 1 of .* isn't a row"):
        RowFile(path, go_on=True)


def test_every_row_that_the_file_holds_is_seen(tmp_path: Path) -> None:
    path, seen = written(tmp_path / "rows.jsonl", row("a"), row("b", 1)), list[dict[str, object]]()
    with RowFile(path, go_on=True, seen=lambda one: seen.append(dict(one))) as table:
        assert table.known.holds("a")
        assert not table.known.holds("c")
        assert table.known.holds_commit("b", "c1")
        assert not table.known.holds_commit("b", "c0")
        assert not table.known.holds_commit("b", None)
    assert seen == [row("a", 0).to_dict(), row("b", 1).to_dict()] == rows_in(path)
    assert list(seen[0]) == list(columns())


def test_a_name_that_is_not_utf8_is_known_again_and_any_reader_can_decode_it(either: Path) -> None:
    name = os.fsdecode(b"bad\xffname")
    with open_table(written(either, row(name)), go_on=True) as table:
        assert table.known.holds(name)
    [found] = names_in(either)
    assert found.encode() == rb"bad\udcffname"


# Where it can't be written


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody reaches."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


_AS_NOBODY = """
import encodings.utf_8_sig  # nobody may not read Python's own folder
from headscope.errors import HeadscopeError
from headscope.slices.fleet import table
if os.getuid() == 0:
    os.setuid(65534)
try:
    table.open_table(sys.argv[1], go_on=True)
except HeadscopeError as err:
    print(err.exit_code, err.message)
"""


@pytest.mark.parametrize("name", ["rows.jsonl", "new.jsonl", "rows.csv", "new.csv"])
def test_a_place_without_permission_is_refused_in_one_sentence(open_folder: Path, name: str) -> None:
    for there in ("rows.jsonl", "rows.csv"):
        written(open_folder / there, row("a"))
    for file in open_folder.iterdir():
        file.chmod(0o444)
    open_folder.chmod(0o555)
    ran = subprocess.run(python(_AS_NOBODY, open_folder / name), capture_output=True, text=True, check=False)
    open_folder.chmod(0o755)
    assert ran.stdout.startswith(f"2 {lines_of(open_folder / name)} "), ran.stderr
    assert ran.stdout.endswith(": Permission denied\n")


def test_a_folder_that_is_missing_is_named(either: Path) -> None:
    with pytest.raises(UsageError, match=f"folder {either.parent}/none"):
        open_table(either.parent / "none" / either.name)


_FULL = """
import resource
from headscope.errors import HeadscopeError
resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))
try:
    with open_table(sys.argv[1]) as table:
        for number in range(100):
            table.write(row(f"m{number}", number))
            print(f"m{number}")
except HeadscopeError as err:
    print(err.exit_code, err.message, err.hint)
"""


def test_a_disk_that_is_full_keeps_every_row_so_far(either: Path) -> None:
    log, command = lines_of(either), python(_FULL, either)
    *reported, sentence = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert names_in(log) == reported
    assert len(reported) > 3
    assert log.stat().st_size <= 5_000
    assert sentence.startswith("3 ")
    told = "can't be written any more: File too large; it holds every row so far make room"
    assert f"{log.name} {told}" in sentence
    assert "--resume" in sentence
    assert sorted(names_in(written(either, row("last"), go_on=True))) == sorted([*reported, "last"])


def test_a_file_that_is_removed_during_the_scan_is_noticed(either: Path) -> None:
    with open_table(either) as table:
        table.write(row("a"))
        lines_of(either).unlink()
        with pytest.raises(HeadscopeError, match=f"{either.name}.* removed"):
            table.write(row("b"))
    assert names_in(either) == ["a"] if either.suffix == ".csv" else not either.exists()


# Pipes, devices, links


def test_a_named_pipe_takes_rows_and_gives_them_to_its_reader(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE, text=True) as reader:
        written(path, row("a"), row("b"))
        assert [json.loads(line)["reference"] for line in reader.communicate(timeout=20)[0].splitlines()] == ["a", "b"]
    with pytest.raises(UsageError, match="pipe"):
        open_with_a_reader(path)


def open_with_a_reader(path: Path) -> None:
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        RowFile(path, go_on=True)
    finally:
        os.close(reader)


def test_a_pipe_that_nobody_reads_any_more_ends_the_scan(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with RowFile(path) as table:
        table.write(row("a"))
        os.close(reader)
        with pytest.raises(HeadscopeError, match=": Broken pipe"):
            table.write(row("b"))


def test_a_full_device_is_told() -> None:
    with RowFile(Path("/dev/full")) as table, pytest.raises(HeadscopeError, match=os.strerror(errno.ENOSPC)):
        table.write(row("a"))


_TO_STDOUT = """
with open_table("/dev/stdout") as table:
    table.write(row("a"))
    table.write(row("b"))
"""


@pytest.mark.parametrize("to_file", [False, True])
def test_the_device_of_stdout_takes_rows(tmp_path: Path, to_file: bool) -> None:
    command, path = python(_TO_STDOUT), tmp_path / "rows"
    if to_file:
        with path.open("wb") as file:
            subprocess.run(command, stdout=file, check=True, timeout=60)
    else:
        path.write_bytes(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60).stdout)
    assert names_in(path) == ["a", "b"]


def test_a_link_to_the_table_is_followed(either: Path) -> None:
    real = either.parent / "folder" / f"real{either.suffix}"
    real.parent.mkdir()
    written(either, row("a")).rename(real)
    either.symlink_to(f"folder/{real.name}")
    written(either, row("b"), go_on=True)
    assert either.is_symlink()
    assert names_in(real) == ["a", "b"]


# Two scans


def hold(path: Path, ready: Event, done: Event) -> None:
    with open_table(path):
        ready.set()
        done.wait(60)


def test_a_second_scan_is_refused_until_the_first_ends(either: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    first = context.Process(target=hold, args=(either, ready, done))
    first.start()
    try:
        assert ready.wait(60)
        with pytest.raises(UsageError, match=f"another .*{either}"):
            open_table(either, go_on=True)
    finally:
        done.set()
        first.join()
    written(either, go_on=True)


# Names


REFUSED = {
    "rows.tsv": ("not as .tsv", "rows.jsonl or rows.csv"),
    "rows.jsonl.gz": ("not as .gz", "rows.jsonl or rows.csv"),
    "rows.arrow": ("not as .arrow", "rows.jsonl or rows.csv"),
    "ROWS.XLSX": ("not as .xlsx", "rows.jsonl or rows.csv"),
    "rows.parquet": ("not as .parquet", "write rows.jsonl; then: duckdb"),
    "ROWS.PARQUET": ("not as .parquet", "write rows.jsonl; then: duckdb"),
    "rows.parquet/": ("not as .parquet", "write rows.jsonl; then: duckdb"),
    "there": ("there names a folder", "there/rows.jsonl"),
    "rows/": ("rows/ names a folder", "rows/rows.jsonl"),
    "s3://bucket/heads": ("s3://bucket/heads is a URL", "copy it there"),
    "s3://bucket/heads.parquet": ("heads.parquet is a URL", "copy it there"),
    "file:///tmp/rows.jsonl": ("file:///tmp/rows.jsonl is a URL", "copy it there"),
    "": ("the name of the table is empty", "name a file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_of_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    with pytest.raises(UsageError) as refused:
        open_table(name)
    found, expected = REFUSED[name]
    assert found in refused.value.message
    assert not name or "JSON lines or CSV" in refused.value.message
    assert expected in refused.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_name_is_refused_before_the_sources_are_read(tmp_path: Path) -> None:
    def read() -> Iterator[str]:
        raise AssertionError("the sources were read")
        yield

    for name in ("rows.parquet", "s3://bucket/heads", str(tmp_path)):
        with pytest.raises(UsageError, match="JSON lines or CSV"):
            run_scan(ScanSources(read()), ScanOutput(name), workers=0, offline=True)
