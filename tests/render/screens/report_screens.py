"""The screens of a report, short and whole."""

import io
from collections.abc import Callable

from reports import as_diff
from rich.console import RenderableType

from headscope.core.words.console import open_console
from headscope.facts import Report
from headscope.slices.inspect.diff_screen import diff_screen
from headscope.slices.inspect.screen import inspect_screen

COLUMNS, ROWS = 80, 20


def printed(screen: RenderableType, encoding: str) -> bytes:
    """What a stream of an encoding gets of a screen."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    open_console(stream).print(screen)
    stream.flush()
    return stream.buffer.getvalue()


def every_weight(report: Report) -> RenderableType:
    return diff_screen(as_diff(report), every=True)


def only_differences(report: Report) -> RenderableType:
    return diff_screen(as_diff(report))


def short(report: Report) -> RenderableType:
    return inspect_screen(report, words=f"{report.checkpoint.reference} --num-labels 3")


def detailed(report: Report) -> RenderableType:
    return inspect_screen(report, details=True)


SCREENS: dict[str, Callable[[Report], RenderableType]] = {
    "inspect": short,
    "inspect-details": detailed,
    "diff": only_differences,
    "diff-all": every_weight,
}
