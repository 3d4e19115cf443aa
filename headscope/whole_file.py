"""A text file written atomically, through a temporary file beside it."""

import os
import stat
import tempfile
from pathlib import Path


def write_whole(target: Path, text: str) -> None:
    """Writes `text` to `target`, whose permissions stay. Raises OSError; then `target` is as it was."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.chmod(_mode_of(target))
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_over(path: Path, text: str) -> bool:
    """Writes `text` to where `path` leads. A link is followed; a device or pipe (`/dev/stdout`) is written to
    directly.

    Returns whether a file was written whole. Raises OSError.
    """
    if path.exists() and not path.is_file():  # the path itself: a pipe behind /dev/stdout has no other name
        path.write_text(text, encoding="utf-8")
        return False
    write_whole(Path(os.path.realpath(path)), text)
    return True


def _mode_of(target: Path) -> int:
    """The permissions of the file that is replaced, or those that a new file gets."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
