"""`headscope forward MODEL`."""

from typing import TYPE_CHECKING, Annotated, cast

import typer

from headscope.cli.options import Output, Source, Wanted
from headscope.cli.output import check_output, write_report
from headscope.cli.progress import telling_progress
from headscope.errors import ExitCode

if TYPE_CHECKING:
    from headscope.api import DeviceName

_INPUT = "What to run"
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="meta (no weights), cpu, cuda, ... (default: meta; cpu with --text, --image or --audio).",
        rich_help_panel=_INPUT,
    ),
]
Texts = Annotated[
    list[str] | None,
    typer.Option("--text", metavar="TEXT", help="A text to score; repeatable.", rich_help_panel=_INPUT),
]
Pairs = Annotated[
    list[str] | None,
    typer.Option("--text-pair", metavar="TEXT", help="The second text of a pair; repeatable.", rich_help_panel=_INPUT),
]
Image = Annotated[
    str | None, typer.Option("--image", metavar="FILE", help="An image to score.", rich_help_panel=_INPUT)
]
Audio = Annotated[
    str | None, typer.Option("--audio", metavar="FILE", help="A WAV file to score.", rich_help_panel=_INPUT)
]


def forward(  # noqa: PLR0917  Typer passes every option by name
    wanted: Wanted,
    source: Source,
    output: Output,
    device: Device = None,
    text: Texts = None,
    text_pair: Pairs = None,
    image: Image = None,
    audio: Audio = None,
) -> int:
    """Run a forward pass: the shape at each stage, and with real weights the score of each label."""
    check_output(output.output)
    options = wanted.keywords()
    default = "cpu" if text or image or audio else "meta"  # scores need weights
    with telling_progress(output.quiet) as tell:
        from headscope import api

        report = api.forward(
            source.model,
            device=cast("DeviceName", device or default),  # PyTorch may know others, and raises for unknown ones
            text=text or (),
            text_pair=text_pair or (),
            image=image,
            audio=audio,
            progress=tell,
            **source.keywords(),
            **options,
        )
    from headscope.render.forward import forward_document, forward_screen

    write_report(output, lambda: forward_screen(report), lambda: forward_document(report))
    return ExitCode.UNDETERMINED if report.not_determined else ExitCode.OK
