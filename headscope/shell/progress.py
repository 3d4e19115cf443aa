"""A status line on stderr for what takes time: a spinner in a terminal, one line in a log."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headscope.core.upstream.python import is_for_agent
from headscope.shell.output import write_stderr

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.status import Status

_TRUE = {"1", "on", "yes", "true"}
_PATIENCE = 0.5
_PATIENCE_OF_PIPES = 5.0
_ENDING = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))

Tell = Callable[[str], None]


@contextmanager
def telling_progress(quiet: bool) -> Iterator[Tell]:
    """Gives a function that takes each step: a terminal shows it after a moment, a log one line after seconds."""
    with ended_by_signals():
        if quiet or sys.stderr is None or _is_off():
            yield lambda step: None
            return
        line = _StatusLine() if is_watched() else _LateLine()
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
    return sys.stderr is not None and sys.stderr.isatty() and not is_for_agent() and not _is_off()


def _is_off() -> bool:
    """True if the user wants no progress; the variable of the Hub's client silences both."""
    names = ("HEADSCOPE_NO_PROGRESS", "HF_HUB_DISABLE_PROGRESS_BARS")
    return any(os.environ.get(name, "").strip().lower() in _TRUE for name in names)


class _LateLine:
    """The latest step on a line of stderr, written once if the command takes long: whoever reads a log waits too."""

    patience = _PATIENCE_OF_PIPES

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._step = "starting"
        self._closed = False
        self._timer = threading.Timer(self.patience, self._show_step)
        self._timer.daemon = True
        self._timer.start()

    def tell(self, step: str) -> None:
        """Notes the step that begins."""
        self._step = step

    def close(self) -> None:
        """Shows nothing from now on."""
        self._timer.cancel()
        with self._lock:
            self._closed = True

    def _show_step(self) -> None:
        self._load_display()  # takes time: before the lock, or the next step would wait for it
        with self._lock:
            if not self._closed:  # the timer may fire while the line is being closed
                self._begin_line()

    def _load_display(self) -> None:
        """Imports what the line is written with: only what takes long has something to write."""
        import headscope.core.words.safe  # noqa: F401

    def _begin_line(self) -> None:
        from headscope.core.words.safe import safe

        write_stderr(f"headscope: {safe(self._step)} ...\n")


class _StatusLine(_LateLine):
    """Spinner with the latest step, which appears only after a moment."""

    patience = _PATIENCE

    def __init__(self) -> None:
        self._status: Status | None = None
        super().__init__()

    def tell(self, step: str) -> None:
        with self._lock:
            self._step = step
            if self._status is not None:
                self._status.update(_step_line(step))

    def close(self) -> None:
        super().close()
        if self._status is not None:
            self._status.stop()

    def _load_display(self) -> None:
        import rich.status  # noqa: F401

    def _begin_line(self) -> None:
        from rich.console import Console
        from rich.status import Status

        console = Console(file=sys.stderr, highlight=False)
        spinner = "dots" if console.encoding.startswith("utf") else "line"
        self._status = Status(_step_line(self._step), console=console, spinner=spinner)
        self._status.start()


def _step_line(step: str) -> "RenderableType":
    from headscope.core.words.safe import label

    return label(f"{step} ...", "dim")
