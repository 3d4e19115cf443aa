"""Commands in forks of a Python that has imported the heavy libraries once.

A process that imports PyTorch and Transformers spends seconds before it does anything. Tests that need a separate
process, but not a cold start, write `*python(...)` where `sys.executable` would stand. What runs there is a process:
its streams, exit code, environment, working directory and limit of memory are those of the caller. A signal to it goes
to its pid. A test of closed streams or of what is imported starts `sys.executable`.

One server for each preload is shared by all workers of a run of pytest, and ends with the last of them.
"""

import atexit
import fcntl
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.warm.server import (
    ANEW,
    CLIENT,
    COLD,
    FORKS,
    LIGHT,
    MODELS,
    PAUSE,
    WarmSystem,
    settings_of,
    without_settings,
    write_interpreter,
)

__all__ = [
    "COLD", "FORKS", "LIGHT", "MODELS", "PAUSE", "headscope_command", "interpreter", "offline", "python",
    "warm_children",
]  # fmt: skip

_PYTHON = sys.executable
_SERVER = Path(__file__).with_name("server.py")
_RUN_ID = "HEADSCOPE_TESTS_RUN"
_leases: dict[str, tuple[str, socket.socket]] = {}
_started: dict[Path, subprocess.Popen[bytes]] = {}
_programs: dict[str, Path] = {}


def python(preload: str = MODELS, environment: Mapping[str, str] | None = None, *, anew: bool = False) -> list[str]:
    """The words to write for `sys.executable`; the process must then run with the same settings of Transformers.

    Those of the Hub's client may differ from test to test, as the address of a server does: the fork reads them again.

    Args:
        preload: `MODELS`, everything, or `LIGHT`, what `headscope snapshot` imports, without the Hub's client.
        environment: The environment of the process (default: that of the caller).
        anew: Import headscope in the fork, as the first import of a user does; only the libraries are warm.
    """
    if not FORKS:
        return [_PYTHON]
    given = dict(os.environ if environment is None else environment)
    settings = settings_of(given) if preload == MODELS else {}
    key = json.dumps([preload, settings], sort_keys=True)
    if key not in _leases:
        _leases[key] = _lease(key, preload, settings)
    return [_PYTHON, "-I", "-S", str(CLIENT), _leases[key][0], *([ANEW] if anew else [])]


def offline() -> dict[str, str]:
    """Settings of the Hub's client that make no requests and find nothing."""
    empty = str(_folder() / "empty-hub")
    return {"HF_HUB_OFFLINE": "1", "HF_HOME": empty, "HF_HUB_CACHE": empty}


def interpreter(folder: Path) -> Path:
    """A program for the place of `sys.executable`, where the code under test starts it."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_interpreter(folder, python()[4])


def warm_children() -> None:
    """Makes the processes that headscope starts in this one, such as the run of a model, forks of a warm one."""
    if FORKS:
        WarmSystem(_own_interpreter).take_place()


def _own_interpreter() -> Path:
    address = python()[4]
    if address not in _programs:
        _programs[address] = interpreter(Path(tempfile.mkdtemp(prefix="warm-bin-")))
    return _programs[address]


def headscope_command(folder: Path, environment: Mapping[str, str] | None = None) -> Path:
    """A program named `headscope` in a folder, for shells that find it on their path."""
    path = folder / "headscope"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {shlex.join(python(MODELS, environment))} -m headscope "$@"\n')
    path.chmod(0o755)
    return path


def _lease(key: str, preload: str, settings: dict[str, str]) -> tuple[str, socket.socket]:
    """The address of the server, and a connection that keeps it running; starts it where it does not run yet."""
    lock = _folder() / f"{zlib.crc32(key.encode()):x}"
    with lock.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        address = file.read()
        connection = _connected(address)
        if connection is None:
            address = _start(preload, settings, lock)
            connection = _connected(address)
            file.truncate(0)
            file.write(address)
    if connection is None:
        raise RuntimeError(f"the server with {preload} does not answer")
    return address, connection


def _folder() -> Path:
    """A folder that the workers of one run of pytest share, and no other run."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or os.environ.setdefault(_RUN_ID, f"{os.getpid()}")
    folder = Path(tempfile.gettempdir()) / f"headscope-tests-{os.getuid()}-{run}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _connected(address: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        return None
    return connection


def _start(preload: str, settings: dict[str, str], lock: Path) -> str:
    environment = without_settings(dict(os.environ)) | settings
    server = subprocess.Popen(
        [_PYTHON, str(_SERVER), preload], cwd=_SERVER.parents[2], env=environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    _started[lock] = server
    assert server.stdout is not None
    address = server.stdout.readline().decode().strip()
    if not address:
        raise RuntimeError(f"the server with {preload} ended with {server.wait()}")
    return address


@atexit.register
def _end() -> None:
    """Gives the servers back, and waits for those that were started here."""
    for _, connection in _leases.values():
        connection.close()
    for program in _programs.values():
        shutil.rmtree(program.parent, ignore_errors=True)
    for lock, server in _started.items():
        server.wait()
        lock.unlink(missing_ok=True)
        with suppress(OSError):  # another server's lock is there still
            lock.parent.rmdir()
