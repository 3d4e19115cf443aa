"""`headscope scan MODEL... -o OUT`."""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headscope.cli.check import Rules, exit_code_of, rule_names
from headscope.cli.options import CacheDir, NumLabels, Offline, Quiet, Revision, TaskName, Timeout, Token
from headscope.cli.output import print_screen, write_stderr, write_stdout
from headscope.cli.progress import is_watched

if TYPE_CHECKING:
    from headscope.api.scanning import Progressed
    from headscope.facts.scan import ScanRow, ScanSummary

_SOURCES = "What to scan"
_TABLE = "The table"
_WORK = "Workers"

Models = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MODEL]...", help="Checkpoints, each as for inspect.", show_default=False),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="FILE", help="A text file with one model a line; - is stdin.", rich_help_panel=_SOURCES
    ),
]
Folder = Annotated[
    list[str] | None,
    typer.Option("--folder", metavar="DIR", help="Every checkpoint and snapshot below DIR.", rich_help_panel=_SOURCES),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="OUT",
        help="Append each row to OUT; else stdout.",
        rich_help_panel=_TABLE,
    ),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on with OUT: skip the models that it holds.", rich_help_panel=_TABLE),
]
OnlyNew = Annotated[
    bool,
    typer.Option("--only-new", help="Go on with OUT: skip the commits that it holds.", rich_help_panel=_TABLE),
]
Workers = Annotated[
    int | None, typer.Option("--workers", metavar="N", min=1, help="Processes; else two a core.", rich_help_panel=_WORK)
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit", metavar="SECONDS", help="For one checkpoint, in all; else 300.", rich_help_panel=_WORK
    ),
]
MemoryLimit = Annotated[
    float | None,
    typer.Option(
        "--memory-limit", metavar="GIB", help="For one checkpoint, beside the libraries; else 8.", rich_help_panel=_WORK
    ),
]


@dataclass(frozen=True)
class Sources:
    """Which checkpoints are scanned."""

    models: Models = None
    listed: From = None
    folder: Folder = None


@dataclass(frozen=True)
class Hub:
    """How the checkpoints are read."""

    num_labels: NumLabels = None
    task: TaskName = None
    revision: Revision = None
    cache_dir: CacheDir = None
    token: Token = None
    offline: Offline = False
    timeout: Timeout = None


@dataclass(frozen=True)
class Table:
    """Where the rows go."""

    output: Out = None
    resume: Resume = False
    only_new: OnlyNew = False
    quiet: Quiet = False


@dataclass(frozen=True)
class Work:
    """How many processes, and what one checkpoint may take."""

    workers: Workers = None
    time_limit: TimeLimit = None
    memory_limit: MemoryLimit = None


def scan(sources: Sources, hub: Hub, rules: Rules, table: Table, work: Work) -> int:
    """Examine many checkpoints, one row each: JSON lines that pandas and DuckDB open."""
    gc.enable()  # unlike the other commands, this one runs for hours
    from headscope.api.scanning import run_scan

    output = None if table.output in (None, Path("-")) else table.output
    given = vars(hub) | {name: value for name, value in vars(work).items() if value is not None}
    with _progress(table.quiet) as done:
        found = run_scan(
            sources.models or (),
            listed=sources.listed,
            folders=sources.folder or (),
            output=output,
            write=None if output else _write_row,
            resume=table.resume,
            only_new=table.only_new,
            profile=rules.profile.value if rules.profile else None,
            rules=rule_names(rules.select) or (),
            ignore=rule_names(rules.ignore) or (),
            fail_on=rules.fail_on or "error",
            progress=done,
            **given,
        )
    _show(found, table, to_stderr=output is None)
    return exit_code_of(name for name, _ in found.verdicts)


def _write_row(row: "ScanRow") -> None:
    import json

    write_stdout(json.dumps(row.to_dict()) + "\n")


@contextmanager
def _progress(quiet: bool) -> "Iterator[Callable[[Progressed], None]]":
    """A bar on stderr with the rate, the time left and the failures; silent where nobody watches."""
    if quiet or not is_watched():
        yield lambda so_far: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("scanning"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[open]}"),
    )
    start = time.monotonic()
    with Progress(*columns, console=Console(file=sys.stderr, highlight=False), transient=True) as bar:
        task = bar.add_task("", total=None, rate="", open="")

        def show(so_far: "Progressed") -> None:
            rate = so_far.done / max(time.monotonic() - start, 1e-9)
            note = f"{so_far.undetermined} not determined" if so_far.undetermined else ""
            bar.update(task, completed=so_far.done, total=so_far.total, rate=f"{rate:.1f}/s", open=note)

        yield show


def _show(found: "ScanSummary", table: Table, *, to_stderr: bool) -> None:
    from headscope.render.console import plain_text
    from headscope.render.scan import scan_screen, scan_verdict

    screen = scan_verdict(found) if table.quiet else scan_screen(found)
    if to_stderr:
        write_stderr(plain_text(screen))
    else:
        print_screen(screen)
