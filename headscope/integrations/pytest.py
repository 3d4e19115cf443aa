"""A fixture for tests of models: `check_head(reference, profile="inference", ...)` fails with the findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Unpack, cast

import pytest

if TYPE_CHECKING:
    from os import PathLike

    from torch import nn

    from headscope.api import Checked, ProfileName
    from headscope.checks.options import CheckOptions
    from headscope.core.facts import Profile


class HeadChecker(Protocol):
    """Function that the fixture gives: it takes what `headscope.check` takes, with `inference` as the default."""

    def __call__(
        self,
        reference: str | PathLike[str] | nn.Module,
        profile: Profile | ProfileName = "inference",
        **options: Unpack[CheckOptions],
    ) -> Checked:
        """Returns the result; fails the test unless the rules pass."""


@pytest.fixture
def check_head() -> HeadChecker:
    """A function that runs the rules of `headscope check` and fails the test unless they pass; returns the result."""

    def ask(
        reference: str | PathLike[str] | nn.Module,
        profile: Profile | ProfileName = "inference",
        **options: Unpack[CheckOptions],
    ) -> Checked:
        __tracebackhide__ = True
        from headscope.api import check  # only a test that asks waits for torch
        from headscope.checks.screen import failure_sentence
        from headscope.core.facts.stored.states import error_line
        from headscope.core.facts.verdict import Verdict
        from headscope.errors import HeadscopeError

        try:
            result = check(cast("Any", reference), profile, **cast("Any", options))  # it tells the kinds apart
        except HeadscopeError as err:  # the frames of a missing model say nothing
            pytest.fail(f"headscope: {error_line(err)}", pytrace=False)
        if result.verdict is not Verdict.PASSED:
            pytest.fail(failure_sentence(result), pytrace=False)
        return result

    return ask
