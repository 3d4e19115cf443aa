"""What a callback says of a check that passed: one line, unless nobody wants to hear of warnings either."""

import logging

import pytest

from headscope.facts.results.check import Verdict
from headscope.integrations.gate import TrainingGate

TEXT = "headscope: roberta: Passed for training: 3 notes\nnote HS102: all is new"


@pytest.mark.parametrize(("wanted", "lines"), [(logging.WARNING, 1), (logging.ERROR, 0), (logging.INFO, 0)])
def test_a_passed_check_is_one_line(
    wanted: int, lines: int, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(wanted, logger="headscope"):
        TrainingGate()._react(Verdict.PASSED, TEXT)
    assert capsys.readouterr().err.splitlines() == [TEXT.splitlines()[0]] * lines
    assert ("note HS102" in caplog.text) is (wanted == logging.INFO)
