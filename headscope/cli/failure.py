"""What a failed command says: a sentence and a hint on stderr, and with `--json` an object on stdout."""

import shutil
import sys
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from headscope.cli.output import OutputFailed, print_screen, write_stderr, write_stdout
from headscope.errors import DeprecatedName, ExitCode, HeadscopeError, UnfinishedOutput

if TYPE_CHECKING:
    from headscope.facts.exports.export import WeightInventory


class Interrupted(HeadscopeError):
    """Somebody pressed Ctrl-C."""

    code = "interrupted"
    exit_code = ExitCode.INTERRUPTED


class Bug(HeadscopeError):
    """An exception that nobody expected: ours to mend."""

    code = "internal"


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether `arguments`, which may not even be valid, ask for JSON."""
    return not {"--json", "--format=json"}.isdisjoint(arguments) or ("--format", "json") in pairwise(arguments)


def asks_for_a_screen(arguments: Sequence[str]) -> bool:
    """Whether stdout is for a reader: not with `-q`, nor for `diagram`, which writes a picture there."""
    return {"-q", "--quiet", "diagram"}.isdisjoint(arguments)


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Shows a deprecated name or an unfinished output as a line on stderr; exit code and stdout stay as they are."""

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, DeprecatedName | UnfinishedOutput):
            write_stderr(_wrapped(f"warning: {message}"))
        else:
            otherwise(message, category, *place, **more)

    with warnings.catch_warnings():
        otherwise = warnings.showwarning
        warnings.showwarning = show
        warnings.simplefilter("always", DeprecatedName)
        warnings.simplefilter("always", UnfinishedOutput)
        yield


def _wrapped(line: str) -> str:
    """A line as a terminal shows it best, broken between words; elsewhere as it is."""
    if sys.stderr is None or not sys.stderr.isatty():
        return f"{line}\n"
    width = max(shutil.get_terminal_size().columns, 20)
    return textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) + "\n"


def _show(contents: "WeightInventory") -> None:
    """What could be read nevertheless, on stdout: it is a part of the answer."""
    from headscope.render.parts.export import contents_screen

    print_screen(contents_screen(contents))


def _tell_repair(error: HeadscopeError) -> None:
    """The code that repairs the checkpoint, and where the state is explained."""
    from headscope.facts import CheckpointState
    from headscope.render.text.safe import safe

    if not isinstance(error.state, CheckpointState):
        return
    for line in error.state.repair.code.splitlines() if error.state.repair else ():
        write_stderr(f"    {safe(line)}\n")
    write_stderr(f"rules: run `headscope explain {error.state.rule}` for details\n")


def report_failure(error: HeadscopeError, *, as_json: bool, with_screen: bool = False) -> int:
    """Says what went wrong and returns the exit code; `with_screen`, what could be read nevertheless is shown too."""
    from headscope.facts.exports.export import Inventoried
    from headscope.render.text.safe import safe

    unwritten = ""
    try:
        if isinstance(error, Inventoried) and with_screen and not as_json:
            _show(error.contents)
    except OutputFailed as failed:
        unwritten = failed.message
    write_stderr(_wrapped(f"error: {safe(error.message)}"))
    if error.hint:
        write_stderr(_wrapped(f"hint: {safe(error.hint)}"))
    _tell_repair(error)
    if as_json and not isinstance(error, OutputFailed):
        from headscope.render.text.document import error_document, json_text

        try:
            write_stdout(json_text(error_document(error)))
        except OutputFailed as failed:
            unwritten = failed.message
    if unwritten:
        write_stderr(_wrapped(f"error: {unwritten}"))
    return int(error.exit_code)
