"""The workers of `headscope heads` end with it, however it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROC = Path("/proc")
MARK = "HEADSCOPE_TEST_MARK"
AS_IN_A_TERMINAL = """
import os, signal, sys
for name in (signal.SIGINT, signal.SIGHUP):  # ignored where the suite runs in the background
    signal.signal(name, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
START_SECONDS, END_SECONDS = 90, 15

pytestmark = pytest.mark.skipif(not PROC.is_dir(), reason="processes are found through /proc")


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
    return {pid for pid in marked(mark) if b"spawn_main" in command(pid)}


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
    mark = f"{tmp_path.name}-{os.getpid()}"
    started = subprocess.Popen(
        [sys.executable, "-c", AS_IN_A_TERMINAL, "-m", "headscope", "heads", "--workers", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {MARK: mark}, start_new_session=True,
    )  # fmt: skip
    try:
        assert wait_until(lambda: len(workers(mark)) == 2, START_SECONDS)
        assert started.stdout is not None and started.stderr is not None
        if end == "closed pipe":
            started.stdout.close()
            started.stderr.close()
            started.terminate()
        else:
            started.send_signal(getattr(signal, end))
        started.wait(END_SECONDS)
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
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split() == ["begun", "True", "True"], done.stderr
