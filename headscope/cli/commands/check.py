"""`headscope check MODEL... --for training|inference`."""

from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headscope.cli.completion import complete_checkpoint, complete_engine, complete_rules, complete_severity
from headscope.cli.failure import report_failure
from headscope.cli.options import OutputFile, Quiet, Reach, Wanted, Writes, option
from headscope.cli.output import write_file, write_screen, write_stderr, write_text
from headscope.cli.progress import telling_progress
from headscope.errors import ExitCode, HeadscopeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headscope.api.many.gate import Gate, GateResult
    from headscope.examination.evidence.labeled import DataRequest
    from headscope.facts.results.check import CheckResult
    from headscope.facts.results.verification import VerifyResult

_RULES = "Rules"
_LABELED = "Labeled data"
_OUTPUT = "Output"
_FORMATS_WITH_FAILURES = ("text", "json")
"""Formats with a separate form for failures."""


def rules_option(name: str, help: str) -> Any:
    """Makes an option that takes a list of rules."""
    return option(name, help, "IDS", panel=_RULES, autocompletion=complete_rules)


class CheckFormat(str, Enum):  # noqa: UP042 - StrEnum shows its members differently in Typer's help
    """Formats of the results."""

    text = "text"
    json = "json"
    github = "github"
    junit = "junit"
    sarif = "sarif"
    markdown = "markdown"


class ProfileChoice(str, Enum):  # noqa: UP042
    """Purposes that a model is checked for."""

    training = "training"
    inference = "inference"


FailOn = Annotated[
    str | None,
    option(
        "--fail-on",
        "Lowest severity that fails: error (default), warning or note.",
        "SEVERITY",
        panel=_RULES,
        autocompletion=complete_severity,
    ),
]
Select = Annotated[str | None, rules_option("--select", "Run only these rules: HS101,HS3 or head-new.")]
IgnoreRules = Annotated[str | None, rules_option("--ignore", "Rules whose findings don't fail the check.")]


@dataclass(frozen=True)
class Rules:
    """Options for the rules: which run, what fails, and what they may do."""

    profile: Annotated[
        ProfileChoice | None,
        option("--for", "training or inference (default: inference if the checkpoint gives its head).", "PROFILE"),
    ] = None
    fail_on: FailOn = None
    select: Select = None
    ignore: IgnoreRules = None
    baseline: Annotated[
        Path | None, option("--baseline", "Ignore the findings recorded in FILE.", "FILE", panel=_RULES)
    ] = None
    write_baseline: Annotated[
        Path | None,
        option("--write-baseline", "Record the findings in FILE, for --baseline.", "FILE", panel=_RULES),
        Writes.UPDATE,
    ] = None
    no_numbers: Annotated[
        bool,
        option(
            "--no-numbers",
            "Don't read the base model's numbers (read with --for inference, from local files).",
            panel=_RULES,
        ),
    ] = False
    run: Annotated[
        bool | None,
        option(
            "--run/--no-run",
            "Load the model and call it (default: if a local checkpoint fits into half of the free memory). In CI, say "
            "--run: then a run that can't be done exits with 3.",
            panel=_RULES,
        ),
    ] = None
    engine: Annotated[
        str | None,
        option(
            "--engine",
            "Also check for this inference engine, such as vllm or vllm@0.33.0 (rules HS9xx).",
            "NAME",
            panel=_RULES,
            autocompletion=complete_engine,
        ),
    ] = None


TextColumns = Annotated[
    list[str] | None, option("--text-column", "Column of the texts; repeat it for pairs.", "COLUMN", panel=_LABELED)
]
Split = Annotated[str | None, option("--split", "Split of a saved dataset.", "NAME", panel=_LABELED)]


@dataclass(frozen=True)
class LabeledData:
    """Options for labeled data to compare with the classes."""

    data: Annotated[
        str | None,
        option(
            "--data",
            "Compare the classes with labeled data: csv, tsv, jsonl, parquet, or a folder that `datasets` saved.",
            "FILE",
            panel=_LABELED,
        ),
    ] = None
    label_column: Annotated[
        list[str] | None,
        option(
            "--label-column",
            "Column of the labels; repeat it if each class has a column of 0 and 1.",
            "COLUMN",
            panel=_LABELED,
        ),
    ] = None
    text_column: TextColumns = None
    split: Split = None
    predict: Annotated[
        int | None,
        option("--predict", "Load the weights and predict N rows to test the class order.", "N", panel=_LABELED),
    ] = None
    device: Annotated[
        str | None, option("--device", "Device for the run and for --predict (default: cpu).", "DEVICE", panel=_LABELED)
    ] = None

    def request(self) -> "DataRequest | None":
        """Makes the request for labeled data; None if no option was given. Raises UsageError for invalid options."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        given["device"] = None if self.predict is None else self.device  # otherwise it is that of the run alone
        if not any(given.values()):
            return None
        from headscope.api.checking import data_request

        return data_request(**given)


@dataclass(frozen=True)
class Written:
    """Format and file of the results."""

    format: Annotated[
        CheckFormat,
        option("--format", "Output format: text, json, github, junit, sarif or markdown.", "FORMAT", panel=_OUTPUT),
    ] = CheckFormat.text
    json: Annotated[bool, option("--json", "Short for --format json.", panel=_OUTPUT)] = False
    output: OutputFile = None
    quiet: Quiet = False
    details: Annotated[
        bool, option("--details", "Show each message in full, and the skipped rules.", panel=_OUTPUT)
    ] = False

    @property
    def kind(self) -> str:
        """Name of the format."""
        return "json" if self.json else self.format.value


def check_command(  # noqa: PLR0917  Typer passes every option by name
    wanted: Wanted,
    reach: Reach,
    rules: Rules,
    labeled: LabeledData,
    written: Written,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="One or more models, as for inspect (default: the models in pyproject.toml).",
            show_default=False,
            autocompletion=complete_checkpoint,
        ),
    ] = None,
) -> int:
    """Gate a pipeline: findings with remedies, and an exit code (1 failed, 3 not determined)."""
    options = (
        wanted.keywords()
        | reach.keywords()
        | {
            "data": labeled.request(),
            "no_numbers": rules.no_numbers,
            "engine": rules.engine,
            "run": rules.run,
            "run_device": labeled.device or "cpu",
        }
    )
    with telling_progress(written.quiet or written.kind != "text") as tell:
        gate = _read_gate_options(rules)
        from headscope.outputs import check_output  # slow to import, and seldom needed

        check_output(written.output, read=gate.read)
        gated = _run_models(models or _project_models(gate), gate, tell, written.kind, options)
    if rules.write_baseline is not None:
        _keep_baseline(rules.write_baseline, gated.results, is_told=not written.quiet)
    _write_results(written, gated)
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
    from headscope.api.checking import baseline_text
    from headscope.facts.counting import counted
    from headscope.render.text.safe import safe

    write_file(file, baseline_text(results), quiet=True)
    if is_told:
        found = counted(sum(len(result.findings) for result in results), "finding")
        write_stderr(f"baseline: {found} of {counted(len(results), 'model')} written to {safe(str(file))}\n")


def _run_models(
    models: "Sequence[str]", gate: "Gate", tell: "Callable[[str], None]", kind: str, options: dict[str, Any]
) -> "GateResult":
    """Checks the models; in a pipeline's format, a model that can't be examined is a result too."""
    from headscope.api.many.gate import run_gate, unread_gate

    try:
        return run_gate(tuple(models), gate, tell, **options)
    except UsageError:
        raise
    except HeadscopeError as err:
        if kind in _FORMATS_WITH_FAILURES:
            raise
        # SARIF, JUnit and the others must parse even if the only model can't be examined.
        report_failure(err, as_json=False)
        return unread_gate(models[0], gate, err)


def _read_gate_options(rules: Rules) -> "Gate":
    """Reads the gate from the options, and from pyproject.toml in the current folder or above it."""
    from headscope.api.options import read_rules

    selected = None if rules.select is None else read_rules(rules.select, "--select")
    ignored = None if rules.ignore is None else read_rules(rules.ignore, "--ignore")
    from headscope.api.many.gate import read_gate

    return read_gate(
        Path.cwd(),
        profile=rules.profile.value if rules.profile else None,
        select_rules=selected,
        ignore=ignored,
        fail_on=rules.fail_on,
        baseline=rules.baseline,
    )


def _write_results(written: Written, gated: "GateResult") -> None:
    kind = written.kind
    if kind == "text":
        from headscope.render.screens.check import check_screen, check_verdicts

        full = check_screen(gated.results, gated.notes, details=written.details)
        write_screen(written.output, check_verdicts(gated.results) if written.quiet else full, quiet=written.quiet)
    else:
        write_text(written.output, _render_results(kind, gated), quiet=written.quiet)


def _render_results(kind: str, gated: "GateResult") -> str:
    if kind == "json":
        from headscope.render.text.document import check_document, json_text

        return json_text(check_document(gated.results))
    from headscope.render.pages.ci import CI_FORMATS

    return CI_FORMATS[kind](gated.results, gated.rules)


def exit_code(results: "Sequence[CheckResult | VerifyResult]") -> int:
    """Gives 1 if any model failed, 3 if any could not be determined, otherwise 0."""
    return exit_code_of(result.verdict.value for result in results)


def exit_code_of(names: "Iterable[str]") -> int:
    """Gives the exit code of verdicts, which are given by name."""
    from headscope.facts.results.check import Verdict, verdict_on_all

    codes = {Verdict.FAILED: ExitCode.FINDINGS, Verdict.NOT_DETERMINED: ExitCode.UNDETERMINED}
    return codes.get(verdict_on_all(map(Verdict, names)), ExitCode.OK)
