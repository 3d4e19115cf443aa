"""The command line, and a checkpoint for servers and engines, saved once."""

import pytest
from serving.classifiers import saved

from tests.cli.command import Cli


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved("Bert", tmp_path_factory.mktemp("bert"))
