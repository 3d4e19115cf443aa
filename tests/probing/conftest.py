"""Classifiers that several tests probe."""

from pathlib import Path

import pytest
from labeled.trained import save, trained
from probing import tiny
from probing.made import NAMES


@pytest.fixture(scope="session")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier that was trained for a while; no test changes it."""
    return save(trained(NAMES), tmp_path_factory.mktemp("trained") / "model", NAMES)


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A small BERT with random weights and its tokenizer."""
    return tiny.save(tmp_path / "bert", "bert")
