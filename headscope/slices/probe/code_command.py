"""`headscope code MODEL`."""

from headscope.errors import ExitCode
from headscope.shell.arguments import Model, OutputFile, Quiet
from headscope.shell.output import write_text
from headscope.shell.progress import telling_progress
from headscope.slices.probe.options import CodeOptions


def code_command(model: Model, options: CodeOptions, output: OutputFile = None, quiet: Quiet = False) -> int:
    """Write a Python module with a classifier that loads the checkpoint and trains, without data."""
    with telling_progress(quiet) as tell:
        from headscope.slices.probe.coding import code

        text = code(model, progress=tell, **options)
    write_text(output, text, quiet=quiet)
    return ExitCode.OK
