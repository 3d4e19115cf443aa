"""A scan into a table, by worker processes of this machine or by the actors of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from headscope.errors import HeadscopeError, UsageError
from headscope.facts.results.scan import ScanRow, Tally
from headscope.fleet.output import Known, RowObserver
from headscope.fleet.parquet import RowFolder, rows_of_part
from headscope.fleet.plan import ScanPlan
from headscope.fleet.table import RowTable, SharedTable, is_stream, open_shared_table, open_table
from headscope.fleet.target import Target

EXECUTORS = ("local", "ray")
_MISCOUNTED = (
    "name a folder that every node can write; where there are too many rows, keep the last one of each reference"
)


@dataclass(frozen=True, slots=True)
class Progressed:
    """How far a scan is: rows done, those of them without a verdict, and all (None where that isn't known)."""

    done: int
    undetermined: int
    total: int | None


@dataclass(frozen=True, slots=True)
class ScanOutput:
    """Where the rows of a scan go.

    `place` is a table, as for `open_table`, or None. `write` gets each row too, and ends the scan by returning False.
    The executor `ray` writes to a folder that all nodes share, or to a URL, and calls no `write`.
    """

    place: str | Path | None = None
    write: Callable[[ScanRow], bool] | None = None
    resume: bool = False
    only_new: bool = False
    progress: Callable[[Progressed], None] | None = None
    executor: str = "local"

    @property
    def goes_on(self) -> bool:
        """Whether the table may hold rows already."""
        return self.resume or self.only_new

    def check(self) -> None:
        """Raises UsageError for what doesn't go together."""
        if self.executor not in EXECUTORS:
            raise UsageError(
                f"executor must be {' or '.join(EXECUTORS)}, not {self.executor!r}", "write executor='local'"
            )
        if self.goes_on and self.place is None:
            raise UsageError("a table on stdout can't be continued", "name a file with -o")

    def try_to_open(self) -> None:
        """Opens the table and closes it again, unless that would end a pipe for its reader. Raises UsageError."""
        if self.place is not None and not is_stream(self.place):
            with open_shared_table(self.place, go_on=self.goes_on) if self.executor == "ray" else self.opened():
                pass

    def opened(self, seen: RowObserver | None = None) -> AbstractContextManager[RowTable | None]:
        """The table that this process writes; `seen` is called with each row that it holds."""
        return nullcontext() if self.place is None else open_table(self.place, go_on=self.goes_on, seen=seen)


@dataclass(frozen=True, slots=True)
class TableScan:
    """A scan into a table: each executor counts the rows of the table in `tally`.

    It returns how many rows it wrote, and how many checkpoints it skipped because the table holds them.
    """

    plan: ScanPlan
    targets: Sequence[Target]
    output: ScanOutput
    tally: Tally

    def here(self) -> tuple[int, int]:
        """By worker processes of this machine."""
        written, undetermined, output = 0, 0, self.output
        with output.opened(self.tally.add) as table:
            wanted = self._wanted(table)
            skipped = len(self.targets) - len(wanted)
            tell = output.progress or (lambda so_far: None)
            tell(Progressed(0, 0, len(wanted)))
            with closing(self.plan.rows(wanted)) as rows:
                for done, row in enumerate(rows, 1):
                    if table is not None and output.only_new and table.known.holds_commit(row.reference, row.commit):
                        skipped += 1
                    else:
                        self.tally.add(row.to_dict())
                        written += 1
                        if table is not None:
                            table.write(row)
                    if output.write is not None and not output.write(row):
                        break
                    undetermined += row.not_determined is not None
                    tell(Progressed(done, undetermined, len(wanted)))
        return written, skipped

    def on_ray(self, workers: int | None) -> tuple[int, int]:
        """By the actors of a Ray cluster, which write the table themselves.

        Raises HeadscopeError if rows are missing at the end.
        """
        from headscope.fleet.ray_engine import Assignment, require_ray, write_with_ray

        require_ray()
        place = self.output.place
        with open_shared_table(place, go_on=self.output.goes_on, seen=self.tally.add) as table:
            wanted = self._wanted(table)
            if wanted:
                known = table.known if self.output.only_new else Known()
                write_with_ray(
                    [Assignment(target, known.commits_of(target.reference)) for target in wanted],
                    self.plan.work,
                    workers,
                    self.plan.limits,
                    str(place) if "://" in str(place) else str(Path(str(place)).absolute()),
                    self._watching(table, len(wanted)),
                )
            written = sum(self._counted(table))
        if written != len(wanted) and not self.output.only_new:
            raise HeadscopeError(f"{place} has {written:,} new rows of {len(wanted):,} checkpoints", _MISCOUNTED)
        return written, len(self.targets) - written

    def _wanted(self, table: RowTable | SharedTable | None) -> list[Target]:
        return list(self.targets) if table is None else [one for one in self.targets if not self._is_in(table, one)]

    def _is_in(self, table: RowTable | SharedTable, target: Target) -> bool:
        if self.output.resume and table.known.holds(target.reference):
            return True
        return self.output.only_new and table.known.holds_commit(target.reference, target.commit)

    def _counted(self, table: SharedTable) -> Iterator[int]:
        """Counts the rows of what was added, and yields 1 for each."""
        for row in table.rows_added():
            self.tally.add(row)
            yield 1

    def _watching(self, table: SharedTable, total: int) -> Callable[[], None] | None:
        """What shows how far the writers are; None where that can't be seen from here, or nobody looks."""
        progress = self.output.progress
        if progress is None or not isinstance(table, RowFolder):
            return None
        known: dict[Path, tuple[int, int]] = {}

        def watch() -> None:
            for path in table.added():
                if path not in known:
                    rows = list(rows_of_part(path, path))
                    known[path] = len(rows), sum(row["not_determined"] is not None for row in rows)
            done, undetermined = (sum(column) for column in zip((0, 0), *known.values(), strict=True))
            progress(Progressed(done, undetermined, total))

        return watch
