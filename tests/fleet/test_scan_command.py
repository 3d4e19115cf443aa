"""`headscope scan` as people type it: rows that follow the published schema, summaries, exit codes, one sentence."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from threading import Thread
from typing import Any

import jsonschema
import pytest
from tables import lines_of, names_in, rows_in, scan, until

from headscope.core.facts.environment import tool_version
from headscope.shell import main
from headscope.slices.fleet import target
from headscope.slices.fleet.facts import ScanRow, ScanSummary, columns
from headscope.slices.fleet.run import run_scan
from headscope.slices.fleet.table_scan import ScanOutput
from headscope.slices.fleet.target import ScanSources, Target
from tests import warm

SCHEMAS = Path(__file__).parents[2] / "docs" / "schema"
ROW = json.loads((SCHEMAS / "headscope-scan-1.0.schema.json").read_text())
DOCUMENT = json.loads((SCHEMAS / "headscope-1.0.schema.json").read_text())
MODELS = ("bert-base-uncased", "gpt2", "nosuch", os.fsdecode(b"bad\xffname"))
STORED = ("bert-base-uncased", "gpt2", "nosuch", r"bad\udcffname")


COLD = [sys.executable, "-m", "headscope", "scan", "--workers", "1"]


def scan_here(*names: str, **output: Any) -> ScanSummary:
    return run_scan(ScanSources(names), ScanOutput(**output), workers=0, offline=True)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One scan with a table of JSON lines and every summary."""
    folder = tmp_path_factory.mktemp("scan")
    summaries = [word for name in ("s.txt", "s.md", "s.html", "s.json") for word in ("--summary", name)]
    return folder, scan(*MODELS, "-o", "rows.jsonl", *summaries, folder=folder)


Ran = tuple[Path, subprocess.CompletedProcess[str]]


def test_every_row_of_a_scan_follows_the_published_schema(ran: Ran) -> None:
    folder, done = ran
    rows = rows_in(folder / "rows.jsonl")
    assert sorted(row["reference"] for row in rows) == sorted(STORED), done.stderr
    for row in rows:
        jsonschema.validate(row, ROW)
        assert list(row) == list(columns())
    assert {row["verdict"] for row in rows} == {"passed", "failed", "not_determined"}


@pytest.mark.parametrize(
    "change", [{"verdict": "fine"}, {"new": "2"}, {"labels": None}, {"not_determined": "odd"}, {"more": 1}]
)
def test_a_wrong_row_does_not_follow_the_schema(ran: Ran, change: dict[str, Any]) -> None:
    row = rows_in(ran[0] / "rows.jsonl")[0]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(row | change, ROW)


def test_the_summary_is_on_stdout_and_in_every_file(ran: Ran) -> None:
    folder, done = ran
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"wrote {name}" for name in ("s.txt", "s.md", "s.html", "s.json", "rows.jsonl")]
    assert done.stdout.startswith("4 checkpoints: 1 passed, 1 failed, 2 not determined\n")
    assert (folder / "s.txt").read_text() == f"{done.stdout}\nheadscope {tool_version()}\n"
    assert "| 1 | `GPT2ForSequenceClassification` |" in (folder / "s.md").read_text()
    assert (folder / "s.html").read_text().startswith("<!DOCTYPE html>")
    document = json.loads((folder / "s.json").read_text())
    jsonschema.validate(document, DOCUMENT)
    assert {one["name"]: one["count"] for one in document["verdicts"]} == Counter(
        row["verdict"] for row in rows_in(folder / "rows.jsonl")
    )


def test_resume_examines_nothing_twice_and_sums_up_the_whole_table(ran: Ran, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes((ran[0] / "rows.jsonl").read_bytes())
    done = scan(*MODELS, "-o", "rows.jsonl", "--resume", "--json", folder=tmp_path)
    assert done.returncode == 1
    document = json.loads(done.stdout)
    jsonschema.validate(document, DOCUMENT)
    assert (document["rows"], document["written"], document["skipped"]) == (4, 0, 4)
    assert (tmp_path / "rows.jsonl").read_bytes() == (ran[0] / "rows.jsonl").read_bytes()


def test_rows_on_stdout_leave_the_summary_to_stderr(tmp_path: Path) -> None:
    done = scan("nosuch", "--json", folder=tmp_path)
    assert done.returncode == 3
    [row] = [json.loads(line) for line in done.stdout.splitlines()]
    jsonschema.validate(row, ROW)
    document = json.loads(done.stderr)
    jsonschema.validate(document, DOCUMENT)
    assert document["causes"] == [{"name": "offline", "count": 1}]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_a_scan_that_is_killed_goes_on_where_it_was(tmp_path: Path, name: str) -> None:
    models = tuple(f"nosuch-{number}" for number in range(60))
    surroundings, table = os.environ | warm.offline(), lines_of(tmp_path / name)
    command = [*COLD, "-o", name, *models]
    with subprocess.Popen(command, cwd=tmp_path, env=surroundings, stdout=subprocess.DEVNULL) as process:
        until(lambda: table.exists() and table.stat().st_size > 0)
        process.send_signal(signal.SIGKILL)
    before = table.read_bytes()
    assert before
    done = scan(*models, "-o", name, "--resume", folder=tmp_path)
    assert done.returncode == 3, done.stderr
    assert table.read_bytes().startswith(before.rpartition(b"\n")[0])
    assert sorted(names_in(table)) == sorted(names_in(tmp_path / name)) == sorted(models)


def test_no_name_of_a_folder_is_a_formula_in_csv(tmp_path: Path) -> None:
    names = ('=HYPERLINK("http:x","y")', "@SUM(A1)", "+1", "a;=1")
    for name in names:
        (tmp_path / name).mkdir()
    done = scan(*names, "-o", "rows.csv", folder=tmp_path)
    assert done.returncode == 3, done.stderr
    assert sorted(names_in(tmp_path / "rows.csv")) == sorted([*(f"'{name}" for name in names[:3]), "a;'=1"])


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_scan_and_its_workers_and_leaves_no_folder(tmp_path: Path, sent: int, code: int) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    models = tuple(f"nosuch-{number}" for number in range(4000))  # more than a busy machine reads before the signal
    surroundings = os.environ | warm.offline() | {"TMPDIR": str(scratch)}
    with subprocess.Popen(
        [*COLD, "-o", "rows.jsonl", *models], cwd=tmp_path, env=surroundings, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=lambda: signal.signal(sent, signal.SIG_DFL),  # noqa: PLW1509 - a background job may ignore it
    ) as process:  # fmt: skip
        until((tmp_path / "rows.jsonl").exists)
        process.send_signal(sent)
        _, told = process.communicate(timeout=60)
    assert process.returncode == code, told
    assert told in ("", "error: interrupted\n")
    assert not [found for found in scratch.rglob("*") if "headscope-scan-" in str(found)]
    until(lambda: not _has_processes(process.pid), seconds=30)  # the workers are of the same session


def _has_processes(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


# In this process


def test_only_new_adds_no_second_row_of_a_commit(tmp_path: Path) -> None:
    """Where the source doesn't tell the commit, it is known after the examination."""
    for _ in range(2):
        found = scan_here("gpt2", place=tmp_path / "rows.jsonl", only_new=True)
    assert names_in(tmp_path / "rows.jsonl") == ["gpt2"]
    assert (found.rows, found.written, found.skipped) == (1, 0, 1)


@pytest.mark.parametrize("reference", ["hf://gpt2", "https://huggingface.co/gpt2", "gpt2@main"])
def test_a_reference_is_known_again_as_it_was_named(tmp_path: Path, reference: str) -> None:
    for _ in range(2):
        found = scan_here(reference, place=tmp_path / "rows.jsonl", resume=True)
    assert names_in(tmp_path / "rows.jsonl") == [reference]
    assert (found.written, found.skipped) == (0, 1)


def test_a_scan_ends_where_nobody_reads_its_rows() -> None:
    seen: list[ScanRow] = []

    def write(row: ScanRow) -> bool:
        seen.append(row)
        return False

    found = scan_here("nosuch-1", "nosuch-2", "nosuch-3", write=write)
    assert len(seen) == found.rows == found.written == 1
    assert found.skipped == 0


def test_a_pipe_takes_the_rows_of_a_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is opened twice ends the pipe for its reader before the first row."""
    monkeypatch.setattr(target, "on_hub", lambda *_, **__: iter((Target("nosuch-1"), Target("nosuch-2"))))
    pipe, read = tmp_path / "rows", list[str]()
    os.mkfifo(pipe)
    reader = Thread(target=lambda: read.extend(pipe.read_text().splitlines()), daemon=True)
    sources = ScanSources(on_hub={"author": "team"})
    writer = Thread(target=lambda: run_scan(sources, ScanOutput(pipe), workers=0, offline=True), daemon=True)
    reader.start()
    writer.start()
    reader.join(60)
    assert [json.loads(line)["reference"] for line in read] == ["nosuch-1", "nosuch-2"]


def test_a_scan_whose_reader_leaves_is_not_green(tmp_path: Path) -> None:
    """The checkpoint that passes is examined; the row of the one that isn't there, nobody would see."""
    reader, writer = os.pipe()
    os.close(reader)
    done = scan("bert-base-uncased", "nosuch", folder=tmp_path, stdout=writer)
    os.close(writer)
    assert done.stderr.startswith("1 checkpoint: 1 passed\n")
    assert "stdout" in done.stderr.splitlines()[-1] and " -o" in done.stderr.splitlines()[-1]
    assert done.returncode == 3


WRONG = {
    ("gpt2", "--summary", "s.pdf"): "--summary s.pdf: the format of a summary follows from the name of its file",
    ("gpt2", "--summary", "none/s.md"): "--summary none/s.md: there is no folder none",
    ("gpt2", "--summary", "there.md"): "--summary there.md is a folder",
    ("gpt2", "-o", "a.json", "--summary", "./a.json"): "--summary a.json and -o a.json are one file",
    ("gpt2", "--resume"): "a table on stdout can't be continued",
    ("gpt2", "-o", "rows.tsv"): "rows.tsv: a table is written as JSON lines or CSV, not as .tsv",
    ("gpt2", "-o", "there.parquet"): "there.parquet: a table is written as JSON lines or CSV, not as .parquet",
    ("gpt2", "-o", "new/"): "new/ names a folder, and a table is written to a file of JSON lines or CSV",
    ("gpt2", "-o", "s3://bucket/heads"): (
        "s3://bucket/heads is a URL, and a table is written to a file of JSON lines or CSV"
    ),
    ("gpt2", "-o", "none/rows.jsonl"): "-o none/rows.jsonl: there is no folder none",
    ("gpt2", "-o", "there.md", "--resume"): (
        "there.md names a folder, and a table is written to a file of JSON lines or CSV"
    ),
    ("gpt2", "-o", "picture.png", "--resume"): "-o picture.png exists and is not a report",
    ("gpt2", "-o", "picture.png"): "-o picture.png exists and is not a report",
    ("gpt2", "-o", "a.json", "--summary", "there.md/../a.json"): (
        "--summary there.md/../a.json and -o a.json are one file"
    ),
    ("--from", "list.txt", "--summary", "./list.txt"): "--summary list.txt is read by this command",
    ("gpt2", "-o", ""): "the name of the table is empty",
    ("gpt2", "--from", ""): "the value of --from is empty",
    ("gpt2", "--folder", ""): "the value of --folder is empty",
    ("gpt2", "--author", ""): "the value of --author is empty",
    ("gpt2", "--task", "bogus"): "no such task: bogus",
    ("gpt2", "--num-labels", "0"): "--num-labels must be at least 1, not 0",
    ("gpt2", "--timeout", "-1"): "--timeout must be more than 0 seconds, not -1",
    ("gpt2", "--time-limit", "nan"): "the time limit must be a number above 0, not nan",
    ("gpt2", "--memory-limit", "0"): "the memory limit must be a number above 0, not 0.0",
    ("--folder", "there.md"): (
        "there is nothing to scan: there.md holds no config.json beside weights, no adapter and no snapshot"
    ),
    ("--from", "list.txt"): "there is nothing to scan: list.txt lists no models",
}


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_a_wrong_place_is_told_in_one_sentence_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.md").mkdir()
    (tmp_path / "there.md" / "notes.txt").write_text("mine")
    (tmp_path / "there.parquet").write_bytes(b"PAR1")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "list.txt").write_text("# none yet\n")
    assert main(["scan", *arguments, "--offline"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    error, *rest = told.err.splitlines()
    assert error == f"error: {WRONG[arguments]}"
    assert len(rest) <= 1
    assert all(line.startswith("hint: ") for line in rest)


@pytest.mark.parametrize("stdout", ["a pipe", "the terminal"])
def test_rows_are_whole_beside_the_bar_of_a_terminal(stdout: str, tmp_path: Path) -> None:
    """The bar is drawn on a terminal of 80 columns; each row is one line of stdout, wherever that goes."""
    screen, terminal = os.openpty()
    process = subprocess.Popen(
        [*COLD, "gpt2", "bert-base-uncased"],
        stdout=subprocess.PIPE if stdout == "a pipe" else terminal,
        stderr=terminal,
        cwd=tmp_path,
        env=os.environ | warm.offline() | {"COLUMNS": "80", "TERM": "xterm", "HEADSCOPE_NO_PROGRESS": ""},
    )
    os.close(terminal)
    shown = b""
    try:
        while piece := os.read(screen, 65536):
            shown += piece
    except OSError:  # Linux reports the end of a terminal so
        pass
    rows = process.communicate()[0] if stdout == "a pipe" else shown
    assert process.wait() == 1  # a finding on gpt2
    lines = [json.loads(line) for line in rows.splitlines() if line.startswith(b"{")]
    assert [line["reference"] for line in lines] == ["gpt2", "bert-base-uncased"]
    assert (b"scanning" in shown) == (stdout == "a pipe")
    os.close(screen)
