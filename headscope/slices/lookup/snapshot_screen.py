"""Screen of a snapshot that was written."""

from rich.console import RenderableType
from rich.text import Text

from headscope.core.facts import CheckpointManifest
from headscope.core.words.words import snapshot_lines, snapshot_sentence


def shown_screen(result: CheckpointManifest) -> RenderableType:
    """Renders a result as Python shows it."""
    return Text(snapshot_sentence(result, getattr(result, "output", "")), overflow="fold")


def shown_line(result: CheckpointManifest) -> str:
    """Writes a result in one line."""
    return f"snapshot: {' '.join(snapshot_lines(result, getattr(result, 'output', '')))}"
