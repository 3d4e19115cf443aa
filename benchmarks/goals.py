"""What a benchmark promises: one ratio against its limit, and the table that shows the measurement."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.timing import MIB, Sample


@dataclass(frozen=True, slots=True)
class Goal:
    """A measured ratio (None where it could not be measured) and the limit it must keep to.

    Without a limit it is shown and promises nothing.
    """

    what: str
    ratio: float | None
    limit: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the promise holds; what could not be measured is not met."""
        if self.limit is None:
            return True
        if self.ratio is None:
            return False
        return self.ratio >= self.limit if self.at_least else self.ratio <= self.limit

    def __str__(self) -> str:
        measured = "not measured" if self.ratio is None else f"{self.ratio:.2f}x"
        if self.limit is None:
            return f"{'':6}  {measured:>12}  {'(no goal)':<15}  {self.what}"
        bound = f"(at {'least' if self.at_least else 'most'} {self.limit:g}x)"
        return f"{'met' if self.met else 'MISSED':<6}  {measured:>12}  {bound:<15}  {self.what}"


def slowdown(sample: Sample, baseline: Sample) -> float | None:
    """How many times the baseline's median seconds `sample` takes."""
    return sample.median / baseline.median if sample.runs and baseline.runs else None


def memory_growth(sample: Sample, over: Sample) -> float:
    """Bytes of peak memory beyond the peak of `over`; at least one MiB, below which nothing is told apart."""
    return max(sample.peak - over.peak, MIB)


def print_results(title: str, samples: Sequence[Sample], goals: Sequence[Goal]) -> None:
    """One table: a line for each command, then a line for each goal."""
    width = max(len(sample.name) for sample in samples)
    print(f"{title}\n  {'command':<{width}}  {'median':>8}  {'min - max':>17}  {'peak memory':>11}")
    for sample in samples:
        print(f"  {sample.name:<{width}}  {_figures(sample)}")
    for goal in goals:
        print(f"  {goal}")
    print(flush=True)


def _figures(sample: Sample) -> str:
    if not sample.runs:
        return f"failed: {sample.failure}"
    span = f"{min(sample.seconds):.3f} - {max(sample.seconds):.3f} s"
    return f"{sample.median:>6.3f} s  {span:>17}  {sample.peak / MIB:>7.0f} MiB"
