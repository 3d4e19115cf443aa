"""A result as a self-contained piece of HTML for a notebook."""

from io import StringIO
from typing import Any

from rich.console import Console

from headscope.render.screen import result_screen

_WIDTH = 120
_FORMAT = (
    '<pre style="white-space:pre;overflow-x:auto;line-height:1.3;'
    'font-family:ui-monospace,Menlo,Consolas,monospace">{code}</pre>'
)


def result_html(result: Any) -> str:
    """`result`'s screen in one `<pre>` with inline styles; every name in it is escaped."""
    console = Console(
        file=StringIO(),
        width=_WIDTH,
        record=True,
        highlight=False,
        markup=False,
        emoji=False,
        color_system="truecolor",
        force_terminal=True,
        force_jupyter=False,
        legacy_windows=False,
        no_color=False,
    )
    console.print(result_screen(result))
    return console.export_html(code_format=_FORMAT, inline_styles=True)
