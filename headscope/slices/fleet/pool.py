"""A pool of worker processes with limits: a checkpoint that hangs, crashes or fills the memory costs itself alone."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from secrets import token_hex

from headscope.core.source.environment import default_torch
from headscope.core.source.memory.memory import Memory, Structures
from headscope.core.source.request import Request
from headscope.core.source.storage.cache import Cache, open_cache
from headscope.core.upstream.imports import watched_imports
from headscope.core.workers import WorkerEnded, Workers, begin_worker, pause, results
from headscope.errors import HeadscopeError, Unsupported
from headscope.slices.fleet.facts import Cause, ScanRow
from headscope.slices.fleet.hub.budget import SharedBudget
from headscope.slices.fleet.row import RowOptions, scan_one, unread
from headscope.slices.fleet.table import take_lock
from headscope.slices.fleet.target import Target

SECONDS = 300.0
MEMORY = 8 * 1024**3
_PREFIX = "headscope-scan-"
_LOCK = "in-use"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for one checkpoint: `seconds` of wall time, `memory` in bytes of address space beside the libraries."""

    seconds: float = SECONDS
    memory: int | None = MEMORY


@dataclass(frozen=True, slots=True)
class Work:
    """Work of every worker: `request` is that of each checkpoint but for its place; `folder` holds structures."""

    request: Request
    options: RowOptions
    folder: Path | None = None

    def sharing(self, folder: Path) -> Work:
        """Gives the same work for processes that share structures, and the Hub's request budget, through a folder."""
        place = self.request.location
        hub = replace(place.hub, budget=SharedBudget(folder / "budget"))
        return replace(self, request=replace(self.request, location=replace(place, hub=hub)), folder=folder)


def scan_here(targets: Iterable[Target], work: Work, memory: Memory | None = None) -> Iterator[ScanRow]:
    """Examines checkpoints in this process, without limits; `memory` keeps structures for later calls."""
    if memory is None:
        memory = memory_for(work)
    with watched_imports():
        for target in targets:
            with default_torch():  # not around the yield: that would be the state of whoever reads the rows
                row = _scan_with_memory(target, work, memory)
            yield row


def scan_in_pool(targets: Iterable[Target], work: Work, workers: int, limits: Limits) -> Iterator[ScanRow]:
    """Gives the rows of checkpoints as they are done, from `workers` processes."""
    crew = Crew(work, limits)
    return results(crew.scan, targets, workers, crew)


class Crew(Workers):
    """Workers of a scan."""

    def __init__(self, work: Work, limits: Limits) -> None:
        super().__init__(partial(_begin_scanning, work, limits.memory))
        self._seconds = limits.seconds

    def scan(self, target: Target) -> ScanRow:
        """Gives the row of a checkpoint from this thread's worker, even if the worker hangs or crashes."""
        worker = self.worker()
        try:
            return worker.call(_scan_target, target, seconds=self._seconds)
        except TimeoutError:
            row = unread(target.reference, Cause.TIMEOUT, f"not done after {self._seconds:g} s, the time limit")
            return replace(row, seconds=self._seconds)
        except WorkerEnded as err:
            end = f"exit code {err.code}"
            # A negative code is the signal that killed the process; any other isn't a signal and raises ValueError.
            with suppress(ValueError):
                end = signal.Signals(-err.code).name
            return unread(target.reference, Cause.CRASH, f"its worker process ended: {end}")
        except Unsupported:  # it is not the checkpoint's fault: `preparing`
            raise
        except Exception as err:  # a row that can't be sent back
            return unread(target.reference, Cause.CRASH, f"{type(err).__name__}: {err}")


class _WorkerState:
    """State of a worker process, kept between two tasks."""

    scan: Callable[[Target], ScanRow]
    watch: AbstractContextManager[None]
    libraries = 0
    """Bytes of address space that the worker took before its first task, and that its imports added."""


def _begin_scanning(work: Work, most_memory: int | None) -> None:
    """Prepares a worker for its first task: watches imports, limits the memory, opens the memory of structures."""
    _WorkerState.watch = watched_imports(partial(_exempt_import, most_memory))
    _WorkerState.watch.__enter__()  # it lasts as long as the process
    _WorkerState.libraries = _address_space()
    _limit_memory(most_memory)
    _WorkerState.scan = partial(_scan_with_memory, work=work, memory=memory_for(work))


@contextmanager
def _exempt_import(most_memory: int | None, name: str) -> Iterator[None]:
    """Exempts an import from a checkpoint's limits of time and memory: the library stays for all later ones."""
    with pause(name):
        # `libraries` grows only by what the import adds: what the checkpoint took before stays its own.
        taken = _WorkerState.libraries - _address_space()
        _limit_memory(None)
        try:
            yield
            begin_worker()
        finally:
            _WorkerState.libraries = max(taken + _address_space(), _WorkerState.libraries)
            _limit_memory(most_memory)


def _limit_memory(most: int | None) -> None:
    """Bounds the address space to that of the libraries and `most` bytes, on systems that bound it; None: no bound."""
    if sys.platform != "linux":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if most is None:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        return
    wanted = _WorkerState.libraries + most
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _address_space() -> int:
    """Reads the bytes of address space that this process has taken; 0 on systems that don't bound it."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")


# Calls are pickled by the name of a function of a module; `_WorkerState.scan` exists only in the worker.
def _scan_target(target: Target) -> ScanRow:
    return _WorkerState.scan(target)


def memory_for(work: Work) -> Memory:
    """Makes a memory of structures for one process: the user's cache, or else what the processes of a scan share."""
    cache = open_cache(work.request.cache)
    return Memory(cache if cache.is_open else Cache(work.folder), Structures())


def _scan_with_memory(target: Target, work: Work, memory: Memory) -> ScanRow:
    return scan_one(partial(target.request, work.request), target.reference, work.options, memory)


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder in which workers keep the structures that they know, for one another.

    Raises HeadscopeError where no temporary folder can be made.
    """
    try:
        _remove_orphans()
        place = Path(tempfile.gettempdir())
    except OSError as err:
        raise _folder_error(err) from err
    folder, lock = place / f"{_PREFIX}{token_hex(8)}", None
    try:
        try:
            folder.mkdir(0o700)
            lock = _new_lock(folder)
        except OSError as err:
            raise _folder_error(err) from err
        yield folder
    finally:  # even after a signal right after the folder was made
        if lock is not None:
            os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def _folder_error(err: OSError) -> HeadscopeError:
    return HeadscopeError(f"a temporary folder can't be made: {err.strerror}", "set TMPDIR to a folder with free space")


def _new_lock(folder: Path) -> int:
    """Takes the folder's lock and gives its descriptor. It gets its name only then, so nobody finds it free before."""
    unnamed = folder / f"{_LOCK}-soon"
    lock = os.open(unnamed, os.O_RDWR | os.O_CREAT, 0o600)
    take_lock(lock)
    if os.name == "posix":  # elsewhere there are no locks, and no renaming of open files
        unnamed.rename(folder / _LOCK)
    return lock


def _remove_orphans() -> None:
    """Removes the folders of scans that were killed: their locks are free.

    A lock tells more than the number of a process: scans in other containers or on other machines can use the same
    folder for temporary files.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # a folder of another user, or of a scan that is just ending
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                if take_lock(lock):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
