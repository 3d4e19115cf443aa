"""`headscope check MODEL... --for training|inference`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from headscope.checks.options import CheckpointGate, PredictOptions, ProfileOption, RuleOptions
from headscope.errors import ExitCode, HeadscopeError, UsageError
from headscope.shell.arguments import Json, OutputFile, Quiet, details_option, format_option, models_argument
from headscope.shell.failure import report_failure
from headscope.shell.options.option import Option, Writes
from headscope.shell.output import write_file, write_screen, write_stderr, write_text
from headscope.shell.progress import telling_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headscope.checks.facts import CheckResult
    from headscope.checks.gate import Gate, GateResult
    from headscope.shared.loaded.facts import VerifyResult

_FORMATS_WITH_FAILURES = ("text", "json")
"""Formats with a separate form for failures."""


@dataclass(frozen=True)
class KnownFindings:
    """Options for known findings."""

    baseline: Annotated[Path | None, Option("Ignore the findings recorded in FILE.", metavar="FILE", panel="Rules")] = (
        None
    )
    write_baseline: Annotated[
        Path | None,
        Option("Record the findings in FILE, for --baseline.", metavar="FILE", panel="Rules", writes=Writes.UPDATE),
    ] = None


@dataclass(frozen=True)
class Written:
    """Format and file of the results."""

    format: Annotated[
        Literal["text", "json", "github", "junit", "sarif", "markdown"],
        format_option("text (default), json, github, junit, sarif or markdown."),
    ] = "text"
    json: Json = False
    output: OutputFile = None
    quiet: Quiet = False
    details: Annotated[bool, details_option("full messages and the skipped rules.")] = False

    @property
    def kind(self) -> str:
        """Name of the format."""
        return "json" if self.json else self.format


def check_command(  # noqa: PLR0917  Typer passes every option by name
    options: CheckpointGate,
    profile: ProfileOption,
    rules: RuleOptions,
    known: KnownFindings,
    data: PredictOptions,
    written: Written,
    models: Annotated[
        list[str] | None,
        models_argument("Models, as for inspect (default: those in pyproject.toml)."),
    ] = None,
) -> int:
    """Gate a pipeline: findings with remedies, and an exit code (1 failed, 3 not determined)."""
    # Without --predict, the device is that of the run alone.
    labeled = {name: value for name, value in data.items() if name != "device" or data.get("predict") is not None}
    given = {**options, "run_device": data.get("device", "cpu")}
    with telling_progress(written.quiet or written.kind != "text") as tell:
        from headscope.checks.run import data_request

        given["data"] = data_request(**cast("PredictOptions", labeled))
        gate = _read_gate_options(profile, rules, known)
        from headscope.core.outputs import check_output  # slow to import, and seldom needed

        check_output(written.output, read=gate.read)
        gated = _run_models(models or _project_models(gate), gate, tell, written.kind, given)
    if known.write_baseline is not None:
        _keep_baseline(known.write_baseline, gated.results, is_told=not written.quiet)
    _write_results(written, gated, gate)
    return exit_code(gated.results)


def _project_models(gate: "Gate") -> "Sequence[str]":
    """Gives the models of `[tool.headscope]`. Raises UsageError without any."""
    if not gate.models:
        raise UsageError(
            "check needs at least one model",
            'name a MODEL, or set models = ["..."] in [tool.headscope] of pyproject.toml',
        )
    return gate.models


def _keep_baseline(file: Path, results: "Sequence[CheckResult]", *, is_told: bool) -> None:
    """Writes the findings to a baseline and says how many there are."""
    from headscope.checks.run import baseline_text
    from headscope.core.facts.counting import counted
    from headscope.core.words.safe import safe

    write_file(file, baseline_text(results), quiet=True)
    if is_told:
        found = counted(sum(len(result.findings) for result in results), "finding")
        write_stderr(f"baseline: {found} of {counted(len(results), 'model')} written to {safe(str(file))}\n")


def _run_models(
    models: "Sequence[str]", gate: "Gate", tell: "Callable[[str], None]", kind: str, options: dict[str, Any]
) -> "GateResult":
    """Checks the models; in a pipeline's format, a model that can't be examined is a result too."""
    from headscope.checks.gate import GateResult, run_gate, unread_result

    try:
        return run_gate(tuple(models), gate, tell, **options)
    except UsageError:
        raise
    except HeadscopeError as err:
        if kind in _FORMATS_WITH_FAILURES:
            raise
        # SARIF, JUnit and the others must parse even if the only model can't be examined.
        report_failure(err, as_json=False)
        return GateResult((unread_result(models[0], gate, err),))


def _read_gate_options(profile: ProfileOption, rules: RuleOptions, known: KnownFindings) -> "Gate":
    """Reads the gate from the options, and from pyproject.toml in the current folder or above it."""
    from headscope.checks.given import read_rules

    named = {name: read_rules(rules[name], f"--{name}") for name in ("select", "ignore") if name in rules}
    from headscope.checks.gate import read_gate

    return read_gate(
        Path.cwd(),
        profile=profile.get("profile"),
        select_rules=named.get("select"),
        ignore=named.get("ignore"),
        fail_on=rules.get("fail_on"),
        baseline=known.baseline,
    )


def _write_results(written: Written, gated: "GateResult", gate: "Gate") -> None:
    kind = written.kind
    if kind == "json":
        from headscope.checks.screen import check_document
        from headscope.core.words.document import json_text

        write_text(written.output, json_text(check_document(gated.results)), quiet=written.quiet)
    elif kind == "text":
        from headscope.checks.screen import check_screen, check_verdicts

        full = check_screen(gated.results, gated.notes, details=written.details)
        write_screen(written.output, check_verdicts(gated.results) if written.quiet else full, quiet=written.quiet)
    else:
        from headscope.checks.ci import CI_FORMATS

        titles = [(rule.id, rule.title) for rule in gate.selection.rules]
        write_text(written.output, CI_FORMATS[kind](gated.results, titles), quiet=written.quiet)


def exit_code(results: "Sequence[CheckResult | VerifyResult]") -> int:
    """Gives 1 if any model failed, 3 if any could not be determined, otherwise 0."""
    return exit_code_of(result.verdict.value for result in results)


def exit_code_of(names: "Iterable[str]") -> int:
    """Gives the exit code of verdicts, which are given by name."""
    from headscope.core.facts.verdict import Verdict, verdict_on_all

    codes = {Verdict.FAILED: ExitCode.FINDINGS, Verdict.NOT_DETERMINED: ExitCode.UNDETERMINED}
    return codes.get(verdict_on_all(map(Verdict, names)), ExitCode.OK)
