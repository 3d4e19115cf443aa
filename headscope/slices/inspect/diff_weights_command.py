"""`headscope diff-weights MODEL`."""

from functools import partial
from typing import Annotated

from headscope.shared.report.status import exit_status
from headscope.shell.arguments import FailOnMissing, Model, Output
from headscope.shell.options.checkpoint import CachedOptions
from headscope.shell.options.option import Option
from headscope.shell.output import write_report
from headscope.shell.progress import telling_progress

Every = Annotated[bool, Option("Also list the loaded parameters.", flags="--all", is_main=True)]


def diff_weights_command(
    model: Model, options: CachedOptions, output: Output, every: Every = False, exit_code: FailOnMissing = False
) -> int:
    """Compare each parameter with the checkpoint: new, mismatched, unused, tied, renamed."""
    with telling_progress(output.quiet) as tell:
        from headscope.slices.inspect.weight_diff import diff_weights

        report = diff_weights(model, progress=tell, **options)
    from headscope.shared.report.documents import diff_document
    from headscope.shared.report.verdict import verdict_screen
    from headscope.slices.inspect.diff_screen import diff_screen

    screen = verdict_screen if output.quiet else partial(diff_screen, every=every)
    write_report(output, lambda: screen(report), lambda: diff_document(report, every=every))
    return exit_status(report, fail_on_missing=exit_code)
