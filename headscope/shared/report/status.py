"""The exit status that a report gives."""

from typing import TYPE_CHECKING

from headscope.errors import ExitCode

if TYPE_CHECKING:
    from headscope.core.facts import Report


def exit_status(report: "Report", *, fail_on_missing: bool) -> int:
    """3 where something could not be determined, 1 where weights in use are missing and `--exit-code` was given,
    otherwise 0.
    """
    from headscope.shared.report.verdict import is_missing_weights

    if report.not_determined:
        return ExitCode.UNDETERMINED
    missing = fail_on_missing and is_missing_weights(report)
    return ExitCode.FINDINGS if missing else ExitCode.OK
