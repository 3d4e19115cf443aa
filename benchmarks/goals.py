"""What a benchmark promises: one ratio against its limit, and the tables that show the measurement."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.timing import MIB, WORK, Sample

Benchmark = Callable[[int], list["Goal"]]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A measured ratio, and between which values it lay in the single rounds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Goal:
    """A measured ratio (None where it could not be measured) and the limit it must keep to.

    Without a limit it is shown and promises nothing.
    """

    what: str
    ratio: Ratio | None
    limit: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the promise holds; what could not be measured is not met."""
        if self.limit is None:
            return True
        if self.ratio is None:
            return False
        return self.ratio.value >= self.limit if self.at_least else self.ratio.value <= self.limit

    @property
    def bound(self) -> str:
        """The limit in words."""
        return "none" if self.limit is None else f"at {'least' if self.at_least else 'most'} {self.limit:g}x"

    def __str__(self) -> str:
        verdict = "" if self.limit is None else "met" if self.met else "MISSED"
        if self.ratio is None:
            return f"{verdict:<6}  {self.bound:<14}  {'not measured':<22}  {self.what}"
        span = f"({self.ratio.low:.2f} - {self.ratio.high:.2f})"
        return f"{verdict:<6}  {self.bound:<14}  {self.ratio.value:>6.2f}x {span:<14}  {self.what}"


def exact(value: float) -> Ratio:
    """A ratio that was counted, or is the same in every round."""
    return Ratio(value, value, value)


def ratio_of_rounds(ratios: Sequence[float]) -> Ratio:
    """The median of the ratios of single rounds, with their span."""
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def slowdown(sample: Sample, baseline: Sample) -> Ratio | None:
    """How many times the baseline's median seconds `sample` takes; the span is that of the ratio round by round."""
    if not (sample.runs and baseline.runs):
        return None
    rounds = [ours / theirs for ours, theirs in zip(sample.seconds, baseline.seconds, strict=False)]
    return Ratio(sample.median / baseline.median, min(rounds), max(rounds))


def memory_growth(sample: Sample, ours: Sample, bare: Sample) -> Ratio | None:
    """How many times the memory of `ours` beyond the median peak of `bare` `sample` takes.

    A growth counts as one MiB at least, below which nothing is told apart.
    """
    if not (sample.runs and ours.runs and bare.runs):
        return None
    theirs = [max(run.peak - bare.peak, MIB) for run in sample.runs]
    mine = [max(run.peak - bare.peak, MIB) for run in ours.runs]
    return Ratio(statistics.median(theirs) / statistics.median(mine), min(theirs) / max(mine), max(theirs) / min(mine))


def print_results(title: str, samples: Sequence[Sample], goals: Sequence[Goal]) -> None:
    """One table of the commands, and one of the ratios between them."""
    width = max(len(sample.name) for sample in samples)
    header = f"{'median':>8}  {'min - max':>17}  {'processor':>9}  {'peak memory':>11}"
    print(f"{title}\n  {'command':<{width}}  {'runs':>4}  {header}")
    for sample in samples:
        print(f"  {sample.name:<{width}}  {len(sample.runs):>4}  {_figures(sample)}")
    print_goals(goals)


def print_goals(goals: Sequence[Goal]) -> None:
    """The ratios: met or missed, the goal, the measured ratio with the span of its rounds, and what it compares."""
    print(f"  {'':6}  {'goal':<14}  {'measured (min - max)':<22}  ratio")
    for goal in goals:
        print(f"  {goal}")
    print(flush=True)


def run(benchmarks: Sequence[tuple[Benchmark, int]]) -> int:
    """Runs benchmarks with their numbers of rounds; the table of all goals if they are several; the exit code."""
    WORK.mkdir(exist_ok=True)
    results = [benchmark(rounds) for benchmark, rounds in benchmarks]
    goals = [goal for result in results for goal in result]
    if len(results) > 1:
        print("All")
        print_goals(goals)
    promised = [goal for goal in goals if goal.limit is not None]
    missed = [goal for goal in promised if not goal.met]
    print(f"{len(promised) - len(missed)} of {len(promised)} goals met")
    return int(bool(missed))


def _figures(sample: Sample) -> str:
    if not sample.runs:
        return f"failed: {sample.failure}"
    span = f"{min(sample.seconds):.3f} - {max(sample.seconds):.3f} s"
    return f"{sample.median:>6.3f} s  {span:>17}  {sample.processor:>7.3f} s  {sample.peak / MIB:>7.0f} MiB"
