"""`headscope verify MODEL`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headscope.cli.check import CheckFormat, Written
from headscope.cli.options import Model, Reach
from headscope.cli.output import check_output, print_screen, write_file, write_stdout
from headscope.cli.progress import telling_progress
from headscope.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from headscope.api import SeverityName

_RULES = "Rules"

With = Annotated[
    str,
    typer.Option(
        "--with",
        metavar="LOADER",
        help="What loads MODEL: transformers, peft, sentence-transformers, trl, setfit, or MODULE:FUNCTION.",
    ),
]
Against = Annotated[
    str | None,
    typer.Option(
        "--against", metavar="MODEL", help="The checkpoint to compare with (default: MODEL). --adapter belongs to it."
    ),
]
Every = Annotated[bool, typer.Option("--all", help="Compare every tensor and buffer, not only those of the head.")]
Select = Annotated[
    str | None, typer.Option("--select", metavar="IDS", help="Run only these rules.", rich_help_panel=_RULES)
]
IgnoreRules = Annotated[
    str | None,
    typer.Option(
        "--ignore", metavar="IDS", help="Rules whose findings don't fail the verification.", rich_help_panel=_RULES
    ),
]
FailOn = Annotated[
    str,
    typer.Option("--fail-on", metavar="SEVERITY", help="error, warning or note.", rich_help_panel=_RULES),
]


@dataclass(frozen=True)
class Compare:
    """What loads the model, and what it is compared with."""

    loader: With = "transformers"
    against: Against = None
    every: Every = False


@dataclass(frozen=True)
class Asked:
    """Which rules are run and what they count for."""

    select: Select = None
    ignore: IgnoreRules = None
    fail_on: FailOn = "error"


def verify(model: Model, compare: Compare, reach: Reach, asked: Asked, written: Written) -> int:
    """Load a model for real, and compare what was loaded with the stored bytes of its checkpoint."""
    check_output(written.output)
    with telling_progress(written.quiet or written.kind != "text") as tell:
        from headscope import api

        result = api.verify(
            model,
            compare.against,
            loader=compare.loader,
            every=compare.every,
            rules=_names(asked.select),
            ignore=_names(asked.ignore),
            fail_on=_severity(asked.fail_on),
            progress=tell,
            **reach.uncached(),
        )
    _write(written, result)
    return {"passed": ExitCode.OK, "failed": ExitCode.FINDINGS}.get(result.verdict.value, ExitCode.UNDETERMINED)


def _severity(name: str) -> "SeverityName":
    """Any text: the api refuses what it doesn't know."""
    return name  # type: ignore[return-value]


def _names(joined: str | None) -> tuple[str, ...]:
    if joined is None:
        return ()
    names = tuple(name.strip() for name in joined.split(",") if name.strip())
    if not names:
        raise UsageError(f"{joined!r} names no rule.", "Write rules as HS701,HS702.")
    return names


def _write(written: Written, result: Any) -> None:
    if written.format is CheckFormat.text and not written.json:
        from headscope.render.console import plain_text
        from headscope.render.verification import verification_screen, verification_verdict

        screen = verification_verdict(result) if written.quiet else verification_screen(result)
        if written.output is None:
            print_screen(screen)
        else:
            write_file(written.output, plain_text(screen))
        return
    text = _text(written.kind, result)
    if written.output is None:
        write_stdout(text)
    else:
        write_file(written.output, text)


def _text(kind: str, result: Any) -> str:
    if kind == "json":
        from headscope.render.document import json_text

        return json_text(result.to_dict())
    from headscope.checks import RULES
    from headscope.render.ci import FORMATS
    from headscope.render.verification import as_check

    return FORMATS[kind]([as_check(result)], tuple((name, RULES[name].title) for name in result.rules))
