"""The options that commands share, in groups: a command takes a group as one parameter."""

import functools
import inspect
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from headscope.cli.completion import complete_checkpoint, complete_class, complete_model, complete_task
from headscope.errors import UsageError

_WHAT = "What to examine"
_WHERE = "Where it comes from"
_OUTPUT = "Output"


class Format(str, Enum):  # noqa: UP042 - StrEnum shows its members differently in Typer's help
    """Formats of a report."""

    text = "text"
    json = "json"


def _read_task(given: str | None) -> str | None:
    """Reads a task by any of its names. Raises UsageError before anything heavy is imported."""
    if given is None:
        return None
    from headscope.facts.heads.tasks import parse_task

    return parse_task(given).value


def _read_output_file(path: Path | None) -> Path | None:
    """Reads the file to write to; None for `-`, which means stdout."""
    return None if path == Path("-") else path


class Writes(Enum):
    """Marks an option whose value the command writes to; `with_option_groups` checks files."""

    FILE = "file"
    UPDATE = "update"  # a file that the command may read too
    FOLDER = "folder"  # new, empty, or headscope's own: what writes it checks this


def option(names: str, help: str, metavar: str | None = None, *, panel: str | None = None, **more: Any) -> Any:
    """Makes a command-line option under one or several names, for a field of a group."""
    return typer.Option(*names.split(), help=help, metavar=metavar, rich_help_panel=panel, **more)


def task_option(help: str, *, panel: str | None = None) -> Any:
    """Makes the option `--task`; each command has another help text for it."""
    return option("--task", help, "TASK", panel=panel, autocompletion=complete_task, callback=_read_task)


def model_argument(more: str, *, complete: Callable[..., list[str]] = complete_checkpoint) -> Any:
    """Makes the argument MODEL; `more` names the kinds of reference that only some commands take."""
    kinds = f"A Hub ID, id@revision, hf:// URI, Hub URL, folder, {more}."
    return typer.Argument(metavar="MODEL", help=kinds, show_default=False, autocompletion=complete)


Model = Annotated[
    str,
    model_argument(
        "weight file, PEFT adapter or snapshot file. Where no weights are needed, also a class such as "
        "BertForSequenceClassification",
        complete=complete_model,
    ),
]
NumLabels = Annotated[
    int | None, option("--num-labels", "Number of classes (default: from the config).", "N", panel=_WHAT)
]
Labels = Annotated[str | None, option("--labels", "Class names, in order.", "A,B,C", panel=_WHAT)]
TaskName = Annotated[
    str | None,
    task_option("The task, such as token-classification or ner (default: from the checkpoint).", panel=_WHAT),
]
ModelClass = Annotated[
    str | None,
    option(
        "--model-class",
        "A model class of Transformers (default: from the task), or your own, whose code runs: FILE.py:CLASS.",
        "CLASS",
        panel=_WHAT,
        autocompletion=complete_class,
    ),
]
Timeout = Annotated[
    float | None, option("--timeout", "Total time limit for Hub requests (default: 120).", "SECONDS", panel=_WHERE)
]
Revision = Annotated[str | None, option("--revision", "Branch, tag or commit on the Hub.", "REV", panel=_WHERE)]
Subfolder = Annotated[str | None, option("--subfolder", "Folder inside the repository.", "PATH", panel=_WHERE)]
Variant = Annotated[
    str | None, option("--variant", "Weight variant: fp16 means model.fp16.safetensors.", "NAME", panel=_WHERE)
]
CacheDir = Annotated[
    str | None, option("--cache-dir", "The Hub cache folder (default: HF_HUB_CACHE).", "PATH", panel=_WHERE)
]
Token = Annotated[
    str | None, option("--token", "Hub token for gated repositories; prefer setting HF_TOKEN.", "TOKEN", panel=_WHERE)
]
NoNetwork = Annotated[
    bool, option("--offline", "Make no network requests; use the cache and the bundled snapshots.", panel=_WHERE)
]
TrustRemoteCode = Annotated[
    bool, option("--trust-remote-code", "Allow model code that comes with the checkpoint to run.", panel=_WHAT)
]
Json = Annotated[bool, option("--json", "Short for --format json.", panel=_OUTPUT)]
JsonAlone = Annotated[bool, option("--json", "Write the report as JSON.", panel=_OUTPUT)]
OutputFile = Annotated[
    Path | None,
    option(
        "-o --output", "Write to FILE atomically; use - for stdout.", "FILE", panel=_OUTPUT, callback=_read_output_file
    ),
    Writes.FILE,
]
Quiet = Annotated[bool, option("-q --quiet", "Show only the verdict and errors; no progress.", panel=_OUTPUT)]
FailOnMissing = Annotated[
    bool,
    option(
        "--exit-code", "Exit with 1 if a weight that the logits depend on is new, or any is mismatched.", panel=_OUTPUT
    ),
]


def check_timeout(seconds: float | None) -> None:
    """Raises UsageError for a time limit that is not positive."""
    if seconds is not None and seconds <= 0:
        raise UsageError(f"--timeout must be more than 0 seconds, not {seconds:g}", "leave it out for 120")


NoCache = Annotated[bool, option("--no-cache", "Ignore the report cache.", panel=_WHERE)]


@dataclass(frozen=True)
class Reach:
    """Options for reaching a checkpoint."""

    revision: Revision = None
    subfolder: Subfolder = None
    variant: Variant = None
    cache_dir: CacheDir = None
    token: Token = None
    offline: NoNetwork = False
    adapter: Annotated[
        str | None, option("--adapter", "A PEFT adapter to apply to MODEL.", "ADAPTER", panel=_WHERE)
    ] = None
    timeout: Timeout = None
    no_cache: NoCache = False

    def keywords(self) -> dict[str, Any]:
        """Gives the keyword arguments of the api. Raises UsageError for an invalid time limit."""
        return self.uncached() | {"cache": not self.no_cache}

    def uncached(self) -> dict[str, Any]:
        """Gives the keyword arguments for what is never cached. Raises UsageError for an invalid time limit."""
        check_timeout(self.timeout)
        return {name: value for name, value in vars(self).items() if name not in {"model", "no_cache"}}


@dataclass(frozen=True, kw_only=True)
class Source(Reach):
    """A checkpoint and how to reach it."""

    model: Model


@dataclass(frozen=True)
class Wanted:
    """Options for the class, the task and the labels of the model."""

    num_labels: NumLabels = None
    labels: Labels = None
    task: TaskName = None
    model_class: ModelClass = None
    tokens: Annotated[
        str | None,
        option(
            "--tokens",
            "Score with these tokens of a causal language model; id:9693 names a token by its ID.",
            "NO,YES",
            panel=_WHAT,
        ),
    ] = None
    trust_remote_code: TrustRemoteCode = False

    def keywords(self) -> dict[str, Any]:
        """Gives the keyword arguments of the api. Raises UsageError if they are invalid."""
        from headscope.api.options import read_labels

        labels = read_labels(self.labels, "--labels") or None
        check_num_labels(self.num_labels, labels)
        return vars(self) | {"labels": labels}


@dataclass(frozen=True)
class Pages:
    """Format and file of output without a verdict."""

    format: Annotated[Format, option("--format", "Output format: text or json.", "FORMAT", panel=_OUTPUT)] = Format.text
    json: Json = False
    output: OutputFile = None

    @property
    def is_json(self) -> bool:
        """True if the report is written as JSON."""
        return self.json or self.format is Format.json


@dataclass(frozen=True)
class Output(Pages):
    """Format and file of a report, and whether it is shown in short."""

    quiet: Quiet = False


_NOT_REPEATED = {"token", "model", "no_cache"}


def given_words(models: Iterable[str], *groups: Any) -> str:
    """Joins models and the options of `groups` as they are typed in a shell, without a token and `--no-cache`."""
    words = list(models)
    for group in groups:
        for item in fields(group):
            value = getattr(group, item.name)
            if item.name in _NOT_REPEATED or value == item.default:
                continue
            words.append(f"--{item.name.replace('_', '-')}")
            words += [] if value is True else [f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def check_num_labels(num_labels: int | None, labels: tuple[str, ...] | None) -> None:
    """Raises UsageError if `num_labels` is not a count of classes, or not that of `labels`."""
    if num_labels is not None and num_labels < 1:
        raise UsageError(
            f"--num-labels must be at least 1, not {num_labels}", "1 means regression, 2 or more are classes"
        )
    if num_labels is not None and labels is not None and num_labels != len(labels):
        raise UsageError(
            f"--num-labels {num_labels} contradicts --labels, which names {len(labels)}", "leave one of them out"
        )


def with_option_groups(command: Callable[..., int]) -> Callable[..., int]:
    """Turns `command` into what Typer takes: a parameter that is a dataclass becomes an option for each field."""
    signature = inspect.signature(command, eval_str=True)
    groups = {name: item.annotation for name, item in signature.parameters.items() if _is_group(item)}

    options = [option for item in signature.parameters.values() for option in _expand_group(item)]
    written = {item.name: item for item in options if any(isinstance(mark, Writes) for mark in _metadata_of(item))}

    @functools.wraps(command)
    def grouped(**values: Any) -> int:
        check_outputs(values, written)
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        return command(**values)

    grouped.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    return grouped


def check_outputs(values: Mapping[str, Any], written: Mapping[str, inspect.Parameter]) -> None:
    """Checks the files that a command is to write, before it reads anything.

    Whatever else was given and is a file counts as read. Raises UsageError as `headscope.outputs.check_output` does.
    """
    outputs = [(path, item) for name, item in written.items() for path in _paths_in(values.get(name))]
    if not outputs:
        return
    from headscope.outputs import check_output, is_in_hub_cache  # slow to import, and seldom needed

    read = [path for name, value in values.items() if name not in written for path in _paths_in(value)]
    places: dict[str, str] = {}
    for path, item in outputs:
        option, mark = _metadata_of(item)
        name = option.default  # Typer keeps the first of the names there
        place = os.path.realpath(path)  # two names may lead to one file
        if place in places:
            raise UsageError(f"{name} {path} and {places[place]} are one file", "give each output a different name")
        places[place] = f"{name} {path}"
        if is_in_hub_cache(path) or is_in_hub_cache(path.parent):
            raise UsageError(f"{name} {path} is in the Hub's cache, which only its client writes to", "write elsewhere")
        if mark is Writes.FOLDER:
            if path.is_file():
                raise UsageError(f"{name} {path} is a file", "name a folder")
        elif mark is Writes.UPDATE:
            check_output(path, name)
        else:
            check_output(path, name, read)


def _paths_in(value: object) -> list[Path]:
    """Gives the paths that the value of an option may be, one or several; a URL, or `-`, is not a path."""
    given = value if isinstance(value, list | tuple) else [value]
    texts = [str(item).removeprefix("file://") for item in given if isinstance(item, str | Path)]
    # A NUL byte is not allowed in a path: the system calls would raise ValueError for it.
    return [Path(text) for text in texts if text != "-" and "://" not in text and "\0" not in text]


def _metadata_of(parameter: inspect.Parameter) -> tuple[Any, ...]:
    return getattr(parameter.annotation, "__metadata__", ())


def _is_group(parameter: inspect.Parameter) -> bool:
    return is_dataclass(parameter.annotation)


def _expand_group(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """Gives the parameters that Typer sees: one for each field of a group, otherwise the parameter itself."""
    if not _is_group(parameter):
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        return
    for field in fields(parameter.annotation):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.type)
