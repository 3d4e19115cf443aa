"""What all tests share: no cache, `--update-golden`, which rewrites the golden files, and skips that CI expects."""

import gc
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import warm
from tests.selection import Stopwatch, select
from tests.warm.server import PAUSE, hurry


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Rewrite golden files with what is made now.")
    parser.addoption(
        "--sample", default="", metavar="SEED",
        help="Of each test whose cases take long together, run only cases drawn by this text.",
    )  # fmt: skip
    parser.addoption("--update-times", action="store_true", help="Write tests/times.txt from what the tests take.")


def pytest_configure(config: pytest.Config) -> None:
    """Every test examines anew, but for those of the cache itself, and of what `remembered` is for."""
    os.environ["HEADSCOPE_NO_CACHE"] = "1"
    os.environ["HEADSCOPE_NO_RUN"] = "1"  # a run starts a process that imports PyTorch; tests of runs ask for it
    os.environ["HEADSCOPE_NO_PROGRESS"] = "1"  # no line on stderr, however slow the machine; tests of it ask
    for name in ("AI_AGENT", "AGENT"):
        os.environ.pop(name, None)
    os.environ.setdefault(PAUSE, "0.02")
    hurry()
    warm.warm_children()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # each worker is a core's: more threads cost a third of its time
    config.addinivalue_line("markers", "slow: left out by `make test`; see tests/times.txt")
    config.addinivalue_line("markers", "whole: counts over all cases of other tests, so it runs with all of them")
    config.stash[_SKIPPED] = []
    config.pluginmanager.register(_Skips(config), "headscope-skips")
    if config.getoption("--update-times"):
        config.pluginmanager.register(Stopwatch(), "headscope-times")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what `make test` leaves out, draws the sample, and puts the longest files first."""
    config.hook.pytest_deselected(items=select(items, config.getoption("--sample")))


def pytest_collection_finish() -> None:
    """Looks for cycles less often, and never among the imported modules: that took a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 10)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How the same cases are drawn again; the times, if they were measured."""
    seed = config.getoption("--sample")
    if seed:
        terminalreporter.line(f"cases of sweeps were drawn: `--sample {seed}` draws the same, `make sweeps` runs all")
    measured = config.pluginmanager.get_plugin("headscope-times")
    if measured:
        measured.write_times()


_SKIPPED = pytest.StashKey[list[tuple[str, str]]]()
_EXPECTED = Path(__file__).with_name("expected_skips.txt")


class _Skips:
    """With CI set, a skip that `expected_skips.txt` does not name fails the run: a test that vanishes is red."""

    def __init__(self, config: pytest.Config) -> None:
        self._found = config.stash[_SKIPPED]
        self._is_asked = bool(os.environ.get("CI")) and not hasattr(config, "workerinput")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A skipped test."""
        if report.skipped and not hasattr(report, "wasxfail"):
            self._found.append((report.nodeid, _reason(report)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A skipped module."""
        if report.skipped:
            self._found.append((report.nodeid, _reason(report)))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """The exit code."""
        if self._is_asked and unexpected_skips(self._found) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The list."""
        found = unexpected_skips(self._found) if self._is_asked else []
        if found:
            terminalreporter.section("skips that are not in tests/expected_skips.txt", red=True)
            for name, reason in found:
                terminalreporter.line(f"{name}: {reason}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def unexpected_skips(skipped: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs of test and reason that no line of `expected_skips.txt` allows.

    With HEADSCOPE_LIBRARIES set, as by `make test-libraries`, the packages of its first part are no excuse; with
    `older`, as for the second run there, the value heads are none either.
    """
    lines = _EXPECTED.read_text(encoding="utf-8").splitlines()
    parts = {"": "# packages", "older": "# programs"}
    begins = parts.get(os.environ.get("HEADSCOPE_LIBRARIES", ""), "# value heads")
    lines = lines[next(at for at, line in enumerate(lines) if line.startswith(begins)) :]
    allowed = [line.partition(" | ")[::2] for line in lines if line and not line.startswith("#")]
    return [
        (name, reason)
        for name, reason in skipped
        if not any(part in name and re.fullmatch(pattern, reason, re.DOTALL) for part, pattern in allowed)
    ]


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Within a module, headscope remembers the structures that it has traced, as it does for users.

    For tests whose values, settings or words differ, and whose structures are the same.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HEADSCOPE_NO_CACHE")
        patch.setenv("HEADSCOPE_CACHE", str(tmp_path_factory.mktemp("remembered")))
        yield


@pytest.fixture
def cold_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that headscope itself starts import everything again; else they are forks of a warm one."""
    monkeypatch.setenv(warm.COLD, "1")


@pytest.fixture
def runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of `check` are in this process: each of their own imports PyTorch again."""
    from headscope.checks.trial_process import TrialProcess
    from headscope.shared.trial import opening

    monkeypatch.setattr(TrialProcess, "begin", lambda self: None)
    monkeypatch.setattr(
        TrialProcess, "_run_in_worker", lambda self, checkpoint: opening.run_checkpoint(checkpoint.request, "cpu")
    )


@pytest.fixture
def same_as_golden(request: pytest.FixtureRequest) -> Callable[[Path, str], bool]:
    """Compares text with a golden file, or rewrites the file where that was asked for."""

    def compare(path: Path, text: str) -> bool:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return path.read_text(encoding="utf-8") == text

    return compare


@pytest.fixture
def no_shipped_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is known without a trace: for tests of what a trace keeps."""
    from headscope.core.source.storage import shipped

    monkeypatch.setattr(shipped, "PLACE", tmp_path / "no facts")
    shipped.shipped.cache_clear()
    yield
    shipped.shipped.cache_clear()
