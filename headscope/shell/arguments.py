"""The argument MODEL, and the options that only the command line has: how a report is written, and the exit code."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headscope.shell.completion import complete_checkpoint, complete_model
from headscope.shell.options.option import Option, Writes

OUTPUT = "Output"


def model_argument(more: str, *, complete: Callable[..., list[str]] = complete_checkpoint) -> Any:
    """Makes the argument MODEL; `more` names the kinds of reference that only some commands take."""
    return models_argument(f"A Hub ID, id@revision, hf:// URI, Hub URL, folder, {more}.", complete=complete)


def models_argument(help: str, *, complete: Callable[..., list[str]] = complete_checkpoint) -> Any:
    """Makes the argument MODEL of a command that takes several."""
    return typer.Argument(metavar="MODEL", help=help, show_default=False, autocompletion=complete)


Model = Annotated[
    str,
    model_argument(
        "weight file, PEFT adapter or snapshot file. Where no weights are needed, also a class such as "
        "BertForSequenceClassification",
        complete=complete_model,
    ),
]
OutputFile = Annotated[
    Path | None,
    Option(
        "Write to FILE atomically; use - for stdout.", flags="-o --output", metavar="FILE", panel=OUTPUT, is_main=True,
        reads="file", writes=Writes.FILE,
    ),
]  # fmt: skip
NewFolder = Option(
    "The folder to write.", flags="-o --output", metavar="DIR", panel=OUTPUT, is_main=True, writes=Writes.FOLDER
)
Json = Annotated[bool, Option("Short for --format json.", panel=OUTPUT, is_main=True)]
JsonAlone = Annotated[bool, Option("Write the report as JSON.", panel=OUTPUT, is_main=True)]
Quiet = Annotated[
    bool, Option("Show only the verdict and errors; no progress.", flags="-q --quiet", panel=OUTPUT, is_main=True)
]
FailOnMissing = Annotated[
    bool,
    Option(
        "Exit with 1 if a weight that the logits depend on is new, or any is mismatched.", panel=OUTPUT, is_main=True
    ),
]
FormatName = Literal["text", "json"]
"""Formats of a report."""


def format_option(meaning: str) -> Option:
    """Declares `--format`, whose formats are those of the command."""
    return Option(meaning, metavar="FORMAT", panel=OUTPUT, is_main=True)


def details_option(meaning: str) -> Option:
    """Declares `--details`, which shows more of the report of the command."""
    return Option(f"Show {meaning}", is_main=True)


@dataclass(frozen=True)
class Pages:
    """Format and file of output without a verdict."""

    format: Annotated[FormatName, format_option("text (default) or json.")] = "text"
    json: Json = False
    output: OutputFile = None

    @property
    def is_json(self) -> bool:
        """True if the report is written as JSON."""
        return self.json or self.format == "json"


@dataclass(frozen=True)
class Output(Pages):
    """Format and file of a report, and whether it is shown in short."""

    quiet: Quiet = False
