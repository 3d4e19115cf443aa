"""The rows of a scan, written into a table and handed on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from headscope.core.upstream.optional import ray
from headscope.errors import UsageError
from headscope.slices.fleet.facts import ScanRow, Tally
from headscope.slices.fleet.table import RowObserver, RowTable, check_table_name, leads_to_stream, open_table
from headscope.slices.fleet.target import Target

EXECUTORS = ("local", "ray")


@dataclass(frozen=True, slots=True)
class Progressed:
    """Progress of a scan: rows done, those of them without a verdict, and all (None if that isn't known)."""

    done: int
    undetermined: int
    total: int | None


@dataclass(frozen=True, slots=True)
class ScanOutput:
    """Output of a scan: where its rows go.

    `place` is a table, as for `open_table`, or None. `write` gets each row too, and ends the scan by returning False.
    """

    place: str | Path | None = None
    write: Callable[[ScanRow], bool] | None = None
    resume: bool = False
    only_new: bool = False
    progress: Callable[[Progressed], None] | None = None
    executor: str = "local"

    @property
    def goes_on(self) -> bool:
        """True if the table may hold rows already."""
        return self.resume or self.only_new

    def check(self) -> None:
        """Raises UsageError for what doesn't go together, and for a place that isn't a file of rows."""
        if self.executor not in EXECUTORS:
            raise UsageError(
                f"executor must be {' or '.join(EXECUTORS)}, not {self.executor!r}", "write executor='local'"
            )
        if self.place is not None:
            check_table_name(self.place)
        if self.executor == "ray":
            ray.imported()  # which raises where it is not installed
            if self.place is None:  # what Ray prints is kept off it
                raise UsageError("a scan on a Ray cluster writes no rows to stdout", "name a table with -o")
        if self.goes_on and self.place is None:
            raise UsageError("a table on stdout can't be continued", "name a file with -o")

    def try_to_open(self) -> None:
        """Opens the table and closes it again, unless that would end a pipe for its reader. Raises UsageError."""
        if self.place is not None and not leads_to_stream(Path(self.place)):
            with self.opened():
                pass

    def opened(self, seen: RowObserver | None = None) -> AbstractContextManager[RowTable | None]:
        """Opens the table that this process writes; `seen` is called with each row that it holds."""
        return nullcontext() if self.place is None else open_table(self.place, go_on=self.goes_on, seen=seen)


def write_rows(
    scanned: Callable[[Sequence[Target]], Generator[ScanRow]],
    targets: Sequence[Target],
    output: ScanOutput,
    tally: Tally,
) -> tuple[int, int]:
    """Writes the rows that `scanned` gives, and counts the rows of the table in `tally`.

    Returns how many rows it wrote, and how many checkpoints it skipped because the table holds them.
    """
    written, undetermined = 0, 0
    with output.opened(tally.add) as table:
        wanted = [*targets]
        if table is not None and output.resume:
            wanted = [one for one in wanted if not table.known.holds(one.reference)]
        if table is not None and output.only_new:
            wanted = [one for one in wanted if not table.known.holds_commit(one.reference, one.commit)]
        skipped = len(targets) - len(wanted)
        tell = output.progress or (lambda so_far: None)
        tell(Progressed(0, 0, len(wanted)))
        with closing(scanned(wanted)) as rows:
            for done, row in enumerate(rows, 1):
                # Only the row tells the commit of a target that its source named without one.
                if table is not None and output.only_new and table.known.holds_commit(row.reference, row.commit):
                    skipped += 1
                else:
                    tally.add(row.to_dict())
                    written += 1
                    if table is not None:
                        table.write(row)
                if output.write is not None and not output.write(row):
                    break
                undetermined += row.not_determined is not None
                tell(Progressed(done, undetermined, len(wanted)))
    return written, skipped
