"""`diagram`: the head of a report as a picture."""

from __future__ import annotations

from headscope.api.arguments import DrawingName, use_case
from headscope.errors import UsageError
from headscope.facts import Report


@use_case
def diagram(report: Report, format: DrawingName = "mermaid") -> str:
    """Draws the head of a report.

    Args:
        report: What `inspect` returned.
        format: `text` (boxes for a terminal), `mermaid`, `dot`, `svg` or `html`.

    Returns:
        The picture as text in that format.

    Raises:
        UsageError: headscope doesn't know the format.

    Example:
        >>> import headscope
        >>> report = headscope.inspect("roberta-base", num_labels=3, offline=True)
        >>> headscope.diagram(report, "svg")[:4]
        '<svg'
    """
    from headscope.render.diagram import PAINTERS, diagram_text

    if format not in PAINTERS:
        raise UsageError(f"no such format: {format}", f"formats: {', '.join(PAINTERS)}")
    return diagram_text(report, format)
