"""Screen of topics that were explained."""

from collections.abc import Sequence

from rich.console import RenderableType

from headscope.shared.topics import Topic, several_screen


def shown_screen(result: Sequence[Topic]) -> RenderableType:
    """Renders a result as Python shows it."""
    return several_screen(result)


def shown_line(result: Sequence[Topic]) -> str:
    """Writes a result in one line."""
    return f"explain: {', '.join(topic.id for topic in result)}"
