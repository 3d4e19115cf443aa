"""`headscope verify MODEL`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

from headscope.cli.commands.check import Written, exit_code, rule_names, rules_option
from headscope.cli.completion import complete_checkpoint, complete_severity
from headscope.cli.options import NumLabels, Reach, check_num_labels, model_argument, option
from headscope.cli.output import check_output, write_screen, write_text
from headscope.cli.progress import telling_progress
from headscope.errors import UsageError

if TYPE_CHECKING:
    from headscope.api import SeverityName
    from headscope.facts.results.verification import VerifyResult

_RULES = "Rules"
_EXAMPLE = "HS701,HS702"

WithWeights = Annotated[str, model_argument("weight file, or PEFT adapter")]
Select = Annotated[str | None, rules_option("--select", "Run only these rules.")]
IgnoreRules = Annotated[str | None, rules_option("--ignore", "Rules whose findings don't fail the verification.")]
FailOn = Annotated[
    str,
    option("--fail-on", "error, warning or note.", "SEVERITY", panel=_RULES, autocompletion=complete_severity),
]


@dataclass(frozen=True)
class Compare:
    """What loads the model, and what it is compared with."""

    loader: Annotated[
        str | None,
        option(
            "--with",
            "What loads MODEL: transformers, peft, sentence-transformers, trl, setfit, or MODULE:FUNCTION (default: "
            "peft for an adapter, otherwise transformers).",
            "LOADER",
        ),
    ] = None
    against: Annotated[
        str | None,
        option(
            "--against",
            "The checkpoint to compare with (default: MODEL). --adapter belongs to it.",
            "MODEL",
            autocompletion=complete_checkpoint,
        ),
    ] = None
    head: Annotated[bool, option("--head", "Compare only the tensors of the head and those of an adapter.")] = False
    all: Annotated[bool, option("--all", "Compare every tensor and buffer (the default).")] = False
    num_labels: NumLabels = None


@dataclass(frozen=True)
class Asked:
    """Which rules are run and what they count for."""

    select: Select = None
    ignore: IgnoreRules = None
    fail_on: FailOn = "error"


def verify_command(model: WithWeights, compare: Compare, reach: Reach, asked: Asked, written: Written) -> int:
    """Load a model for real and compare it with the stored bytes of its checkpoint."""
    check_output(written.output)
    check_num_labels(compare.num_labels, None)
    if compare.head and compare.all:
        raise UsageError("--head asks for a part and --all for the whole model", "give one of them")
    with telling_progress(written.quiet or written.kind != "text") as tell:
        from headscope import api

        result = api.verify(
            model,
            compare.against,
            loader=compare.loader,
            head=compare.head,
            num_labels=compare.num_labels,
            select=rule_names(asked.select, _EXAMPLE) or (),
            ignore=rule_names(asked.ignore, _EXAMPLE) or (),
            fail_on=cast("SeverityName", asked.fail_on),  # the api refuses what it doesn't know
            progress=tell,
            **reach.uncached(),
        )
    _write(written, result)
    return exit_code([result])


def _write(written: Written, result: "VerifyResult") -> None:
    if written.kind == "text":
        from headscope.render.screens.verification import verification_screen, verification_verdict

        screen = verification_verdict if written.quiet else verification_screen
        write_screen(written.output, screen(result), quiet=written.quiet)
    else:
        write_text(written.output, _written_result(written.kind, result), quiet=written.quiet)


def _written_result(kind: str, result: "VerifyResult") -> str:
    if kind == "json":
        from headscope.render.text.document import json_text

        return json_text(result.to_dict())
    from headscope.checks import RULES
    from headscope.render.pages.ci import FORMATS
    from headscope.render.screens.verification import as_check

    return FORMATS[kind]([as_check(result)], tuple((name, RULES[name].title) for name in result.rules))
