"""What all tests share: no cache, and `--update-golden`, which rewrites the golden files instead of comparing."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Rewrite golden files with what is made now.")


def pytest_configure(config: pytest.Config) -> None:
    """Every test examines anew; those of the cache itself switch it on."""
    os.environ["HEADSCOPE_NO_CACHE"] = "1"


@pytest.fixture
def same_as_golden(request: pytest.FixtureRequest) -> Callable[[Path, str], bool]:
    """Compares text with a golden file, or rewrites the file where that was asked for."""

    def compare(path: Path, text: str) -> bool:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return path.read_text(encoding="utf-8") == text

    return compare
