"""`headscope snapshot MODEL -o FILE`."""

from pathlib import Path
from typing import Annotated

from headscope.errors import ExitCode, UsageError
from headscope.shell.arguments import JsonAlone, Model
from headscope.shell.options.checkpoint import ReportCacheOption
from headscope.shell.options.option import Option, Writes
from headscope.shell.output import write_stdout
from headscope.shell.progress import telling_progress
from headscope.slices.lookup.options import SnapshotOptions

SnapshotFile = Annotated[
    Path, Option("The file to write.", flags="-o --output", metavar="FILE", is_main=True, writes=Writes.FILE)
]

Silent = Annotated[bool, Option("Print nothing and show no progress.", flags="-q --quiet", is_main=True)]


def snapshot_command(  # noqa: PLR0917  Typer passes every option by name
    model: Model,
    output: SnapshotFile,
    options: SnapshotOptions,
    cached: ReportCacheOption,
    json: JsonAlone = False,
    quiet: Silent = False,
) -> int:
    """Save the config and tensor headers in one small file that every command accepts as MODEL."""
    if str(output) == "-":
        raise UsageError("-o -: a snapshot is written atomically, which stdout can't guarantee", "name a file")
    with telling_progress(quiet) as tell:
        from headscope.slices.lookup.snapshots import snapshot

        manifest = snapshot(model, str(output), progress=tell, **options)
    from headscope.core.words import document
    from headscope.core.words.words import snapshot_sentence

    if json:
        write_stdout(document.json_text(document.snapshot_document(manifest, str(output))))
    elif not quiet:
        write_stdout(snapshot_sentence(manifest, str(output)) + "\n")
    return ExitCode.UNDETERMINED if manifest.gaps else ExitCode.OK
