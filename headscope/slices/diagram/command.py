"""`headscope diagram MODEL`."""

import sys
from pathlib import Path
from typing import Annotated

from headscope.errors import UsageError
from headscope.shared.report.status import exit_status
from headscope.shell.arguments import OUTPUT, FailOnMissing, Model, OutputFile, format_option
from headscope.shell.options.checkpoint import CachedOptions
from headscope.shell.options.option import DrawingName, Option
from headscope.shell.output import write_screen, write_text
from headscope.shell.progress import telling_progress

_SUFFIXES: dict[str, DrawingName] = {
    ".txt": "text",
    ".mmd": "mermaid",
    ".mermaid": "mermaid",
    ".dot": "dot",
    ".gv": "dot",
    ".svg": "svg",
    ".html": "html",
    ".htm": "html",
}


def diagram_command(  # noqa: PLR0917  Typer passes every option by name
    model: Model,
    options: CachedOptions,
    format: Annotated[
        DrawingName | None,
        format_option(
            "text, mermaid, dot, svg or html (default: the suffix of FILE; text in a terminal, mermaid elsewhere)."
        ),
    ] = None,
    json: Annotated[bool, Option("Report errors as JSON; doesn't affect the diagram.", panel=OUTPUT)] = False,
    output: OutputFile = None,
    quiet: Annotated[bool, Option("Show no progress.", flags="-q --quiet", panel=OUTPUT, is_main=True)] = False,
    exit_code: FailOnMissing = False,
) -> int:
    """Draw the head in the terminal, or as Mermaid, DOT, SVG or HTML."""
    in_terminal = output is None and sys.stdout is not None and sys.stdout.isatty()
    drawing = format or ("text" if in_terminal else _drawing_of(output))
    with telling_progress(quiet) as tell:
        from headscope.slices.inspect.run import inspect

        report = inspect(model, progress=tell, **options)
    from headscope.slices.diagram.formats import diagram_screen, diagram_text

    if drawing == "text":
        write_screen(output, diagram_screen(report), quiet=quiet)
    else:
        write_text(output, diagram_text(report, drawing), quiet=quiet)
    return exit_status(report, fail_on_missing=exit_code)


def _drawing_of(output: Path | None) -> DrawingName:
    """Gives the format for the suffix of a file, Mermaid without one. Raises UsageError for an unknown suffix."""
    suffix = output.suffix.lower() if output is not None else ""
    if not suffix:
        return "mermaid"
    if suffix not in _SUFFIXES:
        raise UsageError(
            f"-o {output}: headscope draws no {suffix} files",
            f"use one of {', '.join(_SUFFIXES)}, or name the format with --format",
        )
    return _SUFFIXES[suffix]
