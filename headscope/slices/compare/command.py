"""`headscope compare MODEL MODEL ...`."""

from typing import Annotated

from headscope.errors import ExitCode
from headscope.shell.arguments import Output, details_option, models_argument
from headscope.shell.completion import complete_model
from headscope.shell.options.option import Option
from headscope.shell.output import write_report
from headscope.shell.progress import telling_progress
from headscope.slices.compare.options import ValueComparison


def compare_command(
    models: Annotated[
        list[str],
        models_argument(
            "Two or more models, as for inspect, or a checkpoint and its GGUF or ONNX exports.", complete=complete_model
        ),
    ],
    options: ValueComparison,
    output: Output,
    exit_code: Annotated[bool, Option("Exit with 1 if the heads differ.", is_main=True)] = False,
    details: Annotated[bool, details_option("sizes, every stage and every weight.")] = False,
) -> int:
    """Compare heads side by side: class, pooling, operations, shapes, weights, labels, loss."""
    with telling_progress(output.quiet) as tell:
        from headscope.slices.compare.run import compare

        comparison = compare(*models, progress=tell, **options)
    from headscope.slices.compare.screen import compare_screen, compare_verdict

    write_report(
        output,
        lambda: compare_verdict(comparison) if output.quiet else compare_screen(comparison, details=details),
        comparison.to_dict,
    )
    if not comparison.is_determined:
        return ExitCode.UNDETERMINED
    if options.get("values") and any(item.identical is None for item in comparison.values):
        return ExitCode.UNDETERMINED
    return ExitCode.FINDINGS if exit_code and comparison.differs else ExitCode.OK
