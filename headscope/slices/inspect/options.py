"""Options of `inspect` and `diff_weights`."""

from typing import Annotated

from headscope.shell.options.checkpoint import CachedOptions, LoadedOptions, ModuleOptions, ProveOption
from headscope.shell.options.option import Option


class DiffOptions(CachedOptions, LoadedOptions, total=False):
    """Options of `diff_weights`, for a checkpoint and for a model in memory."""


class ExtentOptions(ProveOption, total=False):
    """Options for what `inspect` finds out."""

    health: Annotated[
        bool, Option("Show whether the classifier was ever trained, from its stored values.", is_main=True)
    ]


class CheckpointInspection(ExtentOptions, CachedOptions, total=False):
    """Options of `inspect` for a checkpoint."""


class ModuleInspection(ExtentOptions, ModuleOptions, total=False):
    """Options of `inspect` for a model in memory."""


class InspectOptions(CheckpointInspection, ModuleInspection, total=False):
    """Options of `inspect`."""
