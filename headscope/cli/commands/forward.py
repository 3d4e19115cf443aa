"""`headscope forward MODEL`."""

from typing import TYPE_CHECKING, Annotated, cast

from headscope.cli.options import Output, Source, Wanted, option
from headscope.cli.output import write_report
from headscope.cli.progress import telling_progress
from headscope.errors import ExitCode

if TYPE_CHECKING:
    from headscope.api import DeviceName

_INPUT = "What to run"


def forward_command(  # noqa: PLR0917  Typer passes every option by name
    wanted: Wanted,
    source: Source,
    output: Output,
    device: Annotated[
        str | None,
        option(
            "--device",
            "meta (no weights), cpu, cuda, ... (default: meta; cpu with --text, --image or --audio).",
            "DEVICE",
            panel=_INPUT,
        ),
    ] = None,
    text: Annotated[list[str] | None, option("--text", "A text to score; repeatable.", "TEXT", panel=_INPUT)] = None,
    text_pair: Annotated[
        list[str] | None, option("--text-pair", "The second text of a pair; repeatable.", "TEXT", panel=_INPUT)
    ] = None,
    image: Annotated[str | None, option("--image", "An image to score.", "FILE", panel=_INPUT)] = None,
    audio: Annotated[str | None, option("--audio", "A WAV file to score.", "FILE", panel=_INPUT)] = None,
) -> int:
    """Run a forward pass: the shape at each stage, and with real weights the score of each label."""
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
    from headscope.render.screens.forward import forward_document, forward_screen, forward_verdict

    screen = forward_verdict if output.quiet else forward_screen
    write_report(output, lambda: screen(report), lambda: forward_document(report))
    return ExitCode.UNDETERMINED if report.not_determined else ExitCode.OK
