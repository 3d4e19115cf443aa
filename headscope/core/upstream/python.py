"""CPython: its limits on parsing, garbage collection and writing, the faults of a process, and who runs it."""

import ast
import errno
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from headscope.errors import HeadscopeError, Unsupported, UsageError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
"""The errors where the disk is full, or a limit is reached."""
_WRITE_HINTS = {
    errno.EDQUOT: "free some of your quota, or write elsewhere",
    errno.EIO: "check the disk, or write elsewhere",
    errno.EROFS: "the file system is read-only: write elsewhere",
    errno.EACCES: "write where you have permission",
    errno.EPERM: "write where you have permission",
    errno.ENOTEMPTY: "another program wrote there meanwhile: name a new folder",
    errno.ENAMETOOLONG: "give a shorter name",
}
_ONE_AT_A_TIME = Lock()
_ATTEMPTS = 5


def write_hint(err: OSError) -> str:
    """Gives a hint for an error of the system on writing."""
    return _WRITE_HINTS.get(
        err.errno or 0, "free some space, or write elsewhere" if err.errno in FULL else "write elsewhere"
    )


def parse(source: str) -> ast.Module:
    """Calls `ast.parse`, in a process whose other threads parse too. Raises SyntaxError, as that does.

    Up to CPython 3.12 the depth of nesting is counted for the process, not for the thread: with two threads at it, one
    may end with `SystemError: AST constructor recursion depth mismatch`, about a source that is fine
    (github.com/python/cpython/issues/106905). Other libraries parse without this lock, so several attempts are made.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            with _ONE_AT_A_TIME:
                return ast.parse(source)
        except SystemError:
            continue
    return ast.parse(source)


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pauses cyclic garbage collection inside.

    With PyTorch and Transformers imported, one full collection goes through a million objects, which takes as long as
    the trace of a head.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def descends_from(value: object, package: str, name: str) -> bool:
    """True if `value` is of a class called `name` in `package`, or of a class made from it; nothing is imported."""
    # By names: an `isinstance` would need the package, which may not be installed or takes seconds to import.
    return any(cls.__name__ == name and cls.__module__.split(".")[0] == package for cls in type(value).__mro__)


def check_folder() -> None:
    """Raises UsageError in a working directory that was removed: oneMKL, inside PyTorch, ends the process there."""
    try:
        Path.cwd()
    except OSError as err:
        raise UsageError("the working directory doesn't exist any more", "change to another folder") from err


def fault_of_process(err: Exception) -> HeadscopeError | None:
    """Explains an unexpected exception by its process; None where the process is fine.

    Causes: a name that is too long, no temporary folder, no docstrings, or a package that can't be imported.
    """
    if isinstance(err, OSError):
        if err.errno == errno.ENAMETOOLONG:
            return UsageError(f"{err.filename} is a longer name than the system takes", write_hint(err))
        try:
            tempfile.gettempdir()
        except OSError:
            return Unsupported(
                "PyTorch needs a temporary folder, and none can be written to", "set TMPDIR to a folder with free space"
            )
    if sys.flags.optimize > 1:
        return Unsupported(
            f"Transformers reads its docstrings, which Python leaves out here: {type(err).__name__}",
            "unset PYTHONOPTIMIZE, or run Python without -OO",
        )
    from headscope.core.upstream.imports import fault_of_import  # a run that ends well needs none of it

    return fault_of_import(err)


def is_for_agent() -> bool:
    """True if a coding agent says that it runs the command: then there are no colors and spinners, and less advice.

    The names of the variables are the standard ones of huggingface_hub (utils/_detect_agent.py).
    """
    return any(os.environ.get(name, "").strip() for name in ("AI_AGENT", "AGENT"))
