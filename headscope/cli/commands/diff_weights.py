"""`headscope diff-weights MODEL`."""

from functools import partial
from typing import Annotated

from headscope.api.arguments.checkpoint import CachedOptions
from headscope.api.arguments.option import Option
from headscope.cli.options import FailOnMissing, Model, Output
from headscope.cli.output import exit_status, write_report
from headscope.cli.progress import telling_progress

Every = Annotated[bool, Option("Also list the loaded parameters.", flags="--all", is_main=True)]


def diff_weights_command(
    model: Model, options: CachedOptions, output: Output, every: Every = False, exit_code: FailOnMissing = False
) -> int:
    """Compare each parameter with the checkpoint: new, mismatched, unused, tied, renamed."""
    with telling_progress(output.quiet) as tell:
        from headscope import api

        report = api.diff_weights(model, progress=tell, **options)
    from headscope.render.parts.verdict import verdict_screen
    from headscope.render.screens.diff import diff_screen
    from headscope.render.text.document import diff_document

    screen = verdict_screen if output.quiet else partial(diff_screen, every=every)
    write_report(output, lambda: screen(report), lambda: diff_document(report, every=every))
    return exit_status(report, fail_on_missing=exit_code)
