"""`diagram`: the head of a report, a checkpoint or a model as a picture."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Unpack, overload

from headscope.core.facts import Report
from headscope.core.source.request import Progress
from headscope.errors import UsageError
from headscope.shell.options.calls import use_case
from headscope.shell.options.checkpoint import CachedOptions, ModuleOptions
from headscope.shell.options.option import DrawingName
from headscope.slices.diagram.options import DiagramOptions
from headscope.slices.inspect.run import inspect

if TYPE_CHECKING:
    from torch import nn


class NotebookSvg(str):
    """Shows an SVG document as the picture in a notebook."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)


@overload
def diagram(reference: Report, format: DrawingName = "mermaid") -> str: ...
@overload
def diagram(
    reference: str | PathLike[str],
    format: DrawingName = "mermaid",
    *,
    progress: Progress | None = None,
    **options: Unpack[CachedOptions],
) -> str: ...
@overload
def diagram(
    reference: nn.Module,
    format: DrawingName = "mermaid",
    *,
    progress: Progress | None = None,
    **options: Unpack[ModuleOptions],
) -> str: ...
@use_case
def diagram(
    reference: Report | str | PathLike[str] | nn.Module,
    format: DrawingName = "mermaid",
    *,
    progress: Progress | None = None,
    **options: Unpack[DiagramOptions],
) -> str:
    """Draws a head.

    Args:
        reference: What `inspect` returned, or what it takes: a Hub ID, a path, a class of Transformers by its name, or
            a model in memory.
        format: `text` (boxes for a terminal), `mermaid`, `dot`, `svg` or `html`.
        options: See `DiagramOptions`.
        progress: Called with a short sentence before each step.

    Returns:
        The picture as text in that format. A notebook shows an SVG as the picture.

    Raises:
        UsageError: headscope doesn't know the format, or an option doesn't apply.
        HeadscopeError: The checkpoint can't be read or examined.

    Example:
        >>> import headscope
        >>> headscope.diagram("roberta-base", "svg", num_labels=3, offline=True)[:4]
        '<svg'
    """
    from headscope.slices.diagram.formats import diagram_text

    if isinstance(reference, Report):
        if options:
            raise UsageError(f"{next(iter(options))} is an option for a checkpoint, not for a report", "leave it out")
        text = diagram_text(reference, format)
    else:
        text = diagram_text(inspect(reference, progress=progress, **options), format)  # type: ignore[call-overload]
    return NotebookSvg(text) if format == "svg" else text
