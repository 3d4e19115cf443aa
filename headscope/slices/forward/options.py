"""Options of `forward`."""

from collections.abc import Iterable
from functools import partial
from typing import Annotated, TypedDict

from headscope.shell.options.checkpoint import CachedOptions, ModuleOptions
from headscope.shell.options.option import DeviceName, Option

_input = partial(Option, panel="What to run", is_main=True)


class InputOptions(TypedDict, total=False):
    """Options for what `forward` runs, and where."""

    device: Annotated[
        DeviceName,
        _input(
            "`meta` (shapes, no weights), `cpu`, `cuda`, `cuda:0` or `mps`.",
            "meta",
            in_terminal="Default: meta; cpu for a text, image or sound.",
            metavar="DEVICE",
            typed=str,
            typed_default=None,
        ),
    ]
    text: Annotated[str | Iterable[str], _input("A text to score, or several.", (), metavar="TEXT", is_repeatable=True)]
    text_pair: Annotated[
        str | Iterable[str],
        _input("The second text of each pair, in order.", (), metavar="TEXT", is_repeatable=True),
    ]
    image: Annotated[str | None, _input("Path of an image to score.", metavar="FILE")]
    audio: Annotated[str | None, _input("Path of a WAV file to score.", metavar="FILE")]


class CheckpointForward(InputOptions, CachedOptions, total=False):
    """Options of `forward` for a checkpoint."""


class ForwardOptions(CheckpointForward, ModuleOptions, total=False):
    """Options of `forward`, for a checkpoint and for a model in memory."""
