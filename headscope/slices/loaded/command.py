"""`headscope verify MODEL`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from headscope.checks.command import Written, exit_code
from headscope.errors import ExitCode, UsageError
from headscope.shell.arguments import model_argument
from headscope.shell.options.checkpoint import PlaceOptions, ReportCacheOption
from headscope.shell.options.option import Option, Writes
from headscope.shell.output import tell_written, write_screen, write_text
from headscope.shell.parameters import stray_words
from headscope.shell.progress import telling_progress
from headscope.slices.loaded.options import (
    ASKED_OPTIONS,
    CardOptions,
    ComparedOptions,
    GivenScoresOption,
    ScoringOptions,
    ServedOptions,
    VerifyOptions,
)

if TYPE_CHECKING:
    from headscope.shared.loaded.facts import VerifyResult
    from headscope.shared.serving.served_facts import ServedReport

BOTH = "sentence-transformers"
"""Name of both a loader and an engine."""


@dataclass(frozen=True)
class CardFiles:
    """Options for cards."""

    write_card: Annotated[
        Path | None,
        Option(
            "Write reference scores of MODEL for others to FILE.",
            metavar="FILE",
            panel="A server or an engine",
            is_main=True,
            writes=Writes.FILE,
        ),
    ] = None
    card: Annotated[
        Path | None,
        Option(
            "Compare with such reference scores instead of MODEL.",
            metavar="FILE",
            panel="A server or an engine",
            is_main=True,
        ),
    ] = None


@dataclass(frozen=True)
class ComparedWith:
    """Options for what MODEL is compared with."""

    against: Annotated[
        str | None,
        Option(
            "The checkpoint to compare with (default: MODEL). --adapter belongs to it.",
            metavar="MODEL",
            completes="checkpoint",
        ),
    ] = None
    all: Annotated[bool, Option("Compare every tensor and buffer (the default).")] = False
    url: Annotated[
        str | None,
        Option(
            "Compare the scores of a server, by its address.",
            metavar="URL",
            panel="A server or an engine",
            is_main=True,
        ),
    ] = None


def verify_command(  # noqa: PLR0917  Typer passes every option by name
    options: VerifyOptions,
    compared: ComparedWith,
    scoring: ScoringOptions,
    cards: CardFiles,
    scores: GivenScoresOption,
    cached: ReportCacheOption,
    written: Written,
    model: Annotated[str | None, model_argument("weight file, or PEFT adapter")] = None,
) -> int:
    """Compare a loaded model with its checkpoint's bytes, or a server's scores."""
    if cards.card is not None or cards.write_card is not None or scores:
        return _use_card(model, cards, {**options, **vars(compared), **scoring, **scores}, written)
    if model is None:
        raise UsageError("verify needs a model", "name a MODEL, or a card with --card FILE")
    engine = _engine_of(options.get("loader"), scoring)
    if compared.url is not None or engine is not None:
        return _verify_served(model, engine, options, compared, scoring, written)
    alone = stray_words(scoring, ScoringOptions)
    if alone:
        raise UsageError(f"{alone} is for a running server or an engine", "add --url URL or --with ENGINE")
    if options.get("head") and compared.all:
        raise UsageError("--head asks for a part and --all for the whole model", "give one of them")
    with telling_progress(written.quiet or written.kind != "text") as tell:
        from headscope.slices.loaded.run import verify

        result = verify(model, compared.against, progress=tell, **options)
    _write_result(written, result)
    return exit_code([result])


def _use_card(model: str | None, cards: CardFiles, options: dict[str, Any], written: Written) -> int:
    """Writes a card of a model, or compares with one. Raises UsageError for options that don't belong to this."""
    what, kind = ("--card", ComparedOptions) if cards.write_card is None else ("--write-card", CardOptions)
    if cards.card is None and cards.write_card is None:
        raise UsageError("--scores needs a card to compare with", "add --card FILE")
    if cards.card is not None and (model is not None or cards.write_card is not None):
        raise UsageError("--card stands for a model, and another was given", "leave out MODEL and --write-card")
    if cards.write_card is not None and model is None:
        raise UsageError("--write-card needs the model whose scores it writes", "name a MODEL")
    known = set(kind.__annotations__) | ({"url"} if cards.card is not None else set())
    if options.get("scores") is not None and options.get("url") is None:  # both are refused together
        what, known = "--scores", known - ASKED_OPTIONS
    others = {name: value for name, value in options.items() if name not in known}
    alone = stray_words(others, VerifyOptions, ComparedWith, ScoringOptions, GivenScoresOption)
    if alone:
        raise UsageError(f"{alone} doesn't go with {what}", "leave it out")
    if written.kind not in ("text", "json"):
        raise UsageError(f"--format {written.kind} shows findings, and {what} gives none", "use text or json")
    if cards.write_card is not None and (written.output is not None or written.kind != "text"):
        raise UsageError("--write-card writes the card alone, and no report", "leave out --output, --json and --format")
    given: dict[str, Any] = {name: options[name] for name in known & options.keys()}
    with telling_progress(written.quiet or written.kind != "text") as tell:
        from headscope.slices.loaded.cards import verify_card, write_card

        if cards.write_card is not None:
            write_card(str(model), cards.write_card, progress=tell, **given)
            if not written.quiet:
                tell_written(str(cards.write_card))
            return ExitCode.OK
        result = verify_card(str(cards.card), progress=tell, **given)
    return _write_served(written, result)


def _engine_of(loader: str | None, scoring: ScoringOptions) -> str | None:
    """Gives the engine that --with names; None if it names a loader."""
    # A name of both is the loader, which compares tensors, unless there are texts to score.
    from headscope.shared.serving.running.process import runner_names

    if loader not in runner_names() or (loader == BOTH and not (scoring.get("text") or scoring.get("data"))):
        return None
    return loader


def _verify_served(  # noqa: PLR0917  what Typer passed
    model: str,
    engine: str | None,
    options: VerifyOptions,
    compared: ComparedWith,
    scoring: ScoringOptions,
    written: Written,
) -> int:
    """Compares scores. Raises UsageError for options that only the comparison of tensors has."""
    what = "--url" if engine is None else f"--with {engine}"
    place = {name: value for name, value in options.items() if name in PlaceOptions.__annotations__}
    shared = {*place, "url", *(["loader"] if engine else [])}
    others = {name: value for name, value in (options | vars(compared)).items() if name not in shared}
    given = stray_words(others, VerifyOptions, ComparedWith)
    if given:
        raise UsageError(f"{given} doesn't go with {what}", "leave it out")
    if engine is not None and compared.url is not None:
        raise UsageError(f"--url and {what} were given", "give one of them")
    if written.kind not in ("text", "json"):
        raise UsageError(f"--format {written.kind} shows findings, and {what} gives none", "use text or json")
    with telling_progress(written.quiet or written.kind != "text") as tell:
        from headscope.slices.loaded.server_verification import verify_served

        served = cast("ServedOptions", {**scoring, **place})
        result = verify_served(model, compared.url, engine=engine, progress=tell, **served)
    return _write_served(written, result)


def _write_served(written: Written, result: "ServedReport") -> int:
    """Writes the comparison of scores, and gives the exit code."""
    if written.kind == "json":
        from headscope.core.words.document import json_text

        write_text(written.output, json_text(result.to_dict()), quiet=written.quiet)
    else:
        from headscope.slices.loaded.served_screen import served_screen, served_verdict

        screen = served_verdict if written.quiet else served_screen
        write_screen(written.output, screen(result), quiet=written.quiet)
    codes = {True: ExitCode.OK, False: ExitCode.FINDINGS, None: ExitCode.UNDETERMINED}
    return codes[result.served.same]


def _write_result(written: Written, result: "VerifyResult") -> None:
    if written.kind == "text":
        from headscope.slices.loaded.screen import verification_screen, verification_verdict

        screen = verification_verdict if written.quiet else verification_screen
        write_screen(written.output, screen(result), quiet=written.quiet)
    else:
        write_text(written.output, _render_result(written.kind, result), quiet=written.quiet)


def _render_result(kind: str, result: "VerifyResult") -> str:
    if kind == "json":
        from headscope.core.words.document import json_text

        return json_text(result.to_dict())
    from headscope.checks.ci import CI_FORMATS
    from headscope.checks.rules import every_rule
    from headscope.slices.loaded.screen import as_check

    rules = every_rule()
    return CI_FORMATS[kind]([as_check(result)], tuple((name, rules[name].title) for name in result.rules))
