"""The commands on use cases that answer from reports made by hand."""

from collections.abc import Iterator

import pytest

from headscope import api
from tests.cli.fake_api import FakeApi


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    answers = FakeApi()
    for name in ("inspect", "diff_weights", "snapshot"):
        monkeypatch.setattr(api, name, getattr(answers, name))
    monkeypatch.delenv("COLUMNS", raising=False)
    yield answers
