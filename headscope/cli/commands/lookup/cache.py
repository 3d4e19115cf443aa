"""`headscope cache`."""

from typing import Annotated

from headscope.api.arguments.option import Option
from headscope.cli.options import Output
from headscope.cli.output import write_report
from headscope.errors import ExitCode

Clear = Annotated[
    bool, Option("Remove the entries of headscope's cache; what the Hub's client keeps stays.", is_main=True)
]


def cache_command(output: Output, clear: Clear = False) -> int:
    """Show what headscope keeps on disk, or remove it."""
    from headscope.api.lookup.disk import disk_usage
    from headscope.render.screens.lookup.cache import cache_screen, cache_verdict
    from headscope.render.text.document import cache_document

    usage = disk_usage(clear=clear)
    write_report(
        output, lambda: cache_verdict(usage) if output.quiet else cache_screen(usage), lambda: cache_document(usage)
    )
    return ExitCode.UNDETERMINED if usage.not_determined else ExitCode.OK
