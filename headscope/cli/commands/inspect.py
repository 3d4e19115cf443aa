"""`headscope inspect MODEL`."""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated

from headscope.cli.options import FailOnMissing, Json, OutputFile, Quiet, Source, Wanted, given_words, option
from headscope.cli.output import exit_status, write_screen, write_text
from headscope.cli.progress import telling_progress

if TYPE_CHECKING:
    from rich.console import RenderableType


class InspectFormat(str, Enum):  # noqa: UP042 - StrEnum shows its members differently in Typer's help
    """Formats of an examination."""

    text = "text"
    json = "json"
    markdown = "markdown"


@dataclass(frozen=True)
class InspectOutput:
    """Format and file of an examination."""

    format: Annotated[
        InspectFormat, option("--format", "Output format: text, json or markdown.", "FORMAT", panel="Output")
    ] = InspectFormat.text
    json: Json = False
    output: OutputFile = None
    quiet: Quiet = False

    @property
    def kind(self) -> InspectFormat:
        """Requested format."""
        return InspectFormat.json if self.json else self.format


def inspect_command(  # noqa: PLR0917  Typer passes them by name
    wanted: Wanted,
    source: Source,
    output: InspectOutput,
    details: Annotated[
        bool,
        option(
            "--details", "Show everything: each weight, the loss, parameter counts, unused tensors, findings in full."
        ),
    ] = False,
    prove: Annotated[
        bool, option("--prove", "Check the pooling with gradients, and show what padding does to the scores.")
    ] = False,
    health: Annotated[
        bool, option("--health", "Show whether the classifier was ever trained, from its stored numbers.")
    ] = False,
    exit_code: FailOnMissing = False,
) -> int:
    """Show a classifier's head: operations, shapes, weights, pooling and labels."""
    options = wanted.keywords()
    with telling_progress(output.quiet) as tell:
        from headscope import api

        report = api.inspect(source.model, progress=tell, prove=prove, health=health, **source.keywords(), **options)
    from headscope.render.screens.inspect import inspect_document, inspect_markdown, inspect_screen, inspect_verdict
    from headscope.render.text.document import json_text

    def screen() -> "RenderableType":
        words = given_words([source.model], wanted, source)
        return inspect_verdict(report) if output.quiet else inspect_screen(report, details=details, words=words)

    match output.kind:
        case InspectFormat.text:
            write_screen(output.output, screen(), quiet=output.quiet)
        case InspectFormat.json:
            write_text(output.output, json_text(inspect_document(report)), quiet=output.quiet)
        case InspectFormat.markdown:
            write_text(output.output, inspect_markdown(report), quiet=output.quiet)
    return exit_status(report, fail_on_missing=exit_code)
