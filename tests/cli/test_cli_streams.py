"""Streams that are closed, full or no longer read: a sentence where one can be read, and the right exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEADSCOPE = f"{sys.executable} -m headscope"
pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a shell and /dev/full")


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """The command line `line`, with `headscope` in it, in a shell whose pipes pass on the first failure."""
    return subprocess.run(
        ["bash", "-c", "set -o pipefail; " + line.replace("headscope", HEADSCOPE)],
        capture_output=True, text=True, check=False, timeout=60, env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("headscope explain HS101 >&-", 3, "stdout is closed"),
        ("headscope explain HS101 --json >&-", 3, "stdout is closed"),
        ("headscope --help >&-", 3, "stdout is closed"),
        ("headscope --version >&-", 3, "stdout is closed"),
        ("headscope explain HS101 >/dev/full", 3, "No space left on device"),
        ("headscope explain HS101 --json >/dev/full", 3, "No space left on device"),
        ("headscope explain HS101 -o /dev/full", 3, "No space left on device"),
        ("headscope --help >/dev/full", 3, "No space left on device"),
        ("headscope --version >/dev/full", 3, "No space left on device"),
        ("headscope explain nonsense >&-", 2, "no such topic"),
        ("headscope explain nonsense --json >/dev/full", 2, "no such topic"),
        ("headscope explain HS101 2>&-", 0, ""),
        ("headscope explain HS101 2>/dev/full", 0, ""),
        ("headscope explain nonsense 2>&-", 2, ""),
        ("headscope explain nonsense 2>/dev/full", 2, ""),
        ("headscope nonsense 2>&-", 2, ""),
        ("headscope explain HS101 >&- 2>&- <&-", 3, ""),
        ("headscope --help | true", 0, ""),
        ("headscope --help | head -1", 0, ""),
        ("headscope --version | true", 0, ""),
        ("headscope explain --help | true", 0, ""),
        ("headscope explain HS101 | true", 0, ""),
    ],
)
def test_a_stream_that_takes_nothing_is_reported_in_a_sentence(line: str, code: int, words: str) -> None:
    ran = shell(line)
    assert ran.returncode == code, ran
    assert "Traceback" not in ran.stderr and "Exception ignored" not in ran.stderr
    assert words in ran.stderr
    assert words or ran.stderr == ""


def test_a_file_of_the_report_is_not_written_into_a_closed_stdout(tmp_path: Path) -> None:
    """The first file that a process opens takes the lowest free descriptor, which would be that of stdout."""
    ran = shell(f"headscope explain HS101 -o {tmp_path}/out.txt >&-")
    assert (ran.returncode, ran.stderr) == (0, f"wrote {tmp_path}/out.txt\n")
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").startswith("HS101")
