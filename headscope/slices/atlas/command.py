"""`headscope heads [PATTERN]`."""

from typing import Annotated

import typer

from headscope.shell.arguments import Output
from headscope.shell.completion import complete_pattern
from headscope.shell.output import write_report
from headscope.shell.progress import telling_progress
from headscope.slices.atlas.options import HeadsOptions

Pattern = Annotated[
    str,
    typer.Argument(
        metavar="PATTERN",
        help="Part of a class name or model type, or a pattern such as 'Luke*'.",
        autocompletion=complete_pattern,
    ),
]


def heads_command(output: Output, options: HeadsOptions, pattern: Pattern = "") -> int:
    """List every classification class of the installed Transformers; needs no checkpoint."""
    with telling_progress(output.quiet) as tell:
        from headscope.slices.atlas.run import heads

        found = heads(pattern, progress=tell, **options)
    from headscope.slices.atlas.screen import heads_document, heads_names, heads_screen

    write_report(
        output,
        lambda: heads_names(found) if output.quiet else heads_screen(found, pattern),
        lambda: heads_document(found),
    )
    return 0
