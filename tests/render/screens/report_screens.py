"""The screens of a report, short and whole."""

from collections.abc import Callable
from dataclasses import replace

from rich.console import RenderableType

from headscope.facts import Report
from headscope.slices.inspect.diff_screen import diff_screen
from headscope.slices.inspect.screen import inspect_screen

COLUMNS, ROWS = 80, 20


def every_weight(report: Report) -> RenderableType:
    return diff_screen(as_diff(report), every=True)


def only_differences(report: Report) -> RenderableType:
    return diff_screen(as_diff(report))


def as_diff(report: Report) -> Report:
    return replace(report, command="diff-weights", head=None)


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
