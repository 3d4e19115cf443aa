"""`headscope edit MODEL -o DIR`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from headscope.errors import ExitCode
from headscope.shell.arguments import JsonAlone, NewFolder, Pages, Quiet
from headscope.shell.output import write_report
from headscope.shell.progress import telling_progress
from headscope.slices.edit.options import EditOptions


def edit_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="The folder of a checkpoint, or a Hub ID in the local cache.", show_default=False
        ),
    ],
    options: EditOptions,
    output: Annotated[Path | None, NewFolder] = None,
    json: JsonAlone = False,
    quiet: Quiet = False,
) -> int:
    """Write a changed copy: other classes, thresholds, settings. Proves what changes (exit code 1: refused)."""
    from headscope.copies.facts import EditVerdict
    from headscope.slices.edit.screen import edit_verdict, shown_screen

    with telling_progress(quiet) as tell:
        from headscope.slices.edit.run import edit

        found = edit(model, output, progress=tell, **_read_pairs(options))
    write_report(Pages(json=json), lambda: edit_verdict(found) if quiet else shown_screen(found), found.to_dict)
    return ExitCode.FINDINGS if found.verdict is EditVerdict.REFUSED else ExitCode.OK


def _read_pairs(options: EditOptions) -> EditOptions:
    """Reads the options that Python takes as mappings and the command line as texts such as `OLD=NEW`."""
    from headscope.shell.values import read_pairs
    from headscope.slices.edit.plan import read_additions, read_merges, read_numbers

    given: dict[str, Any] = dict(options)

    def read_pairs_of_numbers(given: Any, option: str) -> dict[str, float] | None:
        pairs = read_pairs(given, f"--{option}")
        return None if pairs is None else read_numbers(pairs, option)

    readers: dict[str, Callable[[Any], Any]] = {"merge": read_merges, "add": read_additions}
    readers["rename"] = partial(read_pairs, option="--rename")
    readers |= {name: partial(read_pairs_of_numbers, option=name) for name in ("bias", "threshold")}
    return cast("EditOptions", {name: readers.get(name, lambda value: value)(value) for name, value in given.items()})
