"""`headscope heads [PATTERN]`."""

from typing import Annotated

import typer

from headscope.cli.options import Output, complete_task
from headscope.cli.output import check_output, write_report
from headscope.cli.progress import telling_progress

Pattern = Annotated[
    str, typer.Argument(metavar="PATTERN", help="Part of a class name or model type, or a pattern such as 'Luke*'.")
]
Task = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="TASK",
        help="Only heads for this task, such as token-classification.",
        autocompletion=complete_task,
    ),
]
Pooling = Annotated[
    str | None, typer.Option("--pooling", metavar="KIND", help="Only heads with this pooling, such as masked_mean.")
]
Operation = Annotated[
    str | None, typer.Option("--operation", metavar="NAME", help="Only heads that run this operation, such as tanh.")
]
Workers = Annotated[
    int | None, typer.Option("--workers", metavar="N", min=1, help="Number of processes (default: one per core).")
]


def heads(  # noqa: PLR0917  Typer passes every option by name
    output: Output,
    pattern: Pattern = "",
    task: Task = None,
    pooling: Pooling = None,
    operation: Operation = None,
    workers: Workers = None,
) -> int:
    """List every classification class of the installed Transformers; needs no checkpoint."""
    check_output(output.output)
    with telling_progress(output.quiet) as tell:
        from headscope import api

        found = api.heads(pattern, task=task, pooling=pooling, operation=operation, workers=workers, progress=tell)
    from headscope.render.heads import heads_document, heads_names, heads_screen

    screen = heads_names if output.quiet else heads_screen
    write_report(output, lambda: screen(found), lambda: heads_document(found))
    return 0
