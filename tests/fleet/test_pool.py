"""A checkpoint that hangs, crashes or fills the memory costs itself alone, and no worker outlives its scan."""

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from scan_faults import Dies, Fills, Grows, Hangs, Imports, Leaves, Raises, Told
from tables import workers_below

import headscope
from headscope.core import workers as processes
from headscope.core.facts.verdict import Verdict
from headscope.core.workers import Worker, WorkerEnded
from headscope.errors import HeadscopeError, Unsupported, UsageError, WithoutConfig
from headscope.shell.values import make_request
from headscope.slices.fleet.pool import Limits, Work, scan_in_pool, shared_folder
from headscope.slices.fleet.row import RowOptions
from headscope.slices.fleet.target import Target
from tests.headers_only import Checkpoint, write

SNAPSHOTS = ("bert-base-uncased", "gpt2", "roberta-base", "distilbert-base-uncased")


def work() -> Work:
    return Work(make_request("", {"offline": True}), RowOptions())


def scanned(targets: Sequence[Target], limits: Limits) -> dict[str, tuple[str | None, str]]:
    rows = list(scan_in_pool(targets, work(), 2, limits))
    assert len(rows) == len(targets), "a row for each"
    return {row.reference: (row.not_determined, row.reason) for row in rows}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the address space of a process")
def test_each_culprit_is_named_and_the_others_are_examined() -> None:
    faults = [Dies("dies"), Fills("fills"), Leaves("leaves"), Raises("raises")]
    good = [Target(name) for name in SNAPSHOTS]
    mixed = [item for pair in zip(faults, good, strict=True) for item in pair]
    found = scanned(mixed, Limits(seconds=120, memory=2 * 1024**3))
    assert {name: found[name][0] for name in SNAPSHOTS} == dict.fromkeys(SNAPSHOTS)
    for name, kind, end in (("dies", "crash", ": SIGSEGV"), ("leaves", "crash", " 7"), ("fills", "memory", "")):
        assert found[name][0] == kind and found[name][1].endswith(end)
    assert found["raises"] == ("crash", "ZeroDivisionError: seven")


@pytest.mark.usefixtures("cold_children")
def test_a_worker_imports_libraries_at_the_first_checkpoint_that_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSCOPE_NO_CACHE", "")
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], **size}
    folder = write(Checkpoint("", config, {"classifier.bias": ("F32", (2,))}), tmp_path / "own")
    mixed = [Target("bert-base-uncased"), Told("before"), Target(str(folder)), Told("after")]

    cached = Work(make_request("", {"offline": True, "cache": True}), RowOptions())
    first, second = (list(scan_in_pool(mixed, cached, 1, Limits())) for _ in range(2))
    assert [row.reason for row in first if row.reference == "before"] == ["RuntimeError: neither"]
    assert [row.reason for row in first if row.reference == "after"] == ["RuntimeError: torch transformers"]
    assert [row.reason for row in second if row.reference == "after"] == ["RuntimeError: neither"], "all is known now"
    (slow,), (again,) = ([row for row in rows if row.reference == str(folder)] for rows in (first, second))
    assert slow.verdict is not Verdict.NOT_DETERMINED
    assert replace(slow, seconds=0.0) == replace(again, seconds=0.0)


def test_the_time_of_an_import_is_not_the_time_of_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time, transformers; time.sleep(0.3)", encoding="utf-8")
    (tmp_path / "transformers.py").write_text("import time; time.sleep(0.2)", encoding="utf-8")
    code = (
        "from contextlib import contextmanager\n"
        "from headscope.core.upstream.imports import ImportTime, watched_imports\n"
        "@contextmanager\ndef around(name):\n    print('begin', name)\n    yield\n    print('end')\n"
        "with watched_imports(around):\n    import torch, transformers\n"
        "print(0.5 <= ImportTime.seconds < 5, type(torch.__loader__).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["begin", "torch", "end", "True", "SourceFileLoader"]


CONTENTS = {
    "dies": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "hangs": "import time; time.sleep(600)",
    "fails": "import no_such_library",
    "slow": "import time; time.sleep(2)",
}


def test_the_import_of_a_module_that_fails_costs_its_own_checkpoint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_IMPORT_SECONDS", 4.0)  # PyTorch is imported already
    for name, text in CONTENTS.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    targets = [Imports(str(tmp_path / f"{name}.py")) for name in CONTENTS]
    found = scanned([*targets, Raises("raises")], Limits(seconds=1.5))
    told = {name: found[str(tmp_path / f"{name}.py")] for name in CONTENTS}
    assert told["dies"][0] == "crash" and told["dies"][1].endswith(": SIGSEGV")
    assert told["hangs"][0] == "timeout"
    assert told["fails"][0] == "unsupported"
    assert "No module named 'no_such_library'" in told["fails"][1]
    assert told["slow"] == ("crash", "ZeroDivisionError: imported"), "an import is no part of a checkpoint's time"
    assert found["raises"][0] == "crash"


@pytest.mark.usefixtures("cold_children")
@pytest.mark.parametrize("text", [CONTENTS["dies"], CONTENTS["hangs"]])
def test_a_worker_that_cannot_import_its_libraries_ends_the_scan(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_IMPORT_SECONDS", 2.0)
    (tmp_path / "transformers.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Unsupported, match="first checkpoint"):
        list(scan_in_pool([Imports("a"), Imports("b"), Imports("c")], work(), 2, Limits(seconds=120)))
    assert sys.platform != "linux" or workers_below(os.getpid()) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the address space of a process")
def test_an_import_does_not_give_a_checkpoint_more_memory(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / f"big_{name}.py").write_text("taken = bytes(10**9)", encoding="utf-8")
    place = str(tmp_path / "big.py")
    few, enough = (scanned([Grows(place)], Limits(seconds=120, memory=size))[place] for size in (2 * 10**9, 4 * 10**9))
    assert few[0] == "memory"
    assert enough == ("crash", "ZeroDivisionError: imported")


def test_what_hangs_ends_at_its_time_limit() -> None:
    found = scanned([Hangs("hangs"), Raises("raises")], Limits(seconds=1.5))
    assert found["hangs"][0] == "timeout" and " 1.5 s" in found["hangs"][1]
    assert found["raises"][0] == "crash"


@pytest.mark.skipif(sys.platform != "linux", reason="the processes are read from /proc")
def test_no_worker_is_left_where_nobody_reads_on() -> None:
    rows = scan_in_pool([Raises("a"), Hangs("b"), Hangs("c")], work(), 2, Limits())
    assert next(rows).reference == "a"
    assert workers_below(os.getpid()) == 2
    rows.close()  # type: ignore[attr-defined]
    assert workers_below(os.getpid()) == 0


def test_a_script_without_a_main_guard_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('begun')\nimport headscope\n"
        "print([row.class_name for row in headscope.scan(['gpt2'], workers=1, offline=True)])\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.splitlines() == ["begun", "['GPT2ForSequenceClassification']"]


def test_rows_say_what_inspect_says() -> None:
    for row in headscope.scan(SNAPSHOTS, workers=0, offline=True):
        report = headscope.inspect(row.reference, offline=True)
        assert row.class_name == report.model.class_name
        assert row.pooling_kind == report.head.pooling.kind
        assert row.formula == report.head.formula
        assert (row.new, row.mismatched, row.unused) == (
            len(report.weights.new),
            len(report.weights.mismatched),
            len(report.weights.unused),
        )
        assert row.head_parameters == report.model.parameters.head
        assert row.labels == report.model.labels
        assert set(row.findings) == {finding.id for finding in report.findings}
        assert row.profile == report.profile


KILLED = """
import os, signal, sys, tempfile
from headscope.slices.fleet.pool import shared_folder

tempfile.tempdir = sys.argv[1]
with shared_folder() as folder:
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_folders_of_killed_scans_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not those of scans that run: not even where their processes can't be seen, as in another container."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, check=False)
    orphan = Path(ended.stdout.strip())
    assert orphan.is_dir(), ended.stderr
    (tmp_path / "headscope-scan-notes").mkdir()
    with shared_folder() as running, shared_folder() as other:
        assert {path.name for path in tmp_path.iterdir()} == {running.name, other.name, "headscope-scan-notes"}
    assert {path.name for path in tmp_path.iterdir()} == {"headscope-scan-notes"}


def test_without_a_place_for_temporary_files_one_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(HeadscopeError, match=r"^a temporary folder .*: No such file or directory$"):
        list(headscope.scan(["gpt2"], workers=1, offline=True))


def test_limits_may_be_endless() -> None:
    rows = headscope.scan(["nosuch"], workers=1, offline=True, time_limit=math.inf, memory_limit=math.inf)
    assert [row.not_determined for row in rows] == ["offline"]


# The worker process: results, errors as they were raised, and the way in which it ended.


def test_calls_are_answered_in_one_process() -> None:
    with Worker() as worker:
        assert worker.call(abs, -3) == 3
        process = worker.call(os.getpid)
        assert process == worker.call(os.getpid) != os.getpid()
        with pytest.raises(ZeroDivisionError, match="by zero"):
            worker.call(divmod, 1, 0)
        assert worker.call(os.getpid) == process


@pytest.mark.parametrize(
    "error",
    [UsageError("wrong", "do it right"), WithoutConfig("none", "add one", (1, 2)), Unsupported("odd")],
)
def test_an_error_arrives_with_all_its_fields(error: Exception) -> None:
    with Worker() as worker, pytest.raises(type(error)) as caught:
        worker.call(raising, error)
    assert type(caught.value) is type(error)
    assert vars(caught.value) == vars(error)
    assert str(caught.value) == str(error)


def test_a_result_that_cannot_be_sent_is_an_error_and_the_worker_goes_on() -> None:
    with Worker() as worker:
        with pytest.raises(Exception, match="pickle"):
            worker.call(open, os.devnull)
        assert worker.call(abs, -1) == 1


@pytest.mark.parametrize(("arguments", "code"), [((os._exit, 7), 7), ((os.abort,), -6)])
def test_how_it_ended_is_known(arguments: tuple[object, ...], code: int) -> None:
    with Worker() as worker:
        with pytest.raises(WorkerEnded) as caught:
            worker.call(*arguments)  # type: ignore[arg-type]
        assert caught.value.code == code
        assert worker.is_over


@pytest.mark.skipif(sys.platform != "linux", reason="the processes are read from /proc")
def test_a_call_that_takes_too_long_ends_the_process() -> None:
    with Worker() as worker:
        assert worker.call(abs, -1, seconds=60) == 1
        assert workers_below(os.getpid()) == 1
        with pytest.raises(TimeoutError):
            worker.call(time.sleep, 600, seconds=0.5)
        assert worker.is_over
        assert workers_below(os.getpid()) == 0


def test_nothing_that_a_call_prints_or_reads_is_an_answer() -> None:
    with Worker() as worker:
        assert worker.call(os.write, 1, b"not an answer") == 13
        assert worker.call(os.read, 0, 10) == b""
        assert worker.call(abs, -1) == 1


def raising(error: Exception) -> None:
    raise error
