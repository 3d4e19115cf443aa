"""The workers of `headscope heads` end with it, however it ends."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests import warm

PROC = Path("/proc")
MARK = "HEADSCOPE_TEST_MARK"
AS_IN_A_TERMINAL = """
import os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # both are ignored where the suite runs in the background
signal.signal(signal.SIGHUP, signal.SIG_DFL)
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
sys.argv[1:2] = []
runpy.run_module("headscope", run_name="__main__", alter_sys=True)
"""
START_SECONDS, END_SECONDS = 90, 15

pytestmark = [
    pytest.mark.skipif(not PROC.is_dir(), reason="processes are found through /proc"),
    pytest.mark.skipif(not warm.FORKS, reason="the parent of the workers is a fork"),
]


def marked(mark: str) -> set[int]:
    """The living processes whose environment holds the mark."""
    found = set()
    for entry in PROC.iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
        except OSError:  # ended, or another user's
            continue
    return found


def workers(mark: str) -> set[int]:
    """The processes of the pool among them."""
    return {pid for pid in marked(mark) if b"headscope.core.workers" in command(pid)}


def command(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def wait_until(condition: object, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.2)
    return False


@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL", "SIGHUP", "SIGINT", "closed pipe"])
def test_no_worker_is_left_after_any_end(end: str, tmp_path: Path) -> None:
    mark, file = f"{tmp_path.name}-{os.getpid()}", tmp_path / "pid"
    started = subprocess.Popen(  # the parent of the workers is a fork, which `started` waits for
        [*warm.python(), "-c", AS_IN_A_TERMINAL, str(file), "heads", "--workers", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {MARK: mark}, start_new_session=True,
    )  # fmt: skip
    try:
        assert wait_until(lambda: len(workers(mark)) == 2, START_SECONDS)
        assert started.stdout is not None and started.stderr is not None
        if end == "closed pipe":
            started.stdout.close()
            started.stderr.close()
        parent, number = int(file.read_text()), signal.SIGTERM if end == "closed pipe" else getattr(signal, end)
        os.kill(parent, number)
        started.wait(END_SECONDS)
        assert not (PROC / str(parent)).exists()
        assert wait_until(lambda: not marked(mark), END_SECONDS), [command(pid) for pid in marked(mark)]
    finally:
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
        started.wait()


def test_a_script_without_a_main_guard_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('begun')\nimport headscope\nfound = headscope.heads('luke', workers=2)\n"
        "print(len(found) > 6, all(entry.traced for entry in found))\n"
    )
    done = subprocess.run([*warm.python(), str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split() == ["begun", "True", "True"], done.stderr
