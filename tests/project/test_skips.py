"""What doesn't run: a skip that nobody expects is red in CI; a sample leaves cases of sweeps out."""

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests import selection
from tests.conftest import unexpected_skips
from tests.selection import select

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


def test_what_may_be_missing_is_listed_where_it_is_looked_for() -> None:
    """A program or package that is there where the tests are written would hide its skip until CI lacks it.

    A fixture skips the tests of its folder. Reasons that are put together at run time are not looked at.
    """
    nodes = [
        (path, node)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ]
    found = [
        (f"{path.parent.relative_to(ROOT)}/" if path.name == "conftest.py" else str(path.relative_to(ROOT)), reason)
        for path, node in nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"pytest.skip", "pytest.mark.skipif"}
        for reason in [*node.args, *(word.value for word in node.keywords if word.arg == "reason")]
        if isinstance(reason, ast.Constant) and re.search("(is|are) not installed$", str(reason.value))
    ]
    packages = [
        (str(path.relative_to(ROOT)), f"could not import {name.value!r}: No module named")
        for path, node in nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.importorskip" and not node.keywords
        for name in node.args
        if isinstance(name, ast.Constant) and find_spec(str(name.value).partition(".")[0]) is None
    ]
    assert len(found) > 5
    assert unexpected_skips([(name, str(reason.value)) for name, reason in found] + packages) == []


def drawn(seed: str, items: list[Any]) -> list[str]:
    """The tests that run, of those with these names."""
    kept = list(items)
    gone = select(kept, seed)
    assert {*map(id, kept)}.isdisjoint(map(id, gone))
    assert len(kept) + len(gone) == len(items)
    return [item.nodeid for item in kept]


def cases_of(name: str, count: int, mark: str = "") -> list[Any]:
    """Items of a test with as many cases, all with a mark."""
    file, _, function = name.partition("::")
    path, nodes = ROOT / file, [f"{name}[{case}]" for case in range(count)]
    given = {"path": path, "originalname": function, "get_closest_marker": lambda name: name == mark}
    return [Mock(nodeid=node, user_properties=[], **given) for node in nodes]


@pytest.fixture
def times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep of 100 cases, a test of one, and tests that share something expensive."""
    path = tmp_path / "times.txt"
    lines = (
        "# seconds",
        "tests/a.py::test_sweep 60.0 0.2 100",
        "tests/b.py::test_one 90.0 90.0 1",
        "tests/c.py 8.0 0.0 0",
    )
    path.write_text("\n".join(lines))
    monkeypatch.setattr(selection, "TIMES", path)
    return path


def test_a_sample_has_every_test_and_the_same_cases_for_the_same_seed(times: Path) -> None:
    sweep, one = cases_of("tests/a.py::test_sweep", 100), cases_of("tests/b.py::test_one", 1)
    others = cases_of("tests/c.py::test_shared", 9) + cases_of("tests/d.py::test_quick", 50)
    items = sweep + one + others + cases_of("tests/a.py::test_of_all", 1, "whole")
    found = {seed: drawn(seed, items) for seed in ("one", "two", "")}
    assert found["one"] == drawn("one", items) != found["two"]
    assert sorted(found[""]) == sorted(item.nodeid for item in items)
    for seed in ("one", "two"):
        counts = Counter(name.partition("[")[0] for name in found[seed])
        assert counts == {"tests/a.py::test_sweep": 5, "tests/b.py::test_one": 1,
                          "tests/c.py::test_shared": 9, "tests/d.py::test_quick": 50}  # fmt: skip
        assert found[seed][0].startswith("tests/b.py"), "the longest file first"


def test_the_quick_tests_are_first_cases_and_those_that_take_little(times: Path) -> None:
    sweep, one = cases_of("tests/a.py::test_sweep", 3), cases_of("tests/b.py::test_one", 1)
    shared, quick = cases_of("tests/c.py::test_shared", 1), cases_of("tests/d.py::test_quick", 1)
    whole = cases_of("tests/a.py::test_of_all", 1, "whole")
    drawn("", [*sweep, *one, *shared, *quick, *whole])
    slow = [item.nodeid for item in (*sweep, *one, *shared, *quick, *whole) if item.add_marker.called]
    assert slow == ["tests/a.py::test_sweep[1]", "tests/a.py::test_sweep[2]", "tests/b.py::test_one[0]",
                    "tests/c.py::test_shared[0]", "tests/a.py::test_of_all[0]"]  # fmt: skip


def test_times_are_written_from_what_ran(times: Path) -> None:
    stopwatch = selection.Stopwatch()

    def reported(name: str, seconds: float, cases: int, shared: float = 0) -> None:
        noted = [("of", name.partition("[")[0]), ("cases", cases), ("shared", shared)]
        stopwatch.pytest_runtest_logreport(Mock(nodeid=name, duration=seconds, user_properties=noted))

    reported("tests/a.py::test_sweep[7]", 1.5, 100)
    reported("tests/a.py::test_sweep[9]", 0.5, 100)
    reported("tests/c.py::test_shared", 0.1, 1, shared=0.02)
    reported("tests/e.py::test_new", 3, 1, shared=2.9)
    reported("tests/e.py::test_beside", 0.2, 1)
    stopwatch.write_times()
    assert [line for line in times.read_text().splitlines() if not line.startswith("#")] == [
        "tests/a.py::test_sweep 100.0 1.5 100", "tests/b.py::test_one 90.0 90.0 1",
        "tests/e.py 3.2 0.0 0", "tests/e.py::test_new 3.0 3.0 1",
    ]  # fmt: skip


def test_a_run_with_a_sample_says_how_it_is_drawn_again(tmp_path: Path) -> None:
    content = MODULE.format(reason="no reason")
    assert "`--sample 1a2b3c` draws the same" in run(tmp_path, content, "--sample", "1a2b3c").stdout
    assert "--sample" not in run(tmp_path, content).stdout
