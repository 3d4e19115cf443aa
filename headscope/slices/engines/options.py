"""Options of `engines`."""

from typing import Annotated

from headscope.shared.serving.options import InterpreterOption
from headscope.shell.options.checkpoint import PlaceOptions, ReportCacheOption
from headscope.shell.options.option import Option


class EnginesOptions(InterpreterOption, PlaceOptions, ReportCacheOption, total=False):
    """Options of `engines`."""

    engine: Annotated[
        str | None,
        Option(
            "One engine, such as `vllm`, or `vllm@0.33.0` for a version (default: all).",
            in_python="Without a version, it is the installed one, otherwise the one that was read.",
            metavar="NAME",
            is_main=True,
            completes="engine",
            reads="shared.serving.cited:read_engine",
        ),
    ]
    run: Annotated[
        bool,
        Option(
            "Run the installed engines, or the named one, on a small random copy of the configuration.", is_main=True
        ),
    ]
