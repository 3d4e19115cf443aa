"""A fixture for tests of models: `check_head(reference, profile="inference", ...)` fails with the findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headscope.api import Checked, ProfileName
    from headscope.facts import Profile


@pytest.fixture
def check_head() -> Callable[..., Checked]:
    """A function that runs the rules of `headscope check` and fails the test unless they pass; returns the result."""

    def ask(reference: Any, profile: Profile | ProfileName = "inference", **options: Any) -> Checked:
        __tracebackhide__ = True
        from headscope.api import check  # only a test that asks waits for torch
        from headscope.errors import HeadscopeError
        from headscope.facts.results.check import Verdict
        from headscope.facts.stored.states import error_line
        from headscope.render.screens.check import failure_sentence

        try:
            result = check(reference, profile, **options)
        except HeadscopeError as err:  # the frames of a missing model say nothing
            pytest.fail(f"headscope: {error_line(err)}", pytrace=False)
        if result.verdict is not Verdict.PASSED:
            pytest.fail(failure_sentence(result), pytrace=False)
        return result

    return ask
