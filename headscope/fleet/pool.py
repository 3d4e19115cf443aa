"""A pool of worker processes with limits: a checkpoint that hangs, crashes or fills the memory costs itself alone."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path

from headscope.errors import Unsupported
from headscope.examination.cache import Cache
from headscope.examination.request import Request
from headscope.examination.structure import ReportMemory, Structures
from headscope.facts.scan import Cause, ScanRow
from headscope.fleet.processes import begin_worker, worker_context
from headscope.fleet.row import Asked, scan_one, unread
from headscope.fleet.target import Target

SECONDS = 300.0
MEMORY = 8 * 1024**3
# Enough that no worker waits for the next task, and few enough that a kill loses little.
_AHEAD = 2
# A worker is replaced now and then: libraries that are imported, one a family, are never given back.
_MOST_TASKS = 2_000
# The executor's own thread may be about to note the exit code of a worker, which only one thread receives.
_UNTIL_KNOWN = 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one checkpoint may take: `seconds` of wall time, `memory` in bytes of address space beside the libraries."""

    seconds: float = SECONDS
    memory: int | None = MEMORY


@dataclass(frozen=True, slots=True)
class Work:
    """What every worker does: `request` is that of each checkpoint but for its place; `folder` holds structures."""

    request: Request
    asked: Asked
    folder: Path | None = None

    def sharing(self, folder: Path) -> Work:
        """The same work of processes that share structures, and what the Hub allows, through a folder."""
        place = self.request.location
        hub = replace(place.hub, budget=str(folder / "budget"))
        return replace(self, request=replace(self.request, location=replace(place, hub=hub)), folder=folder)


def scan_here(targets: Iterable[Target], work: Work, memory: ReportMemory | None = None) -> Iterator[ScanRow]:
    """The rows of checkpoints, examined in this process, without limits; `memory` keeps structures for later calls."""
    if memory is None:
        memory = memory_for(work)
    for target in targets:
        yield _scanned(target, work, memory)


def scan_in_pool(targets: Iterable[Target], work: Work, workers: int, limits: Limits) -> Iterator[ScanRow]:
    """The rows of checkpoints as they are done, from `workers` processes."""
    crew = Crew(work, limits)
    with ThreadPoolExecutor(workers) as threads:
        try:
            yield from _as_done(threads, crew, targets, workers * _AHEAD)
        except BaseException:  # an interrupt too: what the workers are at is not waited for
            threads.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            crew.end()


def _as_done(threads: ThreadPoolExecutor, crew: Crew, targets: Iterable[Target], ahead: int) -> Iterator[ScanRow]:
    waiting: set[Future[ScanRow]] = set()
    for target in targets:
        waiting.add(threads.submit(crew.scan, target))
        while len(waiting) > ahead:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    for future in as_completed(waiting):
        yield future.result()


class Crew:
    """The workers of a scan, one for each thread that asks: an executor of one process, so it is known who did what."""

    def __init__(self, work: Work, limits: Limits) -> None:
        self._work, self._limits = work, limits
        self._own = threading.local()
        self._workers: set[_Worker] = set()
        self._changing = threading.Lock()
        self._is_over = False

    def scan(self, target: Target) -> ScanRow:
        """The row of a checkpoint from this thread's worker, which is replaced if it ends or takes too long."""
        worker = self._worker()
        try:
            row = worker.pool.submit(_scan, target).result(self._limits.seconds)
        except TimeoutError:
            self._dismiss(worker)
            row = unread(target.reference, Cause.TIMEOUT, f"not done after {self._limits.seconds:g} s, the time limit")
            return replace(row, seconds=self._limits.seconds)
        except BrokenProcessPool:
            self._dismiss(worker)
            way = _way_of_ending(_exit_code(worker.process))
            return unread(target.reference, Cause.CRASH, f"its worker process ended: {way}")
        except Exception as err:  # a row that can't be sent back
            return unread(target.reference, Cause.CRASH, f"{type(err).__name__}: {err}")
        worker.tasks += 1
        if worker.tasks >= _MOST_TASKS:
            self._dismiss(worker)
        return row

    def end(self) -> None:
        """Ends every worker, whatever it is at."""
        with self._changing:
            self._is_over = True
            workers = tuple(self._workers)
        for worker in workers:
            self._dismiss(worker)

    def _worker(self) -> _Worker:
        worker: _Worker | None = getattr(self._own, "worker", None)
        if worker is None or worker not in self._workers:
            self._own.worker = worker = _start(self._work, self._limits)
            with self._changing:
                self._workers.add(worker)
                is_over = self._is_over
            if is_over:
                self._dismiss(worker)
        return worker

    def _dismiss(self, worker: _Worker) -> None:
        with self._changing:
            self._workers.discard(worker)
        worker.process.kill()
        worker.process.join()
        worker.pool.shutdown(wait=False, cancel_futures=True)


@dataclass(slots=True, eq=False)
class _Worker:
    """An executor with its one process, and how many tasks that has done."""

    pool: ProcessPoolExecutor
    process: BaseProcess
    tasks: int = 0


def _start(work: Work, limits: Limits) -> _Worker:
    """A worker that has imported its libraries: that isn't part of any checkpoint's time.

    Raises Unsupported where no process can be started.
    """
    pool = ProcessPoolExecutor(1, worker_context(), initializer=_begin, initargs=(work, limits.memory))
    try:
        number = pool.submit(os.getpid).result()
    except (BrokenProcessPool, OSError) as err:
        raise Unsupported(
            "a worker process ended before its first checkpoint",
            "there may be too little memory: use fewer --workers; rows that were written stay",
        ) from err
    return _Worker(pool, next(process for process in active_children() if process.pid == number))


def _exit_code(process: BaseProcess) -> int | None:
    """The exit code of a process that ended. Its executor waits for it too, and who comes second must look again."""
    last = time.monotonic() + _UNTIL_KNOWN
    while process.exitcode is None and time.monotonic() < last:
        time.sleep(0.005)
    return process.exitcode


def _way_of_ending(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


class _Here:
    """What a worker process keeps between two tasks."""

    scan: Callable[[Target], ScanRow]


def _begin(work: Work, most_memory: int | None) -> None:
    """What a worker does before its first task."""
    begin_worker()
    import transformers  # noqa: F401  what libraries take isn't the checkpoint's

    if most_memory is not None:
        _limit_memory(most_memory)
    _Here.scan = partial(_scanned, work=work, memory=memory_for(work))


def _limit_memory(most: int) -> None:
    """Bounds the address space to what is taken now and `most` bytes more, on systems that bound it."""
    if sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * os.sysconf("SC_PAGE_SIZE") + most
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _scan(target: Target) -> ScanRow:
    return _Here.scan(target)


def memory_for(work: Work) -> ReportMemory:
    """A new memory of structures for one process."""
    return ReportMemory(Cache(work.folder), Structures())


def _scanned(target: Target, work: Work, memory: ReportMemory) -> ScanRow:
    return scan_one(partial(target.request, work.request), target.reference, work.asked, memory)
