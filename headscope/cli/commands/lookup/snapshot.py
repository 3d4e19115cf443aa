"""`headscope snapshot MODEL -o FILE`."""

from pathlib import Path
from typing import Annotated

from headscope.cli.options import JsonAlone, Source, Writes, option
from headscope.cli.output import write_stdout
from headscope.cli.progress import telling_progress
from headscope.errors import ExitCode, UsageError

SnapshotFile = Annotated[Path, option("-o --output", "The file to write.", "FILE"), Writes.FILE]


Silent = Annotated[bool, option("-q --quiet", "Print nothing and show no progress.")]


def snapshot_command(source: Source, output: SnapshotFile, json: JsonAlone = False, quiet: Silent = False) -> int:
    """Save the config and tensor headers in one small file that every command accepts as MODEL."""
    if str(output) == "-":
        raise UsageError("-o -: a snapshot is written atomically, which stdout can't guarantee", "name a file")
    with telling_progress(quiet) as tell:
        from headscope import api

        manifest = api.snapshot(source.model, str(output), progress=tell, **source.uncached())
    from headscope.render.text import document
    from headscope.render.text.words import snapshot_sentence

    if json:
        write_stdout(document.json_text(document.snapshot_document(manifest, str(output))))
    elif not quiet:
        write_stdout(snapshot_sentence(manifest, str(output)) + "\n")
    return ExitCode.UNDETERMINED if manifest.gaps else ExitCode.OK
