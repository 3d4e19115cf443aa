"""The folder in which the workers of a scan share what they know, removed at its end, or by the next scan."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "headscope-scan-"


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder in which workers keep the structures that they know, for one another."""
    _remove_orphans()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_orphans() -> None:
    """Removes the folders of scans that were killed: their processes are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        number = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if number.isdigit() and os.name == "posix" and not _runs(int(number)):
            shutil.rmtree(folder, ignore_errors=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True
