"""Which tests run: `make test` leaves out what takes long, and `--sample` draws cases of the sweeps by a seed.

`times.txt` has what took long: `--update-times` writes it, from the tests that ran. A line names a test or, where tests
share something expensive, their file, with the seconds of all cases, those of the first, and the number of cases.
"""

import random
import time
from collections import defaultdict
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TIMES = Path(__file__).with_name("times.txt")

LONG = 0.25
"""Seconds of all cases from which on `make test` leaves out a test, or all but its first case."""

SWEEP = 3.0
"""Seconds that the cases drawn of one test take together."""


@dataclass(frozen=True)
class Cost:
    """What a test took, with all of its cases, or all tests of a file."""

    seconds: float
    first: float
    """Seconds of its first case."""
    cases: int
    """How many cases; 0 for a file, whose tests are listed too if they take long themselves."""

    def drawn_of(self, cases: int) -> int:
        """How many of the cases that there are now a sample has."""
        return cases if self.seconds <= SWEEP else max(1, int(cases * SWEEP / self.seconds))


_QUICK = Cost(0, 0, 0)


def read_times() -> dict[str, Cost]:
    """Reads `times.txt`: files and tests by their names."""
    lines = TIMES.read_text(encoding="utf-8").splitlines()
    parts = (line.split() for line in lines if line and not line.startswith("#"))
    return {name: Cost(float(seconds), float(first), int(cases)) for name, seconds, first, cases in parts}


def select(items: list[pytest.Item], seed: str) -> list[pytest.Item]:
    """Marks what is slow, leaves in `items` what runs, the longest files first, and gives what doesn't run.

    An empty seed draws nothing: all cases run, and so do tests marked `whole`, which count over all cases. The longest
    come first so that the last worker doesn't end long after the others.
    """
    times = read_times()
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        tests[_test_of(item)].append(item)
    left_out: set[pytest.Item] = set()
    for name, cases in tests.items():
        for item in cases:
            item.user_properties += [("of", name), ("cases", len(cases))]
        cost = times.get(name, _QUICK)
        shares_much = _file_of(cases[0]) in times
        for at, item in enumerate(cases):
            is_long = (cost.first if at == 0 else cost.seconds) > LONG
            if shares_much or is_long or item.get_closest_marker("whole"):
                item.add_marker("slow")
        if seed:
            drawn = random.Random(f"{seed} {name}").sample(cases, min(len(cases), cost.drawn_of(len(cases))))
            left_out.update(set(cases).difference(drawn))
            left_out.update(item for item in cases if item.get_closest_marker("whole"))
    seconds: dict[str, float] = defaultdict(float)
    for name, cost in times.items():
        if cost.cases:  # the line of a file counts its tests again
            seconds[name.partition("::")[0]] += cost.seconds
    kept = (item for item in items if item not in left_out)
    items[:] = sorted(kept, key=lambda item: -seconds[_file_of(item)])
    return list(left_out)


def _file_of(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT).as_posix() if item.path.is_relative_to(ROOT) else str(item.path)


def _test_of(item: pytest.Item) -> str:
    return f"{_file_of(item)}::{getattr(item, 'originalname', item.name)}"


@dataclass
class _Ran:
    """The cases of a test that ran."""

    cases: int
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of each case, in the order in which they ran."""
    shared: float = 0.0
    """Seconds of the longest fixture that other tests use too."""


class Stopwatch:
    """Measures what each test takes, and what the fixtures take that outlive a test."""

    def __init__(self) -> None:
        self._item: pytest.Item | None = None
        self._ran: dict[str, _Ran] = {}

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """The test that fixtures are made for from now on."""
        self._item = item

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: "pytest.FixtureDef[object]") -> Generator[None, object, object]:
        """Notes at the test what a fixture took that other tests use too."""
        begin = time.monotonic()
        made = yield
        if self._item is not None and fixturedef.scope != "function":
            self._item.user_properties.append(("shared", time.monotonic() - begin))
        return made

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds up the phases of a test, wherever it ran."""
        noted = dict(report.user_properties)
        ran = self._ran.setdefault(str(noted["of"]), _Ran(int(str(noted["cases"]))))
        ran.seconds[report.nodeid] += report.duration
        ran.shared = max(ran.shared, float(str(noted.get("shared", 0))))

    def write_times(self) -> None:
        """Writes `times.txt` anew for what ran; the lines of other tests stay."""
        files = {name.partition("::")[0] for name, ran in self._ran.items() if ran.shared > LONG}
        found = {name: cost for name, cost in read_times().items() if _is_of_none(name, self._ran)}
        for name, ran in self._ran.items():
            file = name.partition("::")[0]
            first, *_ = ran.seconds.values()
            seconds = sum(ran.seconds.values()) * ran.cases / len(ran.seconds)
            if file in files:
                found[file] = Cost(found.get(file, _QUICK).seconds + seconds, 0, 0)
            if seconds > LONG:
                found[name] = Cost(seconds, first, ran.cases)
        written = (f"{name} {cost.seconds:.1f} {cost.first:.1f} {cost.cases}" for name, cost in sorted(found.items()))
        TIMES.write_text("\n".join((_HEADING, *written, "")), encoding="utf-8")


def _is_of_none(name: str, ran: Iterable[str]) -> bool:
    """True if no test of a line ran."""
    return not any(each == name or each.startswith(f"{name}::") for each in ran)


_HEADING = """\
# Written by `make times`, from what each test took: tests that take longer than `make test` waits for, and files whose
# tests share something expensive. After a name: seconds of all cases, of the first, and the number of cases."""
