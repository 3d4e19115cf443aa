"""Rich consoles (what a terminal shows, and the same as text) and colors, each with a word that says the same."""

import os
from enum import StrEnum
from functools import partial
from io import StringIO
from typing import Literal, TextIO

from rich.console import Console, RenderableType

from headscope.core.facts import ParameterStatus, Severity
from headscope.core.facts.verdict import Verdict
from headscope.core.upstream.python import is_for_agent
from headscope.core.words.lines import WIDE

# Names come from checkpoints: Rich must not read `[red]` or `:smile:` in them, nor color what looks like a number.
_literal_console = partial(Console, highlight=False, markup=False, emoji=False, force_jupyter=False)


def open_console(file: TextIO) -> Console:
    """Opens a console on `file`: as wide as the terminal or COLUMNS says; WIDE in a pipe."""
    wide = None if file.isatty() or "COLUMNS" in os.environ else WIDE
    colors: Literal["auto"] | None = None if is_for_agent() else "auto"
    return _literal_console(file=file, width=wide, color_system=colors)


def plain_text(renderable: RenderableType, width: int = WIDE) -> str:
    """Renders as text without color, at most `width` columns wide."""
    buffer = StringIO()
    console = _literal_console(file=buffer, width=width, color_system=None, force_terminal=False, legacy_windows=False)
    console.print(renderable, crop=False)  # a line that may not wrap, such as code, is longer than the width
    return buffer.getvalue()


class Tone(StrEnum):
    """Tone of a sentence; it decides the color."""

    GOOD = "good"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


TONE = {Tone.GOOD: "bold green", Tone.NOTE: "bold cyan", Tone.WARNING: "bold yellow", Tone.ERROR: "bold red"}

STATUS = {
    ParameterStatus.LOADED: "green",
    ParameterStatus.NEW: "bold yellow",
    ParameterStatus.MISMATCHED: "bold red",
    ParameterStatus.TIED: "cyan",
    ParameterStatus.IGNORED: "yellow",
    ParameterStatus.UNKNOWN: "bold magenta",
    ParameterStatus.CHANGED: "bold cyan",
}

SEVERITY = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}

VERDICT = {
    Verdict.PASSED: TONE[Tone.GOOD],
    Verdict.FAILED: TONE[Tone.ERROR],
    Verdict.NOT_DETERMINED: TONE[Tone.WARNING],
}

QUIET = "dim"
STRONG = "bold"
OPERATION = "bold"
MODULE = "cyan"
POOLING_STYLE = "bold magenta"
