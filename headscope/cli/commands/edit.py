"""`headscope edit MODEL -o DIR`."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from headscope.cli.commands.check import Split, TextColumns
from headscope.cli.options import JsonAlone, ModelClass, Pages, Quiet, TrustRemoteCode, Writes, option
from headscope.cli.output import write_report
from headscope.cli.progress import telling_progress
from headscope.errors import ExitCode

_CLASSES, _SCORES, _LABELED, _CONFIG, _RESULT = "Classes", "Scores", "Labeled data", "Configuration", "Result"
Several = list[str] | None


@dataclass(frozen=True)
class LabelChangeOptions:
    """Changes of the classes, in the order in which they are applied."""

    labels: Annotated[
        str | None, option("--labels", "Names of all classes, in the order of the scores.", "A,B,C", panel=_CLASSES)
    ] = None
    rename: Annotated[Several, option("--rename", "Rename a class.", "OLD=NEW", panel=_CLASSES)] = None
    drop: Annotated[Several, option("--drop", "Leave a class out.", "NAME", panel=_CLASSES)] = None
    keep: Annotated[str | None, option("--keep", "Keep only these classes.", "A,B,C", panel=_CLASSES)] = None
    merge: Annotated[
        Several, option("--merge", "Merge classes into one: the mean of their rows.", "A+B=C", panel=_CLASSES)
    ] = None
    add: Annotated[
        Several,
        option(
            "--add",
            "Add a class; its row is zero (default), mean, random or copy:NAME.",
            "NAME[=INIT]",
            panel=_CLASSES,
        ),
    ] = None
    order: Annotated[str | None, option("--order", "All classes in their new order.", "A,B,C", panel=_CLASSES)] = None
    order_from: Annotated[
        str | None,
        option("--order-from", "The order of the classes in labeled data (--label-column).", "FILE", panel=_CLASSES),
    ] = None
    labels_file: Annotated[
        Path | None,
        option("--labels-file", "A JSON file with these changes; a list is the order.", "FILE", panel=_CLASSES),
    ] = None


@dataclass(frozen=True)
class ScoreChangeOptions:
    """Changes of the scores."""

    bias: Annotated[Several, option("--bias", "Add to the logit of a class.", "NAME=X", panel=_SCORES)] = None
    threshold: Annotated[
        Several, option("--threshold", "Choose a class from this probability on.", "NAME=P", panel=_SCORES)
    ] = None
    temperature: Annotated[float, option("--temperature", "Divide all logits by T.", "T", panel=_SCORES)] = 1.0
    seed: Annotated[int, option("--seed", "Seed of random rows, and of a fit.", "N", panel=_SCORES)] = 0


class FitChoice(StrEnum):
    """Fits to labeled texts."""

    temperature = "temperature"
    thresholds = "thresholds"


@dataclass(frozen=True)
class FitOptions:
    """Options for a fit and its labeled texts."""

    fit: Annotated[
        FitChoice | None,
        option("--fit", "Fit a temperature or thresholds to labeled texts, and fold it in.", panel=_SCORES),
    ] = None
    data: Annotated[
        str | None,
        option("--data", "Labeled texts: csv, tsv, jsonl, parquet, or a saved dataset.", "FILE", panel=_LABELED),
    ] = None
    text_column: TextColumns = None
    label_column: Annotated[
        Several,
        option("--label-column", "Column of the labels; repeat it for columns of 0 and 1.", "COLUMN", panel=_LABELED),
    ] = None
    split: Split = None
    limit: Annotated[int, option("--limit", "Largest number of texts to run.", "N", panel=_LABELED)] = 2000
    device: Annotated[str, option("--device", "Where the texts run: cpu, cuda, ...", "DEVICE", panel=_LABELED)] = "cpu"

    def keywords(self) -> dict[str, Any]:
        """Gives the keyword arguments of the api."""
        return vars(self) | {"fit": None if self.fit is None else self.fit.value}


@dataclass(frozen=True)
class ConfigChangeOptions:
    """Changes of config.json."""

    pad_token_id: Annotated[int | None, option("--pad-token-id", "The token that pads texts.", "ID", panel=_CONFIG)] = (
        None
    )
    dtype: Annotated[
        str | None,
        option("--dtype", "Number format of the last layer: float32, bfloat16 or float16.", "TYPE", panel=_CONFIG),
    ] = None
    architecture: Annotated[
        str | None, option("--architecture", "The class that config.json names.", "CLASS", panel=_CONFIG)
    ] = None
    problem_type: Annotated[
        str | None,
        option(
            "--problem-type",
            "single_label_classification, multi_label_classification or regression.",
            "TYPE",
            panel=_CONFIG,
        ),
    ] = None


@dataclass(frozen=True)
class ResultOptions:
    """Options for writing and showing the result."""

    output: Annotated[
        Path | None, option("-o --output", "The folder to write.", "DIR", panel=_RESULT), Writes.FOLDER
    ] = None
    merge_adapter: Annotated[
        bool, option("--merge-adapter", "MODEL is an adapter: merge it into its base model first.", panel=_RESULT)
    ] = False
    adapter_head: Annotated[
        str | None,
        option(
            "--adapter-head", "Write the head of this checkpoint into the adapter MODEL.", "CHECKPOINT", panel=_RESULT
        ),
    ] = None
    in_place: Annotated[
        bool, option("--in-place", "Replace the checkpoint; it's kept as NAME.before-edit.", panel=_RESULT)
    ] = False
    link: Annotated[bool, option("--link", "Hard-link weight files that don't change.", panel=_RESULT)] = False
    dry_run: Annotated[bool, option("--dry-run", "Show the change; write nothing.", panel=_RESULT)] = False
    text: Annotated[
        Several, option("--text", "A text that the proof runs through both models.", "TEXT", panel=_RESULT)
    ] = None
    json: JsonAlone = False
    quiet: Quiet = False


def edit_command(  # noqa: PLR0917  Typer passes every option by name
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="The folder of a checkpoint, or a Hub ID in the local cache.", show_default=False
        ),
    ],
    labels: LabelChangeOptions,
    scores: ScoreChangeOptions,
    fit: FitOptions,
    config: ConfigChangeOptions,
    result: ResultOptions,
    model_class: ModelClass = None,
    trust_remote_code: TrustRemoteCode = False,
) -> int:
    """Write a changed copy: other classes, thresholds, settings. Proves what changes (exit code 1: refused)."""
    from headscope.facts.results.edit import EditVerdict
    from headscope.render.screens.edit import edit_screen, edit_verdict

    with telling_progress(result.quiet) as tell:
        from headscope import api

        found = api.edit(
            model, result.output, model_class=model_class, trust_remote_code=trust_remote_code, texts=result.text,
            link=result.link, in_place=result.in_place, dry_run=result.dry_run, progress=tell,
            merge_adapter=result.merge_adapter, adapter_head=result.adapter_head, **vars(config),
            **_label_keywords(labels), **_score_keywords(scores), **fit.keywords(),
        )  # fmt: skip
    write_report(
        Pages(json=result.json),
        lambda: edit_verdict(found) if result.quiet else edit_screen(found),
        found.to_dict,
    )
    return ExitCode.FINDINGS if found.verdict is EditVerdict.REFUSED else ExitCode.OK


def _label_keywords(given: LabelChangeOptions) -> dict[str, Any]:
    from headscope.editing.plan import read_additions, read_merges, read_pairs

    return {
        "rename": read_pairs(given.rename, "--rename"),
        "drop": given.drop,
        "keep": given.keep,
        "merge": read_merges(given.merge),
        "add": read_additions(given.add),
        "order": given.order,
        "order_from": given.order_from,
        "labels": given.labels,
        "labels_file": given.labels_file,
    }


def _score_keywords(given: ScoreChangeOptions) -> dict[str, Any]:
    from headscope.editing.plan import read_pairs

    return {
        "bias": read_pairs(given.bias, "--bias"),
        "threshold": read_pairs(given.threshold, "--threshold"),
        "temperature": given.temperature,
        "seed": given.seed,
    }
