"""The screen that goes with a report: by the command that made it."""

import shutil

from rich.console import RenderableType

from headscope.facts import Report
from headscope.render.console import plain_text
from headscope.render.diff import diff_screen
from headscope.render.inspect import inspect_screen

_SCREENS = {"inspect": inspect_screen, "diff-weights": diff_screen}
_FALLBACK = (100, 24)


def report_screen(report: Report) -> RenderableType:
    """`report` as a Rich renderable."""
    return _SCREENS[report.command](report)


def report_text(report: Report, width: int | None = None) -> str:
    """`report` as text without colour, as wide as the terminal if no `width` is given."""
    columns = width or shutil.get_terminal_size(_FALLBACK).columns
    return plain_text(report_screen(report), columns).rstrip("\n")
