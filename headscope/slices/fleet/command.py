"""`headscope scan MODEL... -o OUT`."""

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from headscope.checks.command import exit_code_of
from headscope.errors import ExitCode, UsageError
from headscope.shell.arguments import OUTPUT, FormatName, Json, Quiet, models_argument
from headscope.shell.options.option import Option, Writes
from headscope.shell.output import print_screen, signed_text, tell_written, write_file, write_stderr, write_stdout
from headscope.shell.progress import ended_by_signals, is_watched
from headscope.slices.fleet.options import ScanOptions

if TYPE_CHECKING:
    from headscope.slices.fleet.facts import ScanRow, ScanSummary
    from headscope.slices.fleet.table_scan import Progressed

_source = partial(Option, panel="What to scan")
_table = partial(Option, panel=OUTPUT, is_main=True)


@dataclass(frozen=True)
class SourceOptions:
    """Which checkpoints are scanned."""

    listed: Annotated[
        str | None,
        _source("A text file with one model per line; - is stdin.", flags="--from", metavar="FILE", is_main=True),
    ] = None
    folder: Annotated[
        list[str] | None,
        _source("Every checkpoint and snapshot below DIR.", metavar="DIR", is_main=True, is_repeatable=True),
    ] = None
    author: Annotated[str | None, _source("Models of this user on the Hub.", metavar="NAME", is_main=True)] = None
    filters: Annotated[
        list[str] | None,
        _source(
            "Models on the Hub with this tag, such as text-classification.",
            flags="--filter",
            metavar="TAG",
            is_repeatable=True,
        ),
    ] = None
    search: Annotated[str | None, _source("Models on the Hub with TEXT in their IDs.", metavar="TEXT")] = None
    collection: Annotated[str | None, _source("Models of a collection on the Hub.", metavar="SLUG")] = None
    limit: Annotated[int | None, _source("At most N models from the Hub.", metavar="N", least=1)] = None

    def on_hub(self) -> dict[str, Any] | None:
        """Gives what a listing of the Hub should name; None if none was requested. Raises UsageError."""
        self._check_values()
        searched = {"author": self.author, "filters": self.filters, "search": self.search}
        given = {name: value for name, value in searched.items() if value}
        if self.collection and given:
            raise UsageError("--collection lists its own models", "leave out --author, --filter and --search")
        if self.collection:
            given["collection"] = self.collection
        if self.limit and not given:
            raise UsageError("--limit is for models from the Hub", "add --author, --filter, --search or --collection")
        return given | {"limit": self.limit} if given else None

    def _check_values(self) -> None:
        """Raises UsageError for an empty value, such as that of a shell variable that isn't set: a lost source."""
        one = {"--from": self.listed, "--author": self.author, "--search": self.search, "--collection": self.collection}
        many = {"--folder": self.folder or (), "--filter": self.filters or ()}
        values = {name: [value] for name, value in one.items()} | many
        for name in values:
            if "" in values[name]:
                raise UsageError(f"the value of {name} is empty", f"leave out {name}, or give it a value")


@dataclass(frozen=True)
class TableOptions:
    """Where the rows go."""

    output: Annotated[
        str | None,
        _table(
            "Append each row to OUT, a file of JSON lines or NAME.csv (default: JSON lines on stdout).",
            flags="-o --output",
            metavar="OUT",
            reads="slices.fleet.table:read_table_name",
            writes=Writes.FILE,
        ),
    ] = None
    resume: Annotated[bool, _table("Continue OUT: skip the models that it holds.")] = False
    only_new: Annotated[bool, _table("Continue OUT: skip the commits that it holds.")] = False
    summary: Annotated[
        list[Path] | None,
        _table(
            "Write the summary to FILE too: .txt, .md, .html or .json.",
            metavar="FILE",
            is_repeatable=True,
            writes=Writes.FILE,
        ),
    ] = None
    format: Annotated[FormatName, _table("Format of the summary: text (default) or json.", metavar="FORMAT")] = "text"
    json: Json = False
    quiet: Quiet = False

    @property
    def is_json(self) -> bool:
        """True if a machine reads the summary."""
        return self.json or self.format == "json"


def scan_command(
    sources: SourceOptions,
    options: ScanOptions,
    table: TableOptions,
    executor: Annotated[
        Literal["local", "ray"],
        Option("local: processes on this machine; ray: a Ray cluster (RAY_ADDRESS).", panel="Workers"),
    ] = "local",
    models: Annotated[
        list[str] | None,
        models_argument("Checkpoints, each as for inspect."),
    ] = None,
) -> int:
    """Examine many checkpoints and write a table with one row for each."""
    gc.enable()  # unlike the other commands, this one runs for hours
    from headscope.slices.fleet.run import run_scan
    from headscope.slices.fleet.table_scan import ScanOutput
    from headscope.slices.fleet.target import ScanSources

    check_summaries(table.summary or (), sources.listed)
    read = ScanSources(models or (), sources.listed, sources.folder or (), sources.on_hub())
    stdout = RowsOnStdout()
    # A bar beside rows on a terminal would break them into lines.
    rows_on_screen = table.output is None and sys.stdout is not None and sys.stdout.isatty()
    with ended_by_signals(), _scan_progress(table.quiet or rows_on_screen) as done:
        write = None if table.output else stdout.write
        place = ScanOutput(table.output, write, table.resume, table.only_new, progress=done, executor=executor)
        found = run_scan(read, place, **options)
    for path in table.summary or ():
        write_file(path, _summary_in(path.suffix.lower(), found), quiet=table.quiet)
    _show_summary(found, table)
    if table.output and not table.quiet:
        tell_written(table.output)
    code = exit_code_of(one.name for one in found.verdicts)
    if not stdout.is_cut:
        return code
    write_stderr("The reader of stdout closed it, so the scan ended early; name a file with -o.\n")
    return code or ExitCode.UNDETERMINED


class RowsOnStdout:
    """The rows on stdout; `is_cut` where its reader closed it before the last one."""

    is_cut = False

    def write(self, row: "ScanRow") -> bool:
        """Writes a row; False where nobody reads it any more."""
        import json

        self.is_cut = not write_stdout(json.dumps(row.to_dict()) + "\n")
        return not self.is_cut


def check_summaries(paths: Sequence[Path], listed: str | None) -> None:
    """Raises UsageError where a summary can't be written, or would replace the list of models or a file in it."""
    for path in paths:
        if path.suffix.lower() not in _SUFFIXES:
            raise UsageError(
                f"--summary {path}: the format of a summary follows from the name of its file",
                f"end the name in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}",
            )
        if listed is not None and os.path.realpath(path) == os.path.realpath(listed):
            raise UsageError(f"--summary {path} is the list of models", "name another file")
        if path.exists() and listed is not None and Path(listed).is_file():
            named = (line.strip() for line in Path(listed).read_text("utf-8", "replace").splitlines())
            from headscope.core.outputs import check_output  # slow to import, and seldom needed

            check_output(path, "--summary", map(Path, filter(None, named)))


@contextmanager
def _scan_progress(quiet: bool) -> "Iterator[Callable[[Progressed], None]]":
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
    console = Console(file=sys.stderr, highlight=False)
    # Redirected, rows for a file or a pipe would be printed above the bar, on the terminal.
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("", total=None, rate="", open="")

        def show(so_far: "Progressed") -> None:
            rate = so_far.done / max(time.monotonic() - start, 1e-9)
            note = f"{so_far.undetermined} not determined" if so_far.undetermined else ""
            bar.update(task, completed=so_far.done, total=so_far.total, rate=f"{rate:.1f}/s", open=note)

        yield show


def _show_summary(found: "ScanSummary", table: TableOptions) -> None:
    """Shows the summary where the rows aren't: on stdout, or on stderr below rows on stdout."""
    if table.output is None:
        write_stderr(_summary_json(found) if table.is_json else _as_text(found, quiet=table.quiet))
    elif table.is_json:
        write_stdout(_summary_json(found))
    else:
        from headscope.slices.fleet.screen import scan_screen, scan_verdict

        print_screen(scan_verdict(found) if table.quiet else scan_screen(found))


def _as_text(found: "ScanSummary", *, quiet: bool = False) -> str:
    from headscope.core.words.console import plain_text
    from headscope.slices.fleet.screen import scan_screen, scan_verdict

    return plain_text(scan_verdict(found) if quiet else scan_screen(found))


def _summary_json(found: "ScanSummary") -> str:
    from headscope.core.words.document import json_text
    from headscope.slices.fleet.screen import scan_document

    return json_text(scan_document(found))


_SUFFIXES = (".txt", ".md", ".html", ".json")
"""Endings of the names of summaries, which choose the format."""


def _summary_in(suffix: str, found: "ScanSummary") -> str:
    from headscope.slices.fleet.page import scan_html
    from headscope.slices.fleet.screen import scan_markdown

    match suffix:
        case ".md":
            return scan_markdown(found)
        case ".html":
            return scan_html(found)
        case ".json":
            return _summary_json(found)
    return signed_text(_as_text(found))
