"""`headscope diagram MODEL`."""

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

from headscope.cli.options import FailOnMissing, OutputFile, Source, Wanted, option
from headscope.cli.output import exit_status, write_screen, write_text
from headscope.cli.progress import telling_progress
from headscope.errors import UsageError

_OUTPUT = "Output"


class Drawing(str, Enum):  # noqa: UP042 - StrEnum shows its members differently in Typer's help
    """Formats of the picture."""

    text = "text"
    mermaid = "mermaid"
    dot = "dot"
    svg = "svg"
    html = "html"


_SUFFIXES = {
    ".txt": Drawing.text,
    ".mmd": Drawing.mermaid,
    ".mermaid": Drawing.mermaid,
    ".dot": Drawing.dot,
    ".gv": Drawing.dot,
    ".svg": Drawing.svg,
    ".html": Drawing.html,
    ".htm": Drawing.html,
}


def diagram_command(  # noqa: PLR0917  Typer passes every option by name
    wanted: Wanted,
    source: Source,
    format: Annotated[
        Drawing | None,
        option(
            "--format",
            "text, mermaid, dot, svg or html (default: the suffix of FILE; text in a terminal, mermaid elsewhere).",
            "FORMAT",
            panel=_OUTPUT,
        ),
    ] = None,
    json: Annotated[
        bool, option("--json", "Report errors as JSON; doesn't affect the diagram.", panel=_OUTPUT)
    ] = False,
    output: OutputFile = None,
    quiet: Annotated[bool, option("-q --quiet", "Show no progress.", panel=_OUTPUT)] = False,
    exit_code: FailOnMissing = False,
) -> int:
    """Draw the head in the terminal, or as Mermaid, DOT, SVG or HTML."""
    in_terminal = output is None and sys.stdout is not None and sys.stdout.isatty()
    drawing = format or (Drawing.text if in_terminal else _drawing_of(output))
    options = wanted.keywords()
    with telling_progress(quiet) as tell:
        from headscope import api

        report = api.inspect(source.model, progress=tell, **source.keywords(), **options)
    from headscope.render.diagram import diagram_screen, diagram_text

    if drawing is Drawing.text:
        write_screen(output, diagram_screen(report), quiet=quiet)
    else:
        write_text(output, diagram_text(report, drawing.value), quiet=quiet)
    return exit_status(report, fail_on_missing=exit_code)


def _drawing_of(output: Path | None) -> Drawing:
    """Gives the format for the suffix of a file, Mermaid without one. Raises UsageError for an unknown suffix."""
    suffix = output.suffix.lower() if output is not None else ""
    if not suffix:
        return Drawing.mermaid
    if suffix not in _SUFFIXES:
        raise UsageError(
            f"-o {output}: headscope draws no {suffix} files",
            f"use one of {', '.join(_SUFFIXES)}, or name the format with --format",
        )
    return _SUFFIXES[suffix]
