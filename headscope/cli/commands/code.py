"""`headscope code MODEL`."""

from headscope.api.arguments.checkpoint import CodeOptions
from headscope.cli.options import Model, OutputFile, Quiet
from headscope.cli.output import write_text
from headscope.cli.progress import telling_progress
from headscope.errors import ExitCode


def code_command(model: Model, options: CodeOptions, output: OutputFile = None, quiet: Quiet = False) -> int:
    """Write a Python module with a classifier that loads the checkpoint and trains, without data."""
    with telling_progress(quiet) as tell:
        from headscope import api

        text = api.code(model, progress=tell, **options)
    write_text(output, text, quiet=quiet)
    return ExitCode.OK
