"""What doesn't run: a skip that nobody expects is red in CI; a share of the slow tests leaves the others out."""

import os
import subprocess
import sys
from argparse import ArgumentTypeError
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.conftest import pytest_collection_modifyitems, share_in, slow_tests, unexpected_skips

ROOT = Path(__file__).parents[2]
MODULE = "import pytest\n\ndef test_runs():\n    pass\n\ndef test_skips():\n    pytest.skip({reason!r})\n"


def run(folder: Path, content: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_checks.py").write_text(content)
    alone = {key: value for key, value in os.environ.items() if key not in {"CI", "PYTEST_ADDOPTS"}}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", *options, str(folder)],
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


@pytest.mark.parametrize("shares", [2, 3, 4])
def test_shares_have_every_test_and_all_have_first_cases(shares: int) -> None:
    whole, by_case = ([name for name, first in slow_tests().items() if first is kind] for kind in (False, True))
    cases = [f"{by_case[0]}::test_cases[{case}]" for case in range(60)]
    together = [f"{file}::test_{name}" for file in whole[:40] if "::" not in file for name in ("one", "two[0]")]
    names = [*cases, *together, "tests/quick.py::test_cases[0]", "tests/quick.py::test_cases[1]"]
    found = [kept(names, (share, shares)) for share in range(1, shares + 1)]
    always = [cases[0], *names[-2:]]
    assert all(set(always) <= set(each) for each in found)
    assert sorted(name for each in found for name in each) == sorted(names + always * (shares - 1))
    assert all(len(names) / shares / 2 < len(each) < len(names) / shares * 2 for each in found)
    for each in found:
        files = Counter(name.partition("::")[0] for name in each if name in together)
        assert set(files.values()) == {2}, "the tests of such a file are in one share"
    assert sorted(kept(names, None)) == sorted(names)


def kept(names: list[str], share: tuple[int, int] | None) -> list[str]:
    """The tests that run, of those with these names."""
    items: list[Any] = [Mock(nodeid=name, path=ROOT / name.partition("::")[0]) for name in names]
    for item in items:
        item.originalname = item.nodeid.partition("::")[2].partition("[")[0]
    config = Mock()
    config.getoption.return_value = share
    pytest_collection_modifyitems(config, items)
    return [item.nodeid for item in items]


def test_a_run_of_a_share_says_what_did_not_run(tmp_path: Path) -> None:
    content = MODULE.format(reason="no reason")
    assert "share 1 of 4: of the tests that tests/slow.txt names" in run(tmp_path, content, "--share", "1/4").stdout
    assert "share" not in run(tmp_path, content).stdout


@pytest.mark.parametrize("share", ["0/3", "4/3", "3", "a/b"])
def test_an_invalid_share_is_refused(share: str) -> None:
    with pytest.raises(ArgumentTypeError, match="expected K/N"):
        share_in(share)
