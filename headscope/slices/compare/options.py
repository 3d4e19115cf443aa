"""Options of `compare`."""

from typing import Annotated

from headscope.shell.options.checkpoint import CachedOptions, ProveOption
from headscope.shell.options.option import Option


class ValueComparison(CachedOptions, total=False):
    """Options of `compare` that the command line has too."""

    values: Annotated[
        bool,
        Option(
            "Also compare the stored values of the head.",
            in_python="Bit by bit, for the parameters that all heads have.",
            is_main=True,
        ),
    ]


class CompareOptions(ValueComparison, ProveOption, total=False):
    """Options of `compare`."""
