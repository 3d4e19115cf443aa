"""Options of `diagram`."""

from headscope.shell.options.checkpoint import CachedOptions, ModuleOptions


class DiagramOptions(CachedOptions, ModuleOptions, total=False):
    """Options of `diagram`, for a checkpoint and for a model in memory."""
