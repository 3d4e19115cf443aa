"""The folder that holds the vectors: the caller's, locked while it is used, or a temporary one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headscope.errors import UsageError
from headscope.facts.counting import few_of
from headscope.probing.hidden.store import MANIFEST, is_our_file


@contextmanager
def vector_folder(given: str | None) -> Iterator[Path]:
    """The folder for the vectors: the caller's, made where it isn't there, or one that is removed again."""
    if given is None:
        with tempfile.TemporaryDirectory(prefix="headscope-probe-", ignore_cleanup_errors=True) as name:
            yield Path(name)
        return
    place = Path(given)
    try:
        place.mkdir(parents=True, exist_ok=True)
        strangers = sorted(item.name for item in place.iterdir() if not _is_ours(item))
    except OSError as err:
        raise UsageError(f"--features {given} cannot be used: {err.strerror}", "name a folder") from err
    if strangers:
        raise UsageError(f"--features {given} holds other files: {few_of(strangers)}", "name an empty folder")
    with _locked(place):
        yield place


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Locks a folder of vectors: another run would read them half written. Raises UsageError where one has it."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(place, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise UsageError(
                f"--features {place} is in use by another run of probe", "wait for it, or name another folder"
            ) from err
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)


def _is_ours(path: Path) -> bool:
    return path.is_file() and is_our_file(path.name)


def clear_folder(folder: Path) -> None:
    """Removes the vectors of an earlier run, what they were made of first."""
    (folder / MANIFEST).unlink(missing_ok=True)
    for item in [item for item in folder.iterdir() if _is_ours(item)]:
        item.unlink()
