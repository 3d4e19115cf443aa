"""Worker processes: started without the caller's script, ended with their parent."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext, SpawnContext, SpawnProcess
from typing import Any

_STARTING = threading.Lock()


@contextmanager
def without_main() -> Iterator[None]:
    """Workers that are started inside do not run the caller's script again.

    They would, up to its first call of headscope, unless it has an `if __name__ == "__main__"`: to find functions that
    it defines. Ours are in headscope.
    """
    with _STARTING:
        main = vars(sys.modules["__main__"])
        before: dict[str, Any] = {name: main[name] for name in ("__file__", "__spec__") if name in main}
        main.pop("__file__", None)
        main["__spec__"] = None
        try:
            yield
        finally:
            main.update(before)


class _Process(SpawnProcess):
    def start(self) -> None:
        with without_main():
            super().start()


class _Context(SpawnContext):
    Process = _Process


def worker_context() -> BaseContext:
    """A context that starts every process new.

    A fork would copy the locks of PyTorch's threads as they are, some of them held: a forked worker can hang on one.
    """
    return _Context()


def begin_worker() -> None:
    """One thread a worker, and no looking for cycles: a worker never lives longer than its parent."""
    import gc
    import signal

    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    import torch

    # There is a worker for each core already, and heads without numbers give a second thread nothing to do.
    torch.set_num_threads(1)
    gc.set_threshold(200_000, 20, 100)


def _end_with_parent() -> None:
    """Ends this process as soon as its parent has ended, however that was: nobody is left to take the results."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
