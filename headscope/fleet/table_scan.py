"""A scan into a table, by worker processes of this machine or by the actors of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from headscope.errors import HeadscopeError
from headscope.facts.scan import ScanRow, Tally
from headscope.fleet.output import Known
from headscope.fleet.parquet import RowFolder
from headscope.fleet.plan import Plan
from headscope.fleet.table import SharedTable, Table, open_shared_table, open_table
from headscope.fleet.target import Target

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
class TableScan:
    """A scan into a table: each engine counts the rows of the table in `tally`.

    It returns how many rows it wrote, and how many checkpoints it skipped because the table holds them.
    """

    plan: Plan
    targets: Sequence[Target]
    tally: Tally
    resume: bool
    only_new: bool
    progress: Callable[[Progressed], None] | None

    @property
    def goes_on(self) -> bool:
        """Whether the table may hold rows already."""
        return self.resume or self.only_new

    def here(self, output: str | Path | None, write: Callable[[ScanRow], bool] | None) -> tuple[int, int]:
        """By worker processes of this machine."""
        written, undetermined = 0, 0
        opened = nullcontext() if output is None else open_table(output, go_on=self.goes_on, seen=self.tally.add)
        with opened as table:
            wanted = self._wanted(table)
            skipped = len(self.targets) - len(wanted)
            with closing(self.plan.rows(wanted)) as rows:
                for done, row in enumerate(rows, 1):
                    if table is not None and self.only_new and table.known.holds_commit(row.reference, row.commit):
                        skipped += 1
                    else:
                        self.tally.add(row.to_dict())
                        written += 1
                        if table is not None:
                            table.write(row)
                    if write is not None and not write(row):
                        break
                    undetermined += row.not_determined is not None
                    if self.progress is not None:
                        self.progress(Progressed(done, undetermined, len(wanted)))
        return written, skipped

    def on_ray(self, output: str | Path | None, workers: int | None) -> tuple[int, int]:
        """By the actors of a Ray cluster, which write the table themselves."""
        from headscope.fleet.ray_engine import Wanted, check_installed, write_with_ray

        check_installed()
        with open_shared_table(output, go_on=self.goes_on, seen=self.tally.add) as table:
            wanted = self._wanted(table)
            if wanted:
                known = table.known if self.only_new else Known()
                place = str(output) if "://" in str(output) else str(Path(str(output)).absolute())
                write_with_ray(
                    [Wanted(target, known.commits_of(target.reference)) for target in wanted],
                    self.plan.work,
                    workers,
                    self.plan.limits,
                    place,
                    self._watching(table, len(wanted)),
                )
            written = sum(self._counted(table))
        if written != len(wanted) and not self.only_new:
            raise HeadscopeError(f"{output} has {written:,} new rows of {len(wanted):,} checkpoints", _MISCOUNTED)
        return written, len(self.targets) - written

    def _wanted(self, table: Table | SharedTable | None) -> list[Target]:
        return [one for one in self.targets if not _is_known(one, table, resume=self.resume, only_new=self.only_new)]

    def _counted(self, table: SharedTable) -> Iterator[int]:
        """Counts the rows of what was added, and yields 1 for each."""
        for path in table.added():
            for row in table.rows_of(path):
                self.tally.add(row)
                yield 1

    def _watching(self, table: SharedTable, total: int) -> Callable[[], None] | None:
        """What shows how far the writers are; None where that can't be seen from here, or nobody looks."""
        progress = self.progress
        if progress is None or not isinstance(table, RowFolder):
            return None
        known: dict[Path, tuple[int, int]] = {}

        def watch() -> None:
            for path in table.added():
                if path not in known:
                    rows = list(table.rows_of(path))
                    known[path] = len(rows), sum(row["not_determined"] is not None for row in rows)
            done, undetermined = (sum(column) for column in zip((0, 0), *known.values(), strict=True))
            progress(Progressed(done, undetermined, total))

        return watch


def _is_known(target: Target, table: Table | SharedTable | None, *, resume: bool, only_new: bool) -> bool:
    if table is None:
        return False
    if resume and table.known.holds(target.reference):
        return True
    return only_new and table.known.holds_commit(target.reference, target.commit)
