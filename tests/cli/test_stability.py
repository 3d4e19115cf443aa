"""Commands that a minor version may change are those whose documents it may change."""

import inspect
import sys
from typing import Any

import pytest

import headscope
from headscope.commands import COMMANDS, EXPERIMENTAL
from headscope.errors import DeprecatedName, warn_deprecated
from headscope.slices.lookup import class_topics
from tests.cli.command import Cli


@pytest.mark.parametrize("name", [name for name in COMMANDS if hasattr(headscope, name.replace("-", "_"))])
def test_a_command_is_as_stable_as_its_result(name: str, cli: Cli) -> None:
    function = getattr(headscope, name.replace("-", "_"))
    result = getattr(headscope, str(inspect.signature(function).return_annotation), None)
    modules = [sys.modules[base.__module__] for base in getattr(result, "__mro__", ())]
    expected = any(getattr(module, "STABILITY", "") == "experimental" for module in modules)
    assert COMMANDS[name].is_experimental is expected
    assert (EXPERIMENTAL in cli(name, "--help").out) is expected


def test_a_deprecated_name_warns_in_python_at_the_line_of_the_caller() -> None:
    def renamed() -> int:
        warn_deprecated("renamed", "of_today", "9.0")
        return 3

    with pytest.warns(DeprecatedName, match="will be removed in headscope 9.0: use of_today") as caught:
        assert renamed() == 3
    assert caught[0].filename == __file__


def test_a_deprecated_name_is_one_line_on_the_command_line(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    """Stdout and the exit code are those of the command."""
    expected = cli("explain", "logits", "--json")
    of_today = class_topics.find_topics

    def renamed(*words: Any) -> Any:
        warn_deprecated("--old", "--new", "9.0")
        return of_today(*words)

    monkeypatch.setattr(class_topics, "find_topics", renamed)
    found = cli("explain", "logits", "--json")
    assert found.out == expected.out
    assert found.err == "warning: --old is deprecated and will be removed in headscope 9.0: use --new\n"
