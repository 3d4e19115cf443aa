"""The application: its commands, and how a run of it ends."""

import gc
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from headscope.commands import COMMANDS
from headscope.core.upstream.python import FULL, check_folder, fault_of_process
from headscope.errors import ExitCode, HeadscopeError, UsageError
from headscope.shell.failure import (
    Bug,
    Interrupted,
    asks_for_a_screen,
    asks_for_json,
    report_failure,
    warnings_as_lines,
)
from headscope.shell.output import CLOSED, discard, unwritten, write_stderr
from headscope.shell.parameters import with_option_groups
from headscope.shell.typer_help import PlainCommand, PlainGroup, TooManyWords

_SHOWN_ANYWHERE = {"--help", "-h", "--help-all", "--version", "-V"}
"""Options that only show something, which a closed stdout loses and a deleted folder doesn't matter to."""


_PURPOSE = "Show what turns hidden states into class scores, and which weights the checkpoint provides."


def _show_version(wanted: bool) -> None:
    if wanted:
        from headscope.core.facts.environment import tool_version

        typer.echo(f"headscope {tool_version()}")
        raise typer.Exit


def _global_options(
    version: Annotated[
        bool, typer.Option("-V", "--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


@cache
def build_application(*names: str) -> Any:
    """Builds some commands, or all, as Typer runs them: only their modules are imported."""
    app = typer.Typer(
        name="headscope",
        cls=PlainGroup,
        help=_PURPOSE,
        epilog="Start with: headscope inspect roberta-base --num-labels 3",
        context_settings={
            "help_option_names": ["-h", "--help"],
            "token_normalize_func": lambda token: token.replace("_", "-"),
        },
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.callback()(_global_options)
    for name in names or COMMANDS:
        entry = COMMANDS[name]
        app.command(name, cls=PlainCommand, rich_help_panel=entry.group, short_help=entry.purpose, epilog=entry.epilog)(
            with_option_groups(entry.run, entry.beside)
        )
    return get_command(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; failures are printed, never raised."""
    if arguments is None:
        # The process lives for seconds, and looking for cycles among the objects of torch takes a fifth of its import.
        gc.disable()
        _fill_closed_descriptors()
    given = list(sys.argv[1:] if arguments is None else arguments)
    # A character that the encoding of a stream lacks is shown as an escape; otherwise it would be a crash.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    return _flush_output(_run_reporting_failures(given), given)


def _run_reporting_failures(given: list[str]) -> int:
    """Runs a command, prints its failure, and gives the exit code."""
    as_json = asks_for_json(given)
    try:
        with warnings_as_lines():
            return _run_command(given)
    except TooManyWords as error:
        return report_failure(UsageError(error.message, _hint_on_words(error, given)), as_json=as_json)
    except HeadscopeError as error:
        return report_failure(error, as_json=as_json, with_screen=asks_for_a_screen(given))
    except typer.TyperException as error:
        # In headscope's form: one line, a small letter first, no full stop.
        message = " ".join(error.format_message().split()).replace(": Value error, ", ": ")
        message = f"{message[:1].lower()}{message[1:]}".removesuffix(".")
        return report_failure(UsageError(message, _usage_hint(given)), as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        return report_failure(Interrupted("interrupted"), as_json=as_json)
    except Exception as error:
        return _report_unexpected(error, as_json=as_json)


def _report_unexpected(error: Exception, *, as_json: bool) -> int:
    """Reports an exception that is not ours: the system's fault, or a bug with its traceback and a separate code."""
    # Typer prints the help itself, so a full disk shows as a plain OSError there.
    if isinstance(error, OSError) and error.errno in FULL:
        return report_failure(unwritten("stdout", error), as_json=as_json)
    fault = fault_of_process(error)
    if fault is not None:
        return report_failure(fault, as_json=as_json)
    write_stderr(traceback.format_exc())
    return report_failure(
        Bug(f"{type(error).__name__}: {error}", "This is a bug in headscope: please report it."), as_json=as_json
    )


def _flush_output(code: int, given: list[str]) -> int:
    """Flushes stdout, and gives the exit code: that of the command, or of output that could not be written."""
    # The interpreter flushes at its end too, and prints a separate error if that fails.
    if sys.stdout is None:  # closed by the caller; Typer then prints the help and the version to nowhere
        unsaid = not code and not _SHOWN_ANYWHERE.isdisjoint(given)
        return report_failure(CLOSED, as_json=False) if unsaid else code
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
    except OSError as error:
        discard(sys.stdout)
        return code or report_failure(unwritten("stdout", error), as_json=asks_for_json(given))
    return code


def _fill_closed_descriptors() -> None:
    """Opens the standard descriptors that are closed (`>&-`)."""
    # Otherwise the next file that is opened would get the number of stdout.
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _run_command(arguments: list[str]) -> int:
    if _SHOWN_ANYWHERE.isdisjoint(arguments):  # these work in a deleted folder too
        check_folder()
    # What stands first is nearly always the command; otherwise all of them may be shown.
    named = arguments[0].replace("_", "-") if arguments else ""
    try:
        ended = build_application(*({named} & COMMANDS.keys())).main(
            args=arguments or ["--help"], prog_name="headscope", standalone_mode=False
        )
    except SystemExit as end:
        # `--help | head -1`, which Typer ends with the code of findings.
        if isinstance(end.__context__, BrokenPipeError):
            return ExitCode.OK
        raise
    if not arguments:
        return ExitCode.USAGE
    if ended == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt  # Typer turned it into a number
    return int(ended or 0)


_COMMAND_FOR_SEVERAL = {
    "inspect": "compare",
    "diff-weights": "compare",
    "forward": "compare",
    "diagram": "compare",
    "verify": "check",
    "probe": "check",
    "snapshot": "scan",
}
"""Command that takes several models, for each command that takes one."""


def _hint_on_words(error: TooManyWords, given: Sequence[str]) -> str:
    """Makes the hint for too many words: they may be models, for a command that takes several."""
    other, word = _COMMAND_FOR_SEVERAL.get(error.command), error.words[0]
    if error.option and (other is None or "=" in word or not Path(word).exists()):
        flag = error.option.partition(" ")[0]
        return f"repeat {flag} for each value: `{error.option} {flag} {shlex.quote(word)}`"
    if other is None:
        return _usage_hint(given)
    if other == "compare":
        return f"run `headscope compare {shlex.join((*error.taken, *error.words))}` to see them side by side"
    return f"run {error.command} once for each model; `headscope {other}` takes several"


def _usage_hint(arguments: Sequence[str]) -> str:
    """Makes the hint for wrong usage: where help is, or that a command is missing."""
    words = [word for word in arguments if not word.startswith("-")]
    named = words[0].replace("_", "-") if words else ""
    if named in COMMANDS:
        return f"try `headscope {named} --help`"
    if named == "version":
        return "try `headscope --version`"
    if named == "help":
        return _usage_hint(words[1:])
    is_command = not words or bool(get_close_matches(named, COMMANDS))
    return "try `headscope --help`" if is_command else f"a command comes first: `headscope inspect {shlex.join(words)}`"
