"""`headscope engines MODEL`."""

from typing import TYPE_CHECKING, Annotated

from headscope.errors import ExitCode, UsageError
from headscope.shell.arguments import Model, Output, details_option
from headscope.shell.options.checkpoint import AdapterOption
from headscope.shell.options.option import Option
from headscope.shell.output import write_report
from headscope.shell.progress import telling_progress
from headscope.slices.engines.options import EnginesOptions

if TYPE_CHECKING:
    from headscope.shared.serving.engine_facts import EnginesReport

_CODES = {"same": ExitCode.OK, "different": ExitCode.FINDINGS, "not_determined": ExitCode.UNDETERMINED}


def engines_command(  # noqa: PLR0917  Typer passes every option by name
    model: Model,
    options: EnginesOptions,
    adapter: AdapterOption,
    output: Output,
    details: Annotated[bool, details_option("where each row was read, precision, what is cut.")] = False,
    strict: Annotated[
        bool,
        Option(
            "Exit with 1 if any engine of the list differs, even in its activation or in reading padding.", is_main=True
        ),
    ] = False,
) -> int:
    """Compare the heads of engines with that of Transformers (exit code 1: none is the same, or --engine's differs)."""
    if adapter:
        raise UsageError("the facts on engines don't cover PEFT adapters", "merge the adapter first")
    with telling_progress(output.quiet) as tell:
        from headscope.slices.engines.run import engines

        found = engines(model, progress=tell, **options)
    from headscope.slices.engines.screen import engines_screen, engines_verdict

    write_report(
        output,
        lambda: engines_verdict(found) if output.quiet else engines_screen(found, details=details),
        found.to_dict,
    )
    return _exit_code(found, strict=strict)


def _exit_code(found: "EnginesReport", *, strict: bool) -> ExitCode:
    """Gives the exit code: another activation alone fails only with `strict`, and so does a part of a list."""
    one = found.engines[0] if found.is_one else None
    if strict and any(item.is_doubtful for item in found.engines):
        return ExitCode.FINDINGS
    if one is not None and not one.is_fault:
        return ExitCode.UNDETERMINED if one.same_head is None or one.same_activation is None else ExitCode.OK
    return _CODES[found.verdict]
