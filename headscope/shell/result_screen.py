"""Screen of any result, the same as text, and one line for it in a list or a debugger."""

import shutil
from importlib import import_module
from types import ModuleType
from typing import Any

from rich.console import RenderableType

from headscope.commands import SCREENS
from headscope.core.words.console import plain_text

_LINE = 160


def result_screen(result: Any) -> RenderableType:
    """Renders `result` (of any use case) as the terminal shows it.

    Raises TypeError for anything else.
    """
    screen: RenderableType = _room_of(result).shown_screen(result)
    return screen


def result_text(result: Any, width: int | None = None) -> str:
    """Renders `result_screen` as text without color, as wide as the terminal if no `width` is given."""
    columns = width or shutil.get_terminal_size((100, 24)).columns
    return plain_text(result_screen(result), columns).rstrip("\n")


def result_line(result: Any) -> str:
    """Writes one line of at most 160 characters: `<headscope check of roberta-base: Failed for inference: 1 error>`."""
    line = f"headscope {_room_of(result).shown_line(result)}"
    return f"<{line if len(line) <= _LINE else line[: _LINE - 3] + '...'}>"


def _room_of(result: Any) -> ModuleType:
    """Imports the module that shows results of this kind. Raises TypeError if there is none."""
    own = (kind for kind in type(result).__mro__ if kind.__module__.startswith("headscope."))
    room = next((SCREENS[kind.__name__] for kind in own if kind.__name__ in SCREENS), None)
    if room is None:
        raise TypeError(f"not a result: {type(result).__name__}")
    return import_module(f"headscope.{room}")
