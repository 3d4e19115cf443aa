"""`headscope code MODEL`."""

from typing import Annotated, get_args

from headscope.cli.options import OutputFile, Quiet, Source, Wanted, option
from headscope.cli.output import write_text
from headscope.cli.progress import telling_progress
from headscope.errors import ExitCode


def complete_vector(incomplete: str) -> list[str]:
    """Completes the names of vectors."""
    from headscope.api.coding import VectorName

    return [name for name in get_args(VectorName) if name.startswith(incomplete)]


def code_command(  # noqa: PLR0917  Typer passes them by name
    wanted: Wanted,
    source: Source,
    pooling: Annotated[
        str,
        option(
            "--pooling",
            "The vector to classify: head (default), mean, cls, last, max, mean_and_max, first_last_mean, "
            "last_four_concat or last_four_average.",
            "VECTOR",
            autocompletion=complete_vector,
        ),
    ] = "head",
    layer: Annotated[
        int | None, option("--layer", "Index of the hidden states; 0 is the embeddings (default: the last).", "N")
    ] = None,
    output: OutputFile = None,
    quiet: Quiet = False,
) -> int:
    """Write a Python module with a classifier that loads the checkpoint and trains, without data."""
    options = wanted.keywords()
    with telling_progress(quiet) as tell:
        from headscope import api

        text = api.code(source.model, pooling=pooling, layer=layer, progress=tell, **source.keywords(), **options)
    write_text(output, text, quiet=quiet)
    return ExitCode.OK
