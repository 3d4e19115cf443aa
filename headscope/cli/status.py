"""The exit status of a command that showed a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headscope.errors import ExitCode

if TYPE_CHECKING:
    from headscope.facts import Report


def exit_status(report: Report, *, fail_on_missing: bool) -> int:
    """3 where something could not be determined, 1 where weights in use are missing and that was asked for, else 0."""
    from headscope import render

    if report.not_determined:
        return ExitCode.UNDETERMINED
    missing = fail_on_missing and render.is_missing_weights(report)
    return ExitCode.FINDINGS if missing else ExitCode.OK
