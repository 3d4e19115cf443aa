"""`headscope repair MODEL -o DIR`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from headscope.cli.options import JsonAlone, ModelClass, Pages, Quiet, TrustRemoteCode, Writes, option
from headscope.cli.output import write_report
from headscope.cli.progress import telling_progress
from headscope.errors import ExitCode

_LACKING, _RESULT = "What the checkpoint doesn't hold", "Result"


@dataclass(frozen=True)
class LackingOptions:
    """Options for what the checkpoint lacks, which only a person can know."""

    config: Annotated[
        str | None,
        option(
            "--config",
            "A folder, file or Hub ID with the config.json, or a folder with PEFT's adapter_config.json.",
            "FOLDER_OR_ID",
            panel=_LACKING,
        ),
    ] = None
    set: Annotated[
        list[str] | None,
        option("--set", "A setting of the training, such as lora_alpha=16.", "NAME=VALUE", panel=_LACKING),
    ] = None
    defaults: Annotated[
        bool, option("--defaults", "Settings that no shape tells are the class's defaults.", panel=_LACKING)
    ] = False
    take: Annotated[
        list[str] | None, option("--take", "The model that you mean: a prefix, file or folder.", "NAME", panel=_LACKING)
    ] = None
    labels: Annotated[
        str | None, option("--labels", "Class names, for a configuration that is written.", "A,B,C", panel=_LACKING)
    ] = None


@dataclass(frozen=True)
class RepairedOptions:
    """Options for writing and showing the result."""

    output: Annotated[Path, option("-o --output", "The folder to write.", "DIR", panel=_RESULT), Writes.FOLDER]
    link: Annotated[bool, option("--link", "Hard-link weight files that don't change.", panel=_RESULT)] = False
    dry_run: Annotated[bool, option("--dry-run", "Show the repair; write nothing.", panel=_RESULT)] = False
    json: JsonAlone = False
    quiet: Quiet = False


def repair_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The folder of a checkpoint.", show_default=False)],
    result: RepairedOptions,
    lacking: LackingOptions,
    model_class: ModelClass = None,
    trust_remote_code: TrustRemoteCode = False,
) -> int:
    """Write a copy that from_pretrained loads whole: what `inspect` prints as repair, done and proven."""
    from headscope.editing.plan import read_pairs
    from headscope.facts.results.repair import RepairVerdict
    from headscope.render.screens.repair import repair_screen, repair_verdict

    with telling_progress(result.quiet) as tell:
        from headscope import api

        found = api.repair(
            model, result.output, model_class=model_class, trust_remote_code=trust_remote_code, config=lacking.config,
            settings={name: _read_setting(text) for name, text in (read_pairs(lacking.set, "--set") or {}).items()},
            defaults=lacking.defaults, labels=lacking.labels, take=lacking.take, link=result.link,
            dry_run=result.dry_run, progress=tell,
        )  # fmt: skip
    write_report(
        Pages(json=result.json),
        lambda: repair_verdict(found) if result.quiet else repair_screen(found),
        found.to_dict,
    )
    failed = {RepairVerdict.REFUSED, RepairVerdict.INCOMPLETE}
    is_open = found.verdict is RepairVerdict.NOT_DETERMINED
    return ExitCode.UNDETERMINED if is_open else ExitCode.FINDINGS if found.verdict in failed else ExitCode.OK


def _read_setting(text: str) -> Any:
    """Reads a setting as JSON; what isn't JSON is a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
