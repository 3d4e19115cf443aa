"""Where a report goes, stdout or a file that is written atomically, and the exit status that it gives."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from headscope.core.upstream.python import FULL, write_hint
from headscope.errors import HeadscopeError, UsageError
from headscope.shell.arguments import Output, Pages

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headscope.core.words.document import Document


class OutputFailed(HeadscopeError):
    """Failure to write the report: a full disk, a closed stream."""

    code = "output"


CLOSED = OutputFailed("stdout is closed, so nothing could be written to it", "name a file with -o")


def write_report(output: Pages, screen: "Callable[[], RenderableType]", document: "Callable[[], Document]") -> None:
    """Writes the screen, or the document as JSON if `output` asks for it; makes only the one that is written."""
    quiet = isinstance(output, Output) and output.quiet
    if output.is_json:
        from headscope.core.words.document import json_text

        write_text(output.output, json_text(document()), quiet=quiet)
    else:
        write_screen(output.output, screen(), quiet=quiet)


def write_screen(path: Path | None, screen: "RenderableType", *, quiet: bool = False) -> None:
    """Writes a screen to the file as plain text, or shows it on stdout where there is none."""
    if path is None:
        print_screen(screen)
        return
    from headscope.core.words.console import plain_text

    write_file(path, signed_text(plain_text(screen)), quiet=quiet)


def signed_text(text: str) -> str:
    """Ends a saved screen with headscope's version, by which `headscope.core.outputs` recognizes it as a report."""
    from headscope.core.facts.environment import tool_version

    return f"{text}\nheadscope {tool_version()}\n"


def write_text(path: Path | None, text: str, *, quiet: bool = False) -> None:
    """Writes `text` to the file, or to stdout where there is none."""
    if path is None:
        write_stdout(text)
    else:
        write_file(path, text, quiet=quiet)


def write_stdout(text: str) -> bool:
    """Writes `text` as it is; False where nobody reads on (`| head`), which is not a failure and changes no exit code.

    Raises OutputFailed where stdout is closed or full.
    """
    if sys.stdout is None:
        raise CLOSED
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
        return False
    except OSError as err:
        discard(sys.stdout)
        raise unwritten("stdout", err) from err
    return True


def unwritten(where: str, err: OSError) -> OutputFailed:
    """Makes the error for output that the system refuses to take."""
    return OutputFailed(f"the report could not be written to {where}: {err.strerror}", write_hint(err))


def print_screen(renderable: "RenderableType") -> None:
    """Shows a screen on stdout. Raises OutputFailed as `write_stdout` does."""
    from headscope.core.words.console import open_console

    if sys.stdout is None:
        write_stdout("")
    console = open_console(sys.stdout)
    with console.capture() as capture:  # Rich would end the process where nobody reads
        console.print(renderable, crop=False)
    write_stdout(capture.get())


def write_file(path: Path, text: str, *, quiet: bool = False) -> None:
    """Writes `text` to `path` through a temporary file beside it, so that no half report is ever seen there.

    A link is followed; anything but a regular file (`/dev/stdout`) is written to directly. Unless `quiet`, a line on
    stderr names the file. Raises UsageError if it can't be written.
    """
    from headscope.core.outputs import write_over  # slow to import, and seldom needed

    try:
        is_file = write_over(path, text)
    except OSError as err:
        if err.errno in FULL:
            raise unwritten(str(path), err) from err
        raise UsageError(f"-o {path} cannot be written: {err.strerror}", write_hint(err)) from err
    if is_file and not quiet:
        tell_written(str(path))


def tell_written(name: str) -> None:
    """Writes to stderr which file was written."""
    from headscope.core.words.safe import safe

    write_stderr(f"wrote {safe(name)}\n")


def write_stderr(text: str) -> None:
    """Writes `text` where somebody may read it: a stderr that is closed or full stops nothing."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Sends what a stream still holds, and all that follows, to nowhere: the interpreter flushes it at its end."""
    try:
        target = os.open(os.devnull, os.O_WRONLY)
        os.dup2(target, stream.fileno())
        os.close(target)
    except (OSError, ValueError):  # a stream without a descriptor holds nothing back
        return
