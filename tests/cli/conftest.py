"""The commands, and use cases that answer from reports made by hand."""

from collections.abc import Iterator

import pytest

from tests.cli.command import Cli
from tests.cli.fake_api import FakeApi


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    answers = FakeApi()
    monkeypatch.setattr("headscope.slices.inspect.run.inspect", answers.inspect)
    monkeypatch.setattr("headscope.slices.inspect.weight_diff.diff_weights", answers.diff_weights)
    monkeypatch.setattr("headscope.slices.lookup.snapshots.snapshot", answers.snapshot)
    monkeypatch.delenv("COLUMNS", raising=False)
    yield answers
