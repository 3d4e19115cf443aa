"""A worker: a new Python process that answers calls one after another, and ends with the process that started it.

It imports what its parent imports, and doesn't run the caller's script. A fork would copy the locks of PyTorch's
threads as they are, some of them held: a forked worker can hang on one.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, BinaryIO, TypeVar

from headscope.errors import Unsupported

_SERVE = "from headscope.core.workers import serve; serve()"
# Enough that no worker waits for the next task, and few enough that a kill loses little.
_AHEAD = 2
# A worker is replaced now and then: libraries that are imported, one a family, are never given back.
_MOST_CALLS = 2_000
_IMPORT_SECONDS = 600.0
"""Time for an import, which no checkpoint's limit counts: enough for a slow network drive."""
_LIBRARY, _MODULE, _RESUMED = b"library", b"module", b"resumed"
"""Messages of a worker during a call: its time doesn't run while it imports a whole library, or a module of one."""
Item = TypeVar("Item")
_Result = TypeVar("_Result")


class WorkerEnded(Exception):
    """A worker ended during a call; `code` is its exit code, negative for the signal that killed it."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Worker:
    """A process for calls. Its stdout and stdin are empty devices; its stderr is `stderr`, or that of this process.

    `stderr` is a file, or `subprocess.DEVNULL`.
    """

    def __init__(self, stderr: BinaryIO | int | None = None) -> None:
        # The child imports what this process imports.
        path = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self._process.stdin is not None  # Popen was given pipes
        assert self._process.stdout is not None
        self._calls, self._answers = self._process.stdin, self._process.stdout
        self._left = _MOST_CALLS
        self._is_late = False

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    @property
    def is_over(self) -> bool:
        """True if another worker has to take the next call."""
        return self._is_late or self._left <= 0 or self._process.poll() is not None

    def call(self, function: Callable[..., _Result], *arguments: object, seconds: float | None = None) -> _Result:
        """Calls a function of headscope in the worker, within a number of seconds, and gives its result.

        Raises what the function raises, TimeoutError, or WorkerEnded; after these two it is over. Raises Unsupported
        where the worker ends, or takes too long, while it imports a library.
        """
        self._left -= 1
        call = pickle.dumps((function, arguments))
        try:
            with self._time_limit(seconds):
                _send_bytes(self._calls, call)
                # The pipe carries pickled bytes, so an answer that can't be unpickled isn't taken for the worker's end.
                answer: bytes = pickle.load(self._answers)
            while answer in (_LIBRARY, _MODULE):
                # Without its libraries no worker can do anything; a module of a family is needed for some checkpoints.
                with preparing() if answer == _LIBRARY else nullcontext(), self._time_limit(_IMPORT_SECONDS):
                    pickle.load(self._answers)
                with self._time_limit(seconds):
                    answer = pickle.load(self._answers)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as err:
            self.end()  # a timer that killed the worker shows as a broken pipe too
            raise TimeoutError if self._is_late else WorkerEnded(self._process.wait()) from err
        error, result = pickle.loads(answer)
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    @contextmanager
    def _time_limit(self, seconds: float | None) -> Iterator[None]:
        """Kills the process if what is inside takes longer."""
        if seconds is None:
            yield
            return
        timer = threading.Timer(seconds, self._kill_late)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # from here on it doesn't expire any more

    def _kill_late(self) -> None:
        self._is_late = True  # before the kill: `call` reads it as soon as the pipe breaks
        self._process.kill()

    def end(self) -> None:
        """Ends the process, whatever it is at."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._calls, self._answers):
            with suppress(OSError):  # what was not sent has no reader
                pipe.close()


def _send_bytes(stream: IO[bytes], content: bytes) -> None:
    pickle.dump(content, stream)
    stream.flush()


def serve() -> None:
    """Runs as the worker: answers each call that comes, until its parent ends, in whatever way."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    incoming, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    _Pauses.answers = answers
    nowhere = os.open(os.devnull, os.O_RDWR)
    for own in (0, 1):  # nothing that a library prints or reads is part of a call
        os.dup2(nowhere, own)
    calls = SimpleQueue[bytes]()
    threading.Thread(target=_receive_calls, args=(incoming, calls), daemon=True).start()
    while True:
        _send_bytes(answers, _answer_call(calls.get()))


class _Pauses:
    """Pipe in which a worker says that its time doesn't run."""

    answers: BinaryIO


@contextmanager
def pause(name: str) -> Iterator[None]:
    """Tells the parent that a worker imports a library or a module in it: the call's time starts again after that."""
    _send_bytes(_Pauses.answers, _MODULE if "." in name else _LIBRARY)
    try:
        yield
    finally:
        _send_bytes(_Pauses.answers, _RESUMED)


def _receive_calls(stream: BinaryIO, calls: SimpleQueue[bytes]) -> None:
    """Takes calls. The pipe stays open as long as the parent runs; then nobody is left to take an answer."""
    with suppress(OSError, EOFError, pickle.UnpicklingError):
        while True:
            calls.put(pickle.load(stream))
    os._exit(1)


def _answer_call(call: bytes) -> bytes:
    """Runs a call and gives its error and its result, pickled."""
    try:
        function, arguments = pickle.loads(call)
        return pickle.dumps((None, function(*arguments)))
    except Exception as err:
        with suppress(Exception):  # the text of an error that can't be pickled has to do
            return pickle.dumps((err, None))
        return pickle.dumps((RuntimeError(f"{type(err).__name__}: {err}"), None))


def begin_worker() -> None:
    """Sets a worker to one thread, and to few searches for reference cycles."""
    import gc

    import torch

    # There is a worker for each core already, and heads without values give a second thread nothing to do.
    torch.set_num_threads(1)

    gc.set_threshold(200_000, 20, 100)


class Workers:
    """Workers that have made `begin`, one for each thread that asks: so it is known which call ended one."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin
        self._own = threading.local()
        self._running: set[Worker] = set()
        self._changing = threading.Lock()
        self._is_ended = False

    def worker(self) -> Worker:
        """Gives this thread's worker, a new one after one that is over. Raises Unsupported if none can be started."""
        worker: Worker | None = getattr(self._own, "worker", None)
        if worker is not None and not worker.is_over:
            return worker
        if worker is not None:
            self._end_worker(worker)
        worker = self._own.worker = self._start_worker()
        return worker

    def end(self) -> None:
        """Ends every worker, whatever it is at."""
        with self._changing:
            self._is_ended = True
            running = tuple(self._running)
        for worker in running:
            self._end_worker(worker)

    def _start_worker(self) -> Worker:
        with preparing():
            worker = Worker()
            with self._changing:
                self._running.add(worker)
                is_ended = self._is_ended
            if is_ended:  # `end` didn't see this one: the call below fails, as for all others
                self._end_worker(worker)
            worker.call(self._begin)
        return worker

    def _end_worker(self, worker: Worker) -> None:
        with self._changing:
            self._running.discard(worker)
        worker.end()


@contextmanager
def preparing() -> Iterator[None]:
    """Raises Unsupported for whatever ends a worker that starts or imports its libraries: no task is to blame."""
    try:
        yield
    except Exception as err:
        raise Unsupported(
            "a worker process ended before its first checkpoint",
            "there may be too little memory: use fewer --workers; rows that were written stay",
        ) from err


def results(
    function: Callable[[Item], _Result], items: Iterable[Item], threads: int, workers: Workers
) -> Iterator[_Result]:
    """Gives the results of a function that uses `workers` for each item, as they are done. Ends the workers then."""
    with ThreadPoolExecutor(threads) as pool:
        try:
            waiting: set[Future[_Result]] = set()
            for item in items:
                waiting.add(pool.submit(function, item))
                while len(waiting) > threads * _AHEAD:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            for future in as_completed(waiting):
                yield future.result()
        except BaseException:  # an interrupt too: what the workers are at is not waited for
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            workers.end()
