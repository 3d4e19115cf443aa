"""`headscope repair MODEL -o DIR`."""

from json import loads
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from headscope.errors import ExitCode
from headscope.shell.arguments import JsonAlone, NewFolder, Pages, Quiet
from headscope.shell.output import write_report
from headscope.shell.progress import telling_progress
from headscope.slices.repair.options import RepairOptions


def repair_command(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="The folder of a checkpoint, or one file of weights.", show_default=False),
    ],
    options: RepairOptions,
    output: Annotated[Path | None, NewFolder] = None,
    json: JsonAlone = False,
    quiet: Quiet = False,
) -> int:
    """Write a copy that from_pretrained loads whole: what `inspect` prints as repair, done and proven."""
    from headscope.shell.values import read_pairs
    from headscope.slices.repair.facts import RepairVerdict
    from headscope.slices.repair.screen import repair_verdict, shown_screen

    settings = read_pairs(cast("list[str] | None", options.pop("settings", None)), "--set") or {}
    with telling_progress(quiet) as tell:
        from headscope.slices.repair.run import repair

        options["settings"] = {name: _read_setting(text) for name, text in settings.items()}
        found = repair(model, output, progress=tell, **options)
    write_report(Pages(json=json), lambda: repair_verdict(found) if quiet else shown_screen(found), found.to_dict)
    failed = {RepairVerdict.REFUSED, RepairVerdict.INCOMPLETE}
    is_open = found.verdict is RepairVerdict.NOT_DETERMINED
    return ExitCode.UNDETERMINED if is_open else ExitCode.FINDINGS if found.verdict in failed else ExitCode.OK


def _read_setting(text: str) -> Any:
    """Reads a setting as JSON; what isn't JSON is a text."""
    try:
        return loads(text)
    except ValueError:
        return text
