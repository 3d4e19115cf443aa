"""`headscope compare MODEL MODEL ...`."""

from dataclasses import dataclass
from typing import Annotated

import typer

from headscope.cli.completion import complete_model
from headscope.cli.options import Output, Reach, Wanted, option
from headscope.cli.output import write_report
from headscope.cli.progress import telling_progress
from headscope.errors import ExitCode


@dataclass(frozen=True)
class CompareGroup:
    """Options of a comparison: what is compared, and if a difference changes the exit code."""

    values: Annotated[bool, option("--values", "Also compare the stored numbers of the head.")] = False
    exit_code: Annotated[bool, option("--exit-code", "Exit with 1 if the heads differ.")] = False
    details: Annotated[bool, option("--details", "Show sizes, every stage and every weight.")] = False


def compare_command(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Two or more models, as for inspect, or a checkpoint and its GGUF or ONNX exports.",
            show_default=False,
            autocompletion=complete_model,
        ),
    ],
    compared: CompareGroup,
    wanted: Wanted,
    reach: Reach,
    output: Output,
) -> int:
    """Compare heads side by side: class, pooling, operations, shapes, weights, labels, loss."""
    options = wanted.keywords() | reach.keywords()
    with telling_progress(output.quiet) as tell:
        from headscope import api

        comparison = api.compare(*models, values=compared.values, progress=tell, **options)
    from headscope.render.screens.compare import compare_screen, compare_verdict

    write_report(
        output,
        lambda: compare_verdict(comparison) if output.quiet else compare_screen(comparison, details=compared.details),
        comparison.to_dict,
    )
    if not comparison.is_determined:
        return ExitCode.UNDETERMINED
    if compared.values and any(item.identical is None for item in comparison.values):
        return ExitCode.UNDETERMINED
    return ExitCode.FINDINGS if compared.exit_code and comparison.differs else ExitCode.OK
