"""The folder in which the workers of a scan share what they know, removed at its end, or by the next scan."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from headscope.errors import HeadscopeError
from headscope.slices.fleet.table.files import take_lock

_PREFIX = "headscope-scan-"
_LOCK = "in-use"


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
