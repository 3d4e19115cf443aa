"""Commands that are ended or disturbed while they write."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import warm

_AS_IN_A_TERMINAL = """
import os, signal, sys
from headscope.shell import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job hands on that it is ignored
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and so does nohup
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
sys.exit(main(sys.argv[2:]))
"""


def ended_while_writing(room: Path, number: int, pid: Path, *command: str) -> int:
    """Runs a command that writes into an empty folder, ends it when it has begun to write; gives its exit code."""
    words = ["-c", _AS_IN_A_TERMINAL, str(pid), *command, "-o", str(room / "new")]
    with subprocess.Popen([*warm.python(), *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not list(room.iterdir()) and process.poll() is None:
            time.sleep(0.005)
        os.kill(int(pid.read_text()), number)
        return process.wait(120)


def disturb(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, then: Callable[..., object]) -> None:
    """Lets something happen after each call of a function, to which its arguments are given."""
    function = getattr(module, name)

    def disturbed(*given: Any, **named: Any) -> None:
        function(*given, **named)
        then(*given)

    monkeypatch.setattr(module, name, disturbed)
