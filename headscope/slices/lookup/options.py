"""Options of `snapshot`."""

from headscope.shell.options.checkpoint import AdapterOption, PlaceOptions


class SnapshotOptions(PlaceOptions, AdapterOption, total=False):
    """Options of `snapshot`."""
