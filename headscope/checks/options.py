"""The options on rules, labeled data and what is judged: those of `check` and `scan`."""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypedDict

from headscope.shell.options.checkpoint import AnyPath, CachedOptions, ModuleOptions
from headscope.shell.options.option import DeviceName, Option, ProfileName

if TYPE_CHECKING:
    from headscope.checks.rules import Ignore
    from headscope.core.facts import Severity
    from headscope.shell.options.option import SeverityName

_rules = partial(Option, panel="Rules")
_data = partial(Option, panel="Data")


class ProfileOption(TypedDict, total=False):
    """Option for what a model is judged for."""

    profile: Annotated[
        ProfileName | None,
        Option(
            "Use of the model: `training` or `inference` (default: inference if its head is stored).",
            in_python="Otherwise, and for a model in memory, training.",
            metavar="PROFILE",
            flags="--for",
            is_main=True,
        ),
    ]


class RuleOptions(TypedDict, total=False):
    """Options for the rules that run and what fails."""

    select: Annotated[
        str | Iterable[str],
        _rules(
            "Rules to run (default: all), by ID, name or the beginning of an ID: `HS101,HS3`.",
            (),
            metavar="IDS",
            completes="rules",
        ),
    ]
    ignore: Annotated[
        "str | Iterable[str | Ignore]",
        _rules(
            "Rules whose findings don't fail the result, by ID or name.",
            (),
            in_python="An `Ignore` can also have a reason, a last day and a pattern of models.",
            metavar="IDS",
            completes="rules",
            typed=str | None,
        ),
    ]
    fail_on: Annotated[
        "Severity | SeverityName",
        _rules(
            "Lowest severity that fails: `error` (default), `warning` or `note`.",
            "error",
            metavar="SEVERITY",
            is_main=True,
            completes="severity",
            typed=str | None,
            typed_default=None,  # a project's settings hold where the option isn't given
        ),
    ]


class LabeledOptions(TypedDict, total=False):
    """Options for labeled data and the column of its labels."""

    data: Annotated[
        AnyPath | None,
        _data(
            "Labeled data: a csv, tsv, jsonl or parquet file, or a folder that `datasets` saved.",
            metavar="FILE",
            is_main=True,
        ),
    ]
    label_column: Annotated[
        str | Iterable[str] | None,
        _data(
            "The column of the labels; several if each holds 0 and 1 for one class.",
            metavar="COLUMN",
            is_main=True,
            is_repeatable=True,
        ),
    ]


class TextColumnOptions(TypedDict, total=False):
    """Options for the place of the texts in a data set."""

    text_column: Annotated[
        str | Iterable[str] | None,
        _data("The column of the texts; two for pairs.", metavar="COLUMN", is_main=True, is_repeatable=True),
    ]
    split: Annotated[str | None, _data("The split of a folder that holds several.", metavar="NAME")]


class DataOptions(LabeledOptions, TextColumnOptions, total=False):
    """Options for labeled data."""


class PredictOptions(DataOptions, total=False):
    """Options for labeled data on which the weights of a checkpoint can be run."""

    predict: Annotated[
        int | None,
        _data(
            "Number of rows to predict with the real weights, to test the class order.",
            in_python="For a checkpoint only.",
            metavar="N",
        ),
    ]
    device: Annotated[
        DeviceName | None,
        _data(
            "Where to predict: `cpu` (default), `cuda`, `cuda:0` or `mps`.",
            in_python="For a checkpoint only.",
            in_terminal="Also for --run.",
            metavar="DEVICE",
            typed=str | None,
        ),
    ]


class CheckpointGate(CachedOptions, total=False):
    """Options of `check` for a checkpoint that the command line has for several models."""

    no_values: Annotated[
        bool,
        _rules(
            "Don't read the base model's values, which a check for inference reads from local files.",
            in_python="For a checkpoint only.",
        ),
    ]
    run: Annotated[
        bool | None,
        _rules(
            "Load the model and call it (default: if a local checkpoint fits into half of the free memory).",
            in_python="True even for a checkpoint on the Hub, which is downloaded, or a large one; False never.",
            flags="--run/--no-run",
            is_main=True,
        ),
    ]
    engine: Annotated[
        str | None,
        _rules(
            "Also check for this inference engine, such as `vllm` or `vllm@0.33.0` (rules HS9xx).",
            in_python="For a checkpoint only.",
            metavar="NAME",
            completes="engine",
        ),
    ]


class RunCheckpoint(CheckpointGate, total=False):
    """Options of `check` for a checkpoint and its run."""

    run_device: Annotated[str, Option("Where `run` runs: `cpu`, `cuda`, `cuda:0` or `mps`.", "cpu")]


class CheckpointCheck(RuleOptions, PredictOptions, RunCheckpoint, total=False):
    """Options of `check` for a checkpoint."""


class ModuleCheck(RuleOptions, DataOptions, ModuleOptions, total=False):
    """Options of `check` for a model in memory."""


class CheckOptions(CheckpointCheck, ModuleCheck, total=False):
    """Options of `check`."""
