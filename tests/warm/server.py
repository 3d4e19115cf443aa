"""Imports once and forks for each request: `server.py PRELOAD` prints its address; see `__init__.py`."""

import atexit
import gc
import importlib
import io
import json
import os
import resource
import runpy
import selectors
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ANEW = "--anew"
PAUSE = "HEADSCOPE_TESTS_PAUSE"
"""Seconds before a request is repeated for the first time; empty for what users wait."""
LIGHT, MODELS = "light", "models"
COLD = "HEADSCOPE_TESTS_COLD"
"""If set, the processes that headscope itself starts import everything again, as those of users do."""
_PYTHON = sys.executable
CLIENT = Path(__file__).with_name("client.py")
FORKS = hasattr(os, "pidfd_open") and hasattr(socket, "send_fds")
_READERS = ("huggingface_hub", "hf_xet", "transformers", "accelerate", "peft", "tokenizers")
"""What reads the settings of the Hub when it is imported, or imports something that does."""
_HUB = ("HF_", "HUGGINGFACE_")
_OTHER = ("TRANSFORMERS_",)
_SNAPSHOT = "snapshot bert-base-uncased --offline --no-cache -o {folder}/out.json"
_CHECK = "check bert-base-uncased --for training --offline --no-cache --json"
_SAMPLES = {LIGHT: _SNAPSHOT, MODELS: _CHECK}
_STARTERS = ("headscope.core.workers", "headscope.copies.proving", "headscope.slices.repair.repaired_copy")
"""What starts a process of its own with `sys.executable`."""
_RUNS = ("headscope.shared.trial.opening", "headscope.copies.proving", "transformers.models.bert.modeling_bert")
_FIRST = {LIGHT: (), MODELS: ("torch", "transformers.modeling_utils", "headscope.shell.app", *_RUNS)}


@dataclass(frozen=True)
class Request:
    """What a client asks for, and its streams."""

    words: list[str]
    folder: str
    environment: dict[str, str]
    memory: tuple[int, int]
    streams: list[int]


@dataclass(frozen=True)
class Copies:
    """Where the settings of the Hub's client are, in it and in what copied from it."""

    settings: dict[str, Any]
    """As the client read them."""
    clients: list[Any]
    same: list[tuple[types.ModuleType, str]]
    """The names that hold a setting, under its own name."""
    inside: list[tuple[types.ModuleType, str]]
    """The names of paths inside the folder of the Hub."""


class WarmSystem:
    """Stands for `sys` in a module that starts processes: unless `COLD` is set, they are forks of a warm one."""

    def __init__(self, interpreter: Callable[[], Path]) -> None:
        self._interpreter = interpreter
        self._asking = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        if name != "executable" or os.environ.get(COLD) or sys.executable != _PYTHON:
            return getattr(sys, name)
        with self._asking:
            return str(self._interpreter())

    def take_place(self) -> None:
        """Changes the modules of headscope that start processes."""
        for name in _STARTERS:
            vars(importlib.import_module(name))["sys"] = self


def write_interpreter(folder: Path, address: str) -> Path:
    """Writes a program for the place of `sys.executable`: what it runs is a fork of the server with an address."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec {shlex.join([_PYTHON, "-I", "-S", str(CLIENT), address])} "$@"\n')
    path.chmod(0o755)
    return path


def settings_of(environment: dict[str, str]) -> dict[str, str]:
    """What Transformers reads when it is imported, and a fork can't change."""
    return {name: value for name, value in environment.items() if name.startswith(_OTHER)}


def without_settings(environment: dict[str, str]) -> dict[str, str]:
    """An environment in which the Hub's client and Transformers have their defaults."""
    return {name: value for name, value in environment.items() if not name.startswith((*_HUB, *_OTHER))}


def preload(kind: str) -> None:
    """Imports what a sample command imports; the sample itself runs in a fork, so that nothing has run here."""
    for name in _FIRST[kind]:
        importlib.import_module(name)
    closed = {MODELS: (), LIGHT: (*_READERS, "torch", "numpy")}[kind]
    for name in _imported_by(_SAMPLES[kind]):
        if name not in sys.modules and name.partition(".")[0] not in closed:
            with closed_to(closed), suppress(Exception):  # it needs one of them, or was made at run time
                importlib.import_module(name)
    assert not any(name in sys.modules for name in closed), "it is imported already"


@contextmanager
def closed_to(names: tuple[str, ...]) -> Iterator[None]:
    """Importing one of these, or anything that needs it, fails inside."""
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]  # None is documented to mean just that
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


def _imported_by(sample: str) -> list[str]:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            from headscope.shell import main

            folder = tempfile.mkdtemp()
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                main(sample.format(folder=folder).split())
            shutil.rmtree(folder)
            with os.fdopen(writing, "w") as pipe:
                pipe.write("\n".join(sys.modules))
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        names = pipe.read().split("\n")
    os.waitpid(child, 0)
    return [name for name in names if name and name != "__main__"]


class Server:
    """Serves until nobody is connected; in a fork, `wait` returns what is to be run there."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ, self.accept)
        self.connections: dict[socket.socket, int] = {}
        self.had_any = False
        self.task: Request | None = None

    def wait(self) -> Request | None:
        """The request, in the fork that is to run it; None in the server, at its end."""
        while self.connections or not self.had_any:
            for key, _ in self.selector.select():
                key.data(key.fileobj)
                if self.task is not None:
                    return self.task
        return None

    def accept(self, listener: socket.socket) -> None:
        """Somebody connects: to ask, or to keep the server."""
        connection, _ = listener.accept()
        self.had_any = True
        self.connections[connection] = 0
        self.selector.register(connection, selectors.EVENT_READ, self.read)

    def read(self, connection: socket.socket) -> None:
        """A request, or the end of the one who asked: its fork ends too."""
        child = self.connections[connection]
        request = None
        with suppress(OSError, ValueError):  # killed in the middle of asking, or before it read what was answered
            request = None if child else _received(connection)
        if request is not None and self.fork(connection, request):
            return
        self.selector.unregister(connection)
        del self.connections[connection]
        connection.close()
        if child:
            for kill in (os.killpg, os.kill):  # the first fails where the fork has not left our group yet
                with suppress(ProcessLookupError, PermissionError):
                    kill(child, signal.SIGKILL)

    def fork(self, connection: socket.socket, request: Request) -> bool:
        """Starts what was asked for. False where no process can be started: only the one who asked is left alone."""
        try:
            child = os.fork()
        except OSError:
            _close(request.streams)
            return False
        if not child:
            os.setsid()
            self.selector.close()
            self.listener.close()
            for other in self.connections:
                other.close()
            self.task = request
            return True
        _close(request.streams)
        self.connections[connection] = child
        ended = os.pidfd_open(child)
        self.selector.register(ended, selectors.EVENT_READ, lambda _: self.reap(ended, child, connection))
        return True

    def reap(self, ended: int, child: int, connection: socket.socket) -> None:
        """A fork has ended."""
        self.selector.unregister(ended)
        os.close(ended)
        _, status = os.waitpid(child, 0)
        if self.connections.get(connection) == child:
            with suppress(OSError):
                connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
            self.connections[connection] = 0


def _received(connection: socket.socket) -> Request | None:
    """What is asked for; None where nothing is. ValueError where the one who asks ended in the middle."""
    length, streams, _, _ = socket.recv_fds(connection, 8, 3)
    if not length:
        return None
    try:
        with connection.makefile("rb") as file:
            asked: dict[str, Any] = json.loads(file.read(int.from_bytes(length, "big")))
    except (OSError, ValueError):
        _close(streams)
        raise
    return Request(asked["words"], asked["folder"], asked["environment"], tuple(asked["memory"]), list(streams))


def _close(streams: Iterable[int]) -> None:
    for stream in streams:
        os.close(stream)


def take_over(request: Request, known: Copies | None) -> None:
    """Makes this fork what the caller's process would be."""
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
        os.close(stream)
    for number, name in enumerate(("stdin", "stdout", "stderr")):  # the present ones know what the server's were
        vars(sys)[name] = vars(sys)[f"__{name}__"] = _stream(number, vars(sys)[name])
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    if known is not None:
        read_settings_again(known)
    resource.setrlimit(resource.RLIMIT_AS, request.memory)
    hurry()
    given = [path for path in request.environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[1:1] = [path for path in given if path not in sys.path[1:]]  # the first entry is set by what is run


def copies() -> Copies:
    """Searches all that is imported: the server does so once, as it changes nothing, and a fork pays for each look."""
    from huggingface_hub import HfApi, constants

    found = Copies(dict(vars(constants)), [], [], [])
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] in _READERS]:
        for name, value in list(vars(module).items()):
            if isinstance(value, HfApi):
                found.clients.append(value)
            elif name in found.settings and value == found.settings[name] and not name.startswith("__"):
                found.same.append((module, name))
            elif isinstance(value, str) and value.startswith(found.settings["HF_HOME"]):
                found.inside.append((module, name))
    return found


def read_settings_again(known: Copies) -> None:
    """Gives the Hub's client, and who copied from it, the settings that the environment has now."""
    from huggingface_hub import constants

    now = vars(importlib.reload(constants))
    for client in known.clients:
        client.endpoint = constants.ENDPOINT
    for module, name in known.same:
        setattr(module, name, now[name])
    for module, name in known.inside:
        setattr(module, name, now["HF_HOME"] + vars(module)[name].removeprefix(known.settings["HF_HOME"]))


def hurry() -> None:
    """Shortens the pauses after faults to what the environment asks for; those that a server asks for are kept."""
    pause = os.environ.get(PAUSE)
    if pause:
        from headscope.core.checkpoints.hub import requests

        requests._PAUSE = float(pause)


def _stream(number: int, before: io.TextIOWrapper) -> io.TextIOWrapper:
    """The text stream of a descriptor, as the interpreter opens it when it starts."""
    raw = io.FileIO(number, "w" if number else "r", closefd=False)
    raw.name = before.name
    buffer: Any = raw
    if not number:
        buffer = io.BufferedReader(raw)
    elif not before.write_through:  # which `python -u` asks for
        buffer = io.BufferedWriter(raw)
    is_seen_soon = number == 2 or raw.isatty()
    return io.TextIOWrapper(
        buffer, before.encoding, before.errors, line_buffering=is_seen_soon, write_through=before.write_through
    )


def run(words: list[str]) -> None:
    """What `python WORDS` does: `-c CODE`, `-m MODULE` or the path of a script; after `ANEW`, without our modules.

    After `-P`, the folder that Python searches before all others is left out.
    """
    if words[0] == ANEW:
        for name in [name for name in sys.modules if name.partition(".")[0] == "headscope"]:
            del sys.modules[name]
        words = words[1:]
    first, *rest = words[words[0] == "-P" :]
    is_safe = len(rest) + 1 < len(words) or bool(os.environ.get("PYTHONSAFEPATH"))
    folders = {"-c": "", "-m": str(Path.cwd())}
    sys.path[0:1] = [] if is_safe else [folders.get(first, str(Path(first).parent))]
    if first == "-c":
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


def run_to_the_end(words: list[str]) -> int:
    """The exit code of `python WORDS`, after its threads and what it registered for its end.

    It leaves out that the interpreter takes its objects apart, which costs more than most commands.
    """
    code = 1
    try:
        run(words)
        code = 0
    except SystemExit as err:
        code = _code_of(err)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    with suppress(AttributeError):  # neither has a public name
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    return code


def _code_of(err: SystemExit) -> int:
    if err.code is None:
        return 0
    if isinstance(err.code, int):
        return err.code & 0xFF
    print(err.code, file=sys.stderr)
    return 1


@contextmanager
def listening() -> Iterator[socket.socket]:
    """A socket in a folder that nobody else can enter; the server removes it, and a fork does not."""
    folder, owner = tempfile.mkdtemp(prefix="warm-"), os.getpid()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/socket")
    listener.listen(64)
    try:
        yield listener
    finally:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)


def main() -> Request | None:
    """Serves; returns the request in a fork."""
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    preload(sys.argv[1])
    known = copies() if "huggingface_hub" in sys.modules else None
    gc.collect()
    gc.freeze()  # forks share what is not touched
    with listening() as listener:
        address = listener.getsockname()
        if known is not None:
            interpreter = write_interpreter(Path(address).parent, address)
            WarmSystem(lambda: interpreter).take_place()
        print(address, flush=True)
        request = Server(listener).wait()
        if request is not None:
            take_over(request, known)
        return request


if __name__ == "__main__":
    asked = main()
    if asked is not None:
        os._exit(run_to_the_end(asked.words))
