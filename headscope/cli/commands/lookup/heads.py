"""`headscope heads [PATTERN]`."""

from typing import Annotated

import typer

from headscope.api.arguments.heads import HeadsOptions
from headscope.cli.completion import complete_pattern
from headscope.cli.options import Output
from headscope.cli.output import write_report
from headscope.cli.progress import telling_progress

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
        from headscope import api

        found = api.heads(pattern, progress=tell, **options)
    from headscope.render.screens.lookup.heads import heads_document, heads_names, heads_screen

    write_report(
        output,
        lambda: heads_names(found) if output.quiet else heads_screen(found, pattern),
        lambda: heads_document(found),
    )
    return 0
