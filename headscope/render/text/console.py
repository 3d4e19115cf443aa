"""Rich consoles: what a terminal shows, and the same as plain text."""

import os
from io import StringIO
from typing import TextIO

from rich.console import Console, RenderableType

from headscope.render.text.lines import WIDE


def open_console(file: TextIO) -> Console:
    """A console on `file`: as wide as the terminal or COLUMNS says; WIDE in a pipe."""
    wide = None if file.isatty() or "COLUMNS" in os.environ else WIDE
    return Console(file=file, width=wide, highlight=False, markup=False, emoji=False, force_jupyter=False)


def plain_text(renderable: RenderableType, width: int = WIDE) -> str:
    """`renderable` as text without color, at most `width` columns wide."""
    buffer = StringIO()
    console = Console(
        file=buffer,
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        legacy_windows=False,
    )
    console.print(renderable, crop=False)
    return buffer.getvalue()
