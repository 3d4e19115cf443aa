"""`headscope inspect MODEL`."""

from typing import TYPE_CHECKING, Annotated

from headscope.cli.options import FailOnMissing, Output, Source, Wanted, given_words, option
from headscope.cli.output import check_output, exit_status, write_report
from headscope.cli.progress import telling_progress

if TYPE_CHECKING:
    from rich.console import RenderableType


Details = Annotated[
    bool,
    option("--details", "Show everything: each weight, the loss, parameter counts, unused tensors, findings in full."),
]


def inspect_command(  # noqa: PLR0917  Typer passes them by name
    wanted: Wanted,
    source: Source,
    output: Output,
    details: Details = False,
    prove: Annotated[
        bool, option("--prove", "Check the pooling with gradients, and show what padding does to the scores.")
    ] = False,
    health: Annotated[
        bool, option("--health", "Show whether the classifier was ever trained, from its stored numbers.")
    ] = False,
    exit_code: FailOnMissing = False,
) -> int:
    """Show a classifier's head: operations, shapes, weights, pooling and labels."""
    check_output(output.output)
    options = wanted.keywords()
    with telling_progress(output.quiet) as tell:
        from headscope import api

        report = api.inspect(source.model, progress=tell, prove=prove, health=health, **source.keywords(), **options)
    from headscope.render.screens.inspect import inspect_screen, inspect_verdict
    from headscope.render.text.document import inspect_document

    def screen() -> "RenderableType":
        words = given_words([source.model], wanted, source)
        return inspect_verdict(report) if output.quiet else inspect_screen(report, details=details, words=words)

    write_report(output, screen, lambda: inspect_document(report))
    return exit_status(report, fail_on_missing=exit_code)
