"""`headscope engines MODEL`."""

from typing import Annotated

from headscope.errors import ExitCode, UsageError
from headscope.shell.arguments import Model, Output, details_option
from headscope.shell.options.checkpoint import AdapterOption
from headscope.shell.output import write_report
from headscope.shell.progress import telling_progress
from headscope.slices.engines.options import EnginesOptions


def engines_command(
    model: Model,
    options: EnginesOptions,
    adapter: AdapterOption,
    output: Output,
    details: Annotated[bool, details_option("where each row was read, precision, what is cut.")] = False,
) -> int:
    """Compare the heads that inference engines run with that of Transformers (exit code 1: different)."""
    if adapter:
        raise UsageError("the facts on engines don't cover PEFT adapters", "merge the adapter first")
    with telling_progress(output.quiet) as tell:
        from headscope.slices.engines.run import engines

        found = engines(model, progress=tell, **options)
    from headscope.shared.serving.engine_facts import EngineVerdict
    from headscope.slices.engines.screen import engines_screen, engines_verdict

    write_report(
        output,
        lambda: engines_verdict(found) if output.quiet else engines_screen(found, details=details),
        found.to_dict,
    )
    codes = {EngineVerdict.SAME: ExitCode.OK, EngineVerdict.DIFFERENT: ExitCode.FINDINGS}
    return codes.get(found.verdict, ExitCode.UNDETERMINED)
