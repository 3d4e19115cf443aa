"""Commands that a minor version may change are those whose documents it may change."""

import inspect
import sys

import pytest

import headscope
from headscope.cli.app import _COMMANDS, EXPERIMENTAL, main


@pytest.mark.parametrize("name", [name for name in _COMMANDS if hasattr(headscope, name.replace("-", "_"))])
def test_a_command_is_as_stable_as_its_result(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    function = getattr(headscope, name.replace("-", "_"))
    result = getattr(headscope, str(inspect.signature(function).return_annotation), None)
    modules = [sys.modules[base.__module__] for base in getattr(result, "__mro__", ())]
    expected = any(getattr(module, "STABILITY", "") == "experimental" for module in modules)
    assert _COMMANDS[name].is_experimental is expected
    main([name, "--help"])
    assert (EXPERIMENTAL in capsys.readouterr().out) is expected
