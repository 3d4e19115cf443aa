"""`headscope inspect MODEL`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from headscope.core.upstream.python import is_for_agent
from headscope.shared.report.status import exit_status
from headscope.shell.arguments import (
    FailOnMissing,
    Json,
    Model,
    OutputFile,
    Quiet,
    details_option,
    format_option,
)
from headscope.shell.options.checkpoint import CheckpointOptions
from headscope.shell.output import write_screen, write_text
from headscope.shell.parameters import given_words
from headscope.shell.progress import telling_progress
from headscope.slices.inspect.options import CheckpointInspection

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headscope.core.facts import Report


@dataclass(frozen=True)
class InspectOutput:
    """Format and file of an examination."""

    format: Annotated[
        Literal["text", "json", "markdown", "brief"],
        format_option("text (default), json, markdown, or brief: the JSON's summary alone."),
    ] = "text"
    json: Json = False
    output: OutputFile = None
    quiet: Quiet = False

    @property
    def kind(self) -> str:
        """Requested format."""
        return "json" if self.json else self.format


def inspect_command(
    model: Model,
    options: CheckpointInspection,
    output: InspectOutput,
    details: Annotated[
        bool, details_option("everything: each weight, the loss, parameter counts, unused tensors, findings in full.")
    ] = False,
    exit_code: FailOnMissing = False,
) -> int:
    """Show a classifier's head: operations, shapes, weights, pooling and labels."""
    with telling_progress(output.quiet) as tell:
        from headscope.slices.inspect.run import inspect

        report = inspect(model, progress=tell, **options)
    from headscope.slices.inspect.screen import inspect_screen, inspect_verdict

    def screen() -> "RenderableType":
        words = None if is_for_agent() else given_words([model], options, CheckpointOptions)
        return inspect_verdict(report) if output.quiet else inspect_screen(report, details=details, words=words)

    if output.kind == "text":
        write_screen(output.output, screen(), quiet=output.quiet)
    else:
        write_text(output.output, _render_report(output.kind, report), quiet=output.quiet)
    return exit_status(report, fail_on_missing=exit_code)


def _render_report(kind: str, report: "Report") -> str:
    from headscope.core.facts.plain import to_dict
    from headscope.core.words.document import json_text
    from headscope.shared.report.documents import inspect_document, inspect_markdown, summary_of

    match kind:
        case "json":
            return json_text(inspect_document(report))
        case "brief":
            return json_text(to_dict(summary_of(report)))
        case _:
            return inspect_markdown(report)
