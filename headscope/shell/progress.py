"""A status line on stderr for what takes over a second; silent where nobody watches."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.status import Status

_TRUE = {"1", "on", "yes", "true"}
_PATIENCE = 1.0
_ENDING = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))

Tell = Callable[[str], None]


@contextmanager
def telling_progress(quiet: bool) -> Iterator[Tell]:
    """Gives a function that takes each step; steps are shown after the first second, in a terminal only."""
    with ended_by_signals():
        if quiet or not is_watched():
            yield lambda step: None
            return
        line = _StatusLine()
        try:
            yield line.tell
        finally:
            line.close()


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP end what runs as any other exit does: workers stop, unfinished folders are removed.

    A scheduler sends SIGTERM, a terminal that closes SIGHUP. A signal that the caller ignores (`nohup`) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return

    def end(number: int, _: object) -> None:
        for one in numbers:
            signal.signal(one, signal.SIG_IGN)  # a second one must not cut the removal
        raise SystemExit(128 + number)  # the exit code that shells give a process which a signal ended

    numbers = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_watched() -> bool:
    """True if stderr is a terminal, and progress is not switched off."""
    # The variable of the Hub's client, so that one setting silences both.
    is_off = os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS", "").strip().lower() in _TRUE
    return sys.stderr is not None and sys.stderr.isatty() and not is_off


class _StatusLine:
    """Spinner with the latest step, which appears only after a while."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._step = "starting"
        self._closed = False
        self._status: Status | None = None
        self._timer = threading.Timer(_PATIENCE, self._show_status)
        self._timer.daemon = True
        self._timer.start()

    def tell(self, step: str) -> None:
        with self._lock:
            self._step = step
            if self._status is not None:
                self._status.update(_step_line(step))

    def close(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._status is not None:
                self._status.stop()
            self._status = None

    def _show_status(self) -> None:
        from rich.console import Console
        from rich.status import Status

        console = Console(file=sys.stderr, highlight=False)
        spinner = "dots" if console.encoding.startswith("utf") else "line"
        with self._lock:
            if not self._closed:  # the timer may fire while the line is being closed
                self._status = Status(_step_line(self._step), console=console, spinner=spinner)
                self._status.start()


def _step_line(step: str) -> "RenderableType":
    from headscope.core.words.safe import label

    return label(f"{step} ...", "dim")
