"""What the tests of the API share: a cache of the test's own, a small classifier on disk, what a command writes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.families import FAMILIES


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which headscope remembers what this test examines, as it does for users."""
    monkeypatch.delenv("HEADSCOPE_NO_CACHE")
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def place(own_cache: Path, tmp_path: Path) -> Path:
    """Where a test writes a checkpoint that headscope may remember."""
    return tmp_path / "model"


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """A BERT of three classes."""
    FAMILIES["bert"].build("BertForSequenceClassification", num_labels=3).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command writes, which has to end with this exit code."""
    from headscope.shell import main

    def run(*arguments: object, code: int = 0) -> str:
        assert main(list(map(str, arguments))) == code
        return capsys.readouterr().out

    return run
