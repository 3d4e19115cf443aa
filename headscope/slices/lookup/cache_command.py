"""`headscope cache`."""

from typing import Annotated

from headscope.errors import ExitCode
from headscope.shell.arguments import Output
from headscope.shell.options.option import Option
from headscope.shell.output import write_report

Clear = Annotated[
    bool, Option("Remove the entries of headscope's cache; what the Hub's client keeps stays.", is_main=True)
]


def cache_command(output: Output, clear: Clear = False) -> int:
    """Show what headscope keeps on disk, or remove it."""
    from headscope.slices.lookup.cache_screen import cache_document, cache_screen, cache_verdict
    from headscope.slices.lookup.disk import disk_usage

    usage = disk_usage(clear=clear)
    write_report(
        output, lambda: cache_verdict(usage) if output.quiet else cache_screen(usage), lambda: cache_document(usage)
    )
    return ExitCode.UNDETERMINED if usage.not_determined else ExitCode.OK
