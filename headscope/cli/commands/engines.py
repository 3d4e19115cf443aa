"""`headscope engines MODEL`."""

from typing import Annotated

from headscope.cli.completion import complete_engine
from headscope.cli.options import Output, Source, option
from headscope.cli.output import write_report
from headscope.cli.progress import telling_progress
from headscope.errors import ExitCode, UsageError


def _known_engine(given: str | None) -> str | None:
    """Checks the name of an engine. Raises UsageError before anything heavy is imported."""
    if given is not None:
        from headscope.serving.cited import check_engine

        check_engine(given)
    return given


def engines_command(  # noqa: PLR0917  Typer passes every option by name
    source: Source,
    output: Output,
    engine: Annotated[
        str | None,
        option(
            "--engine",
            "One engine, such as vllm, or vllm@0.33.0 (default: all).",
            "NAME",
            callback=_known_engine,
            autocompletion=complete_engine,
        ),
    ] = None,
    run: Annotated[
        bool, option("--run", "Run the installed engines, or --engine, on a small random copy of the configuration.")
    ] = False,
    python: Annotated[
        str | None, option("--python", "The interpreter that has --engine, for --run, or for vllm alone.", "PATH")
    ] = None,
    details: Annotated[bool, option("--details", "Show where each row was read, precision, what is cut.")] = False,
) -> int:
    """Compare the heads that inference engines run with that of Transformers (exit code 1: different)."""
    with telling_progress(output.quiet) as tell:
        from headscope import api

        given = source.keywords()
        if given.pop("adapter") is not None:
            raise UsageError("the facts on engines don't cover PEFT adapters", "merge the adapter first")
        found = api.engines(source.model, engine=engine, run=run, python=python, progress=tell, **given)
    from headscope.facts.results.engines import EngineVerdict
    from headscope.render.screens.engines import engines_screen, engines_verdict

    write_report(
        output,
        lambda: engines_verdict(found) if output.quiet else engines_screen(found, details=details),
        found.to_dict,
    )
    codes = {EngineVerdict.SAME: ExitCode.OK, EngineVerdict.DIFFERENT: ExitCode.FINDINGS}
    return codes.get(found.verdict, ExitCode.UNDETERMINED)
