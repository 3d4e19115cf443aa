"""The result of `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headscope.checks.facts import CheckResult
from headscope.shared.report.examination import findings_frame
from headscope.shell.shown import Shown

if TYPE_CHECKING:
    import pandas


class Checked(Shown, CheckResult):
    """The result of `check`."""

    __slots__ = ()

    def to_pandas(self) -> pandas.DataFrame:
        """The findings, one per row; needs pandas. An empty table is not a verdict: see `verdict`."""

        return findings_frame(self.findings)
