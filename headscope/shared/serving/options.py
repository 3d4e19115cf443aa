"""Option that use cases with engines share."""

from functools import partial
from typing import Annotated, TypedDict

from headscope.shell.options.option import Option

server_option = partial(Option, panel="A server or an engine")
"""Declares an option of the panel for servers and engines."""


class InterpreterOption(TypedDict, total=False):
    """Option for the interpreter of an engine."""

    python: Annotated[
        str | None,
        server_option(
            "The interpreter that has the engine (default: that of headscope; `node` for transformers-js).",
            metavar="PATH",
        ),
    ]
