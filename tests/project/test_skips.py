"""A skip that nobody expects fails the run where CI is set, and only there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import unexpected_skips

ROOT = Path(__file__).parents[2]
MODULE = "import pytest\n\ndef test_runs():\n    pass\n\ndef test_skips():\n    pytest.skip({reason!r})\n"


def run(folder: Path, content: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_checks.py").write_text(content)
    alone = {key: value for key, value in os.environ.items() if key not in {"CI", "PYTEST_ADDOPTS"}}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", str(folder)],
        cwd=ROOT, env=alone | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_an_unexpected_skip_is_red_in_ci(tmp_path: Path) -> None:
    skipping = MODULE.format(reason="the moon is full")
    sentence = run(tmp_path, skipping, CI="true")
    assert sentence.returncode == 1
    assert "test_skips: the moon is full" in sentence.stdout
    assert run(tmp_path, skipping).returncode == 0


def test_a_module_that_is_skipped_is_red_too(tmp_path: Path) -> None:
    content = "import pytest\n\npytest.importorskip('a_package_that_is_gone')\n"
    sentence = run(tmp_path, content + "\n\ndef test_runs():\n    pass\n", CI="true")
    assert "a_package_that_is_gone" in sentence.stdout
    assert sentence.returncode != 0


@pytest.mark.parametrize(
    ("name", "reason", "is_expected"),
    [
        ("tests/docs/test_docs.py::test_one", "jq is not installed", True),
        ("tests/docs/test_docs.py::test_one", "jq is not installed, nor anything else", False),
        ("tests/api/test_cache.py::test_one", "jq is not installed", False),
        ("tests/model/loading/test_adapters_against_peft.py", "could not import 'peft': No module named 'peft'", False),
    ],
)
def test_a_line_names_both_the_test_and_the_reason(name: str, reason: str, is_expected: bool) -> None:
    assert unexpected_skips([(name, reason)]) == ([] if is_expected else [(name, reason)])
