"""A scan on a Ray cluster writes what the local pool writes, and survives a kill and the loss of a node."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scan_faults import Dies, Hangs, Leaves, Raises, Slow
from tables import rows_in, small_bert, until, workers_below

import headscope
from headscope.errors import HeadscopeError, UsageError
from headscope.slices.fleet.run import run_scan
from headscope.slices.fleet.table_scan import Progressed, ScanOutput
from headscope.slices.fleet.target import ScanSources
from tests import warm
from tests.headers_only import write

SNAPSHOTS = ("bert-base-uncased", "gpt2", "roberta-base", "distilbert-base-uncased", "nothing-here")
DRIVER = """
import sys
from pathlib import Path
from scan_faults import Slow
import headscope
from headscope.slices.fleet.run import run_scan
from headscope.slices.fleet.table_scan import ScanOutput
from headscope.slices.fleet.target import ScanSources

names = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
run_scan(ScanSources(map(Slow, names)), ScanOutput(sys.argv[2], executor="ray"), workers=2, offline=True)
"""
MANY = 24
"""Checkpoints that take a second each: a scan of them is not over when it is disturbed."""
TOKEN = "hf_NoLogMayHoldThisToken"


def without_time(rows: Any) -> list[dict[str, Any]]:
    return sorted(
        ({name: value for name, value in row.items() if name != "seconds"} for row in rows),
        key=lambda row: row["reference"],
    )


def on_ray(names: Any, place: Path | str, workers: int = 2, token: str | None = None, **output: Any) -> Any:
    output_to = ScanOutput(place, executor="ray", **output)
    return run_scan(ScanSources(names), output_to, workers=workers, token=token, offline=True)


def local_rows(names: Any, folder: Path) -> list[dict[str, Any]]:
    table = folder / "local.jsonl"
    run_scan(ScanSources(names), ScanOutput(table), workers=2, offline=True)
    return without_time(rows_in(table))


def test_without_ray_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError) as caught:
        on_ray(["gpt2"], tmp_path / "rows.jsonl")
    assert "Ray Data" in caught.value.message
    assert 'pip install "headscope[ray]"' in caught.value.hint
    assert not (tmp_path / "rows.jsonl").exists()


def test_an_unknown_executor_is_refused() -> None:
    with pytest.raises(UsageError, match=r"local .* ray.*'spark'"):
        run_scan(ScanSources(["gpt2"]), ScanOutput(executor="spark"))


@pytest.fixture(scope="module")
def ray() -> Any:
    pytest.importorskip("ray.data")
    return pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster(ray: Any) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    paths = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]))
        patch.setenv("RAY_worker_niceness", "0")  # else a busy machine leaves the workers nothing
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        patch.setenv("RAY_ADDRESS", cluster.address)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


class TestWithRay:
    """What shares one cluster of three nodes."""

    def test_its_rows_can_not_go_to_stdout(self, ray: Any) -> None:
        with pytest.raises(UsageError, match="a scan on a Ray cluster writes no rows to stdout"):
            run_scan(ScanSources(["gpt2"]), ScanOutput(executor="ray"))

    def test_its_table_is_that_of_the_local_pool(self, cluster: Any, tmp_path: Path) -> None:
        table = tmp_path / "rows.jsonl"
        seen: list[Progressed] = []
        folders = set(actor_folders())
        found = on_ray(SNAPSHOTS, table, token=TOKEN, progress=seen.append)
        rows = without_time(rows_in(table))
        assert rows == local_rows(SNAPSHOTS, tmp_path)
        assert (found.rows, found.written, found.skipped) == (5, 5, 0)
        assert [row["not_determined"] for row in rows].count(None) == 4
        assert seen == sorted(seen, key=lambda one: one.done)
        assert all(one.total == 5 and one.done <= 5 for one in seen)
        self.goes_on(table)
        self.keeps_the_token_out_of_every_log()
        assert set(actor_folders()) <= folders

    def goes_on(self, table: Path) -> None:
        """Both executors go on with it, and with what the other has added."""
        with pytest.raises(UsageError, match="exists already"):
            on_ray(SNAPSHOTS, table)
        found = on_ray([*SNAPSHOTS, "also-not-here"], table, resume=True)
        assert (found.rows, found.written, found.skipped) == (6, 1, 5)
        found = run_scan(ScanSources([*SNAPSHOTS, "nor-this"]), ScanOutput(table, resume=True), workers=0, offline=True)
        assert (found.rows, found.written, found.skipped) == (7, 1, 5)
        rows = rows_in(table)
        assert len(rows) == 7
        assert {row["verdict"] for row in rows} == {"passed", "failed", "not_determined"}

    def keeps_the_token_out_of_every_log(self) -> None:
        logs = Path("/tmp/ray/session_latest").resolve()
        files = [path for path in logs.rglob("*") if path.is_file()]
        assert files
        assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []

    def test_only_new_skips_the_known_commits_of_each(self, cluster: Any, tmp_path: Path) -> None:
        table = tmp_path / "rows.jsonl"
        assert on_ray(SNAPSHOTS, table).written == 5
        found = on_ray(SNAPSHOTS, table, only_new=True)
        known = sum(row["commit"] is not None for row in rows_in(table)[:5])
        assert known > 0
        assert (found.written, found.skipped) == (5 - known, known)

    def test_a_table_of_csv_has_a_line_for_each_checkpoint(self, cluster: Any, tmp_path: Path) -> None:
        found = on_ray(["gpt2", "nothing-here"], tmp_path / "rows.csv")
        assert (found.rows, found.written) == (2, 2)
        assert sorted(row["reference"] for row in rows_in(tmp_path / "rows.csv")) == ["gpt2", "nothing-here"]
        rows = without_time(rows_in(tmp_path / "rows.csv.jsonl"))
        assert rows == local_rows(["gpt2", "nothing-here"], tmp_path)

    def test_each_culprit_costs_itself_alone(self, cluster: Any) -> None:
        from headscope.shell.values import make_request
        from headscope.slices.fleet.pool import Limits, Work
        from headscope.slices.fleet.ray_engine import scan_on_ray
        from headscope.slices.fleet.row import RowOptions
        from headscope.slices.fleet.target import Target

        targets = [Dies("dies"), Leaves("leaves"), Raises("raises"), Hangs("hangs"), Target("gpt2")]
        work = Work(make_request("", {"offline": True}), RowOptions())
        rows = [row.to_dict() for row in scan_on_ray(targets, work, 2, Limits(seconds=20))]
        found = {row["reference"]: (row["not_determined"], row["reason"]) for row in rows}
        ends = {"dies": ": SIGSEGV", "leaves": " 7", "raises": "ZeroDivisionError: seven"}
        kinds = {name: kind for name, (kind, _) in found.items()}
        assert kinds == dict.fromkeys(ends, "crash") | {"hangs": "timeout", "gpt2": None}
        assert all(found[name][1].endswith(end) for name, end in ends.items())
        assert " 20 s" in found["hangs"][1]

    def test_a_killed_driver_is_gone_on_with(self, cluster: Any, tmp_path: Path) -> None:
        names = self.folders(tmp_path, MANY)
        listed = tmp_path / "names.txt"
        listed.write_text("\n".join(names), encoding="utf-8")
        table = tmp_path / "rows.jsonl"
        with subprocess.Popen([sys.executable, "-c", DRIVER, str(listed), str(table)]) as process:
            try:
                until(lambda: whole_rows(table) >= 2)
            finally:
                process.send_signal(signal.SIGKILL)
        some = whole_rows(table)
        assert 0 < some < MANY
        options = ["--executor", "ray", "--workers", "2", "--offline", "--resume", "--json"]
        command = [*warm.python(), "-m", "headscope", "scan", "--from", str(listed), "-o", str(table), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stderr == f"wrote {table}\n"
        summary = json.loads(done.stdout)
        assert (summary["rows"], summary["written"] + some, summary["skipped"]) == (MANY, MANY, some)
        assert without_time(rows_in(table)) == local_rows(names, tmp_path)

    def test_scan_batch_in_ray_data(self, ray: Any, cluster: Any) -> None:
        rows = ray.data.from_items([{"reference": name} for name in SNAPSHOTS]).map_batches(
            headscope.scan_batch, fn_kwargs={"offline": True}, batch_size=5
        )
        assert without_time(rows.take_all()) == without_time(
            row.to_dict() for row in headscope.scan(SNAPSHOTS, workers=0, offline=True)
        )

    @pytest.mark.skipif(sys.platform != "linux", reason="what runs on a node is read from /proc")
    def test_the_loss_of_a_node_loses_no_row(
        self, cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        names = self.folders(tmp_path, MANY)
        table = tmp_path / "rows.jsonl"
        lost = []

        def lose_one(so_far: Progressed) -> None:
            busy = [node for node in cluster.worker_nodes if workers_below(raylet_of(node))]
            if so_far.done and busy and not lost:
                lost.append(so_far.done)
                cluster.remove_node(busy[0], allow_graceful=False)

        found = on_ray(map(Slow, names), table, workers=3, progress=lose_one)
        assert capsys.readouterr().out == "", "a report on stdout would not be JSON any more"
        assert lost, "no worker began on another node in time"
        assert 0 < lost[0] < MANY
        assert (found.rows, found.written) == (MANY, MANY)
        assert without_time(rows_in(table)) == local_rows(names, tmp_path)

    def folders(self, place: Path, count: int) -> list[str]:
        return [str(write(small_bert(), place / f"run-{number:03}")) for number in range(count)]


def whole_rows(table: Path) -> int:
    """How many whole rows a killed scan leaves to go on with."""
    return table.read_bytes().count(b"\n") if table.exists() else 0


def raylet_of(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def actor_folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob("headscope-" + "[0-9a-f]" * 32))


def test_a_cluster_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("no such cluster\nand more lines")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    with pytest.raises(HeadscopeError) as caught:
        on_ray(["gpt2"], tmp_path / "rows.jsonl")
    assert re.fullmatch("[^\n]* 192.0.2.1:6379 [^\n]*: no such cluster", caught.value.message)
