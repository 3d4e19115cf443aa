"""`headscope heads [PATTERN]`."""

from typing import Annotated

import typer

from headscope.cli.completion import complete_pattern, complete_pooling
from headscope.cli.options import Output, option, task_option
from headscope.cli.output import write_report
from headscope.cli.progress import telling_progress


def _read_pooling(given: str | None) -> str | None:
    """Reads the kind of pooling. Raises UsageError before anything heavy is imported."""
    if given is None:
        return None
    from headscope.facts.heads.head import parse_pooling

    return parse_pooling(given).value


Pattern = Annotated[
    str,
    typer.Argument(
        metavar="PATTERN",
        help="Part of a class name or model type, or a pattern such as 'Luke*'.",
        autocompletion=complete_pattern,
    ),
]


def heads_command(  # noqa: PLR0917  Typer passes every option by name
    output: Output,
    pattern: Pattern = "",
    task: Annotated[str | None, task_option("Only heads for this task, such as token-classification or ner.")] = None,
    pooling: Annotated[
        str | None,
        option(
            "--pooling",
            "Only heads with this pooling, such as masked_mean.",
            "KIND",
            callback=_read_pooling,
            autocompletion=complete_pooling,
        ),
    ] = None,
    operation: Annotated[
        str | None, option("--operation", "Only heads that run this operation, such as tanh.", "NAME")
    ] = None,
    workers: Annotated[
        int | None, option("--workers", "Number of processes (default: one per core).", "N", min=1)
    ] = None,
    no_cache: Annotated[bool, option("--no-cache", "Trace every class, whatever is known of it.")] = False,
) -> int:
    """List every classification class of the installed Transformers; needs no checkpoint."""
    with telling_progress(output.quiet) as tell:
        from headscope import api

        found = api.heads(
            pattern, task=task, pooling=pooling, operation=operation, workers=workers, cache=not no_cache, progress=tell
        )
    from headscope.render.screens.lookup.heads import heads_document, heads_names, heads_screen

    write_report(
        output,
        lambda: heads_names(found) if output.quiet else heads_screen(found, pattern),
        lambda: heads_document(found),
    )
    return 0
