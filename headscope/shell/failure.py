"""What a failed command says: a sentence and a hint on stderr, and with `--json` an object on stdout."""

import shutil
import sys
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from headscope.errors import DeprecatedName, ExitCode, HeadscopeError, UnfinishedOutput
from headscope.shell.output import OutputFailed, print_screen, write_stderr, write_stdout


class Interrupted(HeadscopeError):
    """Somebody pressed Ctrl-C."""

    code = "interrupted"
    exit_code = ExitCode.INTERRUPTED


class Bug(HeadscopeError):
    """Unexpected exception: a bug in headscope."""

    code = "internal"


def asks_for_json(arguments: Sequence[str]) -> bool:
    """True if `arguments` ask for JSON."""
    # The words are read as they are, because the arguments may be what failed.
    named = {word.removeprefix("--format=") for word in arguments if word.startswith("--format=")}
    named |= {value for option, value in pairwise(arguments) if option == "--format"}
    has_brief = "inspect" in arguments  # `brief` of another command is what failed
    return "--json" in arguments or "json" in named or (has_brief and "brief" in named)


def asks_for_a_screen(arguments: Sequence[str]) -> bool:
    """True if stdout is for a reader: not with `-q`, nor for `diagram`, which writes a picture there."""
    return {"-q", "--quiet", "diagram"}.isdisjoint(arguments)


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Shows a deprecated name or an unfinished output as a line on stderr; exit code and stdout stay as they are."""

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, DeprecatedName | UnfinishedOutput):
            write_stderr(_wrap_line(f"warning: {message}"))
        else:
            otherwise(message, category, *place, **more)

    with warnings.catch_warnings():
        otherwise = warnings.showwarning
        warnings.showwarning = show
        warnings.simplefilter("always", DeprecatedName)
        warnings.simplefilter("always", UnfinishedOutput)
        yield


def _wrap_line(line: str) -> str:
    """Breaks a line between words for a terminal; elsewhere gives it as it is, for programs that search it."""
    if sys.stderr is None or not sys.stderr.isatty():
        return f"{line}\n"
    width = max(shutil.get_terminal_size().columns, 20)
    return textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) + "\n"


def _tell_repair(error: HeadscopeError) -> None:
    """Writes the code that repairs the checkpoint, and where its state is explained, to stderr."""
    from headscope.core.facts import CheckpointState
    from headscope.core.words.safe import safe

    if not isinstance(error.state, CheckpointState):
        return
    path = Path(error.reference)
    folder = error.reference if path.is_dir() else str(path.parent) if path.is_file() else ""
    for line in error.state.repair.code_from(folder).splitlines() if error.state.repair else ():
        write_stderr(f"    {safe(line)}\n")
    write_stderr(f"rules: run `headscope explain {error.state.rule}` for details\n")


def report_failure(error: HeadscopeError, *, as_json: bool, with_screen: bool = False) -> int:
    """Reports a failure and returns the exit code; with `with_screen`, also shows what could be read."""
    from headscope.core.facts.export import Inventoried
    from headscope.core.facts.stored.states import with_model
    from headscope.core.words.safe import safe

    unwritten = ""  # a failure to write comes last: the error itself matters more
    try:
        if isinstance(error, Inventoried) and with_screen and not as_json:
            from headscope.core.words.contents import contents_screen

            print_screen(contents_screen(error.contents))
    except OutputFailed as failed:
        unwritten = failed.message
    write_stderr(_wrap_line(f"error: {safe(error.message)}"))
    if error.hint:
        write_stderr(_wrap_line(f"hint: {safe(with_model(error.hint, error.reference))}"))
    _tell_repair(error)
    if as_json and not isinstance(error, OutputFailed):  # stdout took no report, so it takes no error
        from headscope.core.words.document import error_document, json_text

        try:
            write_stdout(json_text(error_document(error)))
        except OutputFailed as failed:
            unwritten = failed.message
    if unwritten:
        write_stderr(_wrap_line(f"error: {unwritten}"))
    return int(error.exit_code)
