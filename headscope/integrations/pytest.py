"""Fixtures for tests of models: `check_head(reference, ...)` fails with the findings, `strict_loads` judges loads."""

from __future__ import annotations

from collections.abc import Iterator
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


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker of `strict_loads`."""
    config.addinivalue_line("markers", "headscope_allow(*names): parameters that may be new in a test of strict_loads")


@pytest.fixture
def strict_loads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test in which `from_pretrained` gives a head no weights; see `headscope.strict`."""
    from headscope.api import strict  # only a test that asks waits for it

    marker = request.node.get_closest_marker("headscope_allow")
    with strict(allow=marker.args if marker is not None else ()):
        yield
