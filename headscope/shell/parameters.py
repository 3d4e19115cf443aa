"""From a command to what Typer takes: the declarations of its options become parameters, and values are read back."""

import functools
import inspect
import os
import shlex
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, is_typeddict

import typer

from headscope.errors import UsageError
from headscope.shell import completion
from headscope.shell.options.option import Option, Writes, declared_in, read_declaration
from headscope.shell.typer_help import ALL_OPTIONS


class Typed(NamedTuple):
    """An option as it is typed: its name in Python, its type and default on the command line, what is declared."""

    name: str
    kind: Any
    default: Any
    option: Option

    @property
    def flags(self) -> list[str]:
        """Names on the command line, the main one first."""
        return (self.option.flags or f"--{'no-' * bool(self.option.negated)}{self.name.replace('_', '-')}").split()

    @property
    def help(self) -> str:
        """The sentence of `--help`."""
        # A terminal shows the backticks of Markdown as they are.
        more = "Repeatable." if self.option.is_repeatable else ""
        meaning = self.option.negated or self.option.meaning
        return " ".join(filter(None, (meaning, self.option.in_terminal, more))).replace("`", "")

    def parameter(self) -> inspect.Parameter:
        """Makes the parameter that Typer sees."""
        option = self.option
        info = typer.Option(
            *self.flags,
            help=self.help,
            metavar=option.metavar,
            rich_help_panel=option.panel,
            show_default="default" not in self.help,
            min=option.least,
            envvar=option.variable,
            show_envvar=False,
            autocompletion=getattr(completion, f"complete_{option.completes}") if option.completes else None,
        )
        hint: Any = Annotated[self.kind, info]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=self.default, annotation=hint)

    def read(self, value: Any) -> Any:
        """Gives the value as the use case takes it. Raises UsageError before anything heavy is imported."""
        if self.option.negated:
            return not value
        if value is None or not self.option.reads:
            return value
        module, _, name = self.option.reads.rpartition(":")
        # A reader of another module is named `module:function`, and imported here.
        return getattr(import_module(f"headscope.{module}"), name)(value) if module else _READERS[name](value)


def typed_options(group: type) -> Iterator[Typed]:
    """Gives the options of a group as they are typed.

    A group is a `TypedDict`, whose options a use case takes, or a dataclass of options that only the command line has.
    """
    if is_typeddict(group):
        for name, item in declared_in(group).items():
            default = item.default if item.option.typed_default is ... else item.option.typed_default
            default = None if default == () else default
            # The command line parses a flag, a number, one of several names, otherwise a text.
            parts = (item.kind,) if get_origin(item.kind) is Literal else get_args(item.kind) or (item.kind,)
            parsed = [part for part in parts if part in (bool, int, float) or get_origin(part) is Literal]
            kind: Any = list[str] if item.option.is_repeatable else item.option.typed or (parsed or [str])[0]
            yield Typed(name, kind | None if default is None else kind, default, item.option)
        return
    for field in fields(group):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        declared = read_declaration(field.type)
        yield Typed(field.name, declared.kind, default, declared.option)


def with_option_groups(command: Callable[..., int], beside: Container[str] = ()) -> Callable[..., int]:
    """Turns `command` into what Typer takes: a parameter that is a group becomes one for each of its options.

    Options in `beside` are not of its main use, as they are for other commands.
    """
    signature = inspect.signature(command, eval_str=True)
    kinds = {name: item.annotation for name, item in signature.parameters.items()}
    groups = {name: list(_options_of(item)) for name, item in signature.parameters.items()}
    typed = [option for options in groups.values() for option in options]
    written = {item.name: item for item in typed if item.option.writes}

    @functools.wraps(command)
    def grouped(*, help_all: bool, **values: Any) -> int:
        given = {name: _read_group(kinds[name], groups[name], name, values) for name in kinds}
        check_outputs(values, written)
        return command(**given)

    arguments = [
        item.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, item in signature.parameters.items()
        if not groups[name]
    ]
    parameters = [*arguments, *(item.parameter() for item in typed), _HELP_ALL]
    grouped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    # Typer copies the attributes of a function to what it calls.
    grouped.main_options = {item.name for item in typed if item.option.is_main and item.name not in beside}  # type: ignore[attr-defined]
    return grouped


def options_of_command(command: Callable[..., int]) -> list[Typed]:
    """Gives the options of a command's function, those in groups and the others."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    return [option for item in parameters for option in _options_of(item)]


def _options_of(parameter: inspect.Parameter) -> Iterable[Typed]:
    """Gives the options that a parameter of a command stands for; none for an argument such as MODEL."""
    kind = parameter.annotation
    if any(isinstance(item, Option) for item in getattr(kind, "__metadata__", ())):
        declared = read_declaration(kind)
        return [Typed(parameter.name, declared.kind, parameter.default, declared.option)]
    return typed_options(kind) if is_dataclass(kind) or is_typeddict(kind) else ()


def _read_group(kind: Any, options: Sequence[Typed], name: str, values: Mapping[str, Any]) -> Any:
    """Makes the value of a command's parameter from what was typed. Raises UsageError for an invalid value."""
    given = {item.name: item.read(values[item.name]) for item in options}
    if is_typeddict(kind):
        given = {name: value for name, value in given.items() if value is not None and value != []}
        check_num_labels(given.get("num_labels"), given.get("labels"))
        return given
    return kind(**given) if isinstance(kind, type) and is_dataclass(kind) else given.get(name, values.get(name))


def _show_all_options(ctx: typer.Context, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[ALL_OPTIONS] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


_HELP_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool, typer.Option("--help-all", help="Show all options.", is_eager=True, callback=_show_all_options)
    ],
)


_NOT_REPEATED = {"token", "server_token", "cache"}


def given_words(models: Iterable[str], given: Mapping[str, Any], *groups: type) -> str:
    """Joins models and the options of `groups` as they are typed in a shell, without a token and `--no-cache`."""
    words = list(models)
    for item in (option for group in groups for option in typed_options(group)):
        value = given.get(item.name)
        if item.name not in _NOT_REPEATED and value not in (None, item.default, item.option.default):
            yes, _, no = item.flags[0].partition("/")
            words.append(no if value is False else yes)
            if isinstance(value, tuple | list):
                words.append(",".join(value))
            elif not isinstance(value, bool):
                words.append(f"{value:g}" if isinstance(value, float) else str(value))
    return shlex.join(words)


def stray_words(given: Mapping[str, Any], *groups: type) -> str:
    """Joins options that don't belong to a call as they are typed, and the flag of a token that no variable holds."""
    words = [given_words((), given, *groups)]
    for item in (option for group in groups for option in typed_options(group) if option.name in _NOT_REPEATED):
        from_shell = os.environ.get(item.option.variable) if item.option.variable else None
        if given.get(item.name) not in (None, item.default, item.option.default, from_shell):
            words.append(item.flags[0])
    return " ".join(filter(None, words))


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


def check_outputs(values: Mapping[str, Any], written: Mapping[str, Typed]) -> None:
    """Checks the files that a command is to write, before it reads anything.

    Whatever else was given and is a file counts as read. Raises UsageError as
    `headscope.core.outputs.check_output` does.
    """
    outputs = [(path, item) for name, item in written.items() for path in _paths_in(values.get(name))]
    if not outputs:
        return
    from headscope.core.outputs import check_output, is_in_hub_cache  # slow to import, and seldom needed

    read = [path for name, value in values.items() if name not in written for path in _paths_in(value)]
    places: dict[str, str] = {}
    for path, item in outputs:
        name, mark = item.flags[0], item.option.writes
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


def _read_labels(given: str) -> tuple[str, ...] | None:
    from headscope.shell.values import read_labels

    return read_labels(given, "--labels") or None


def _read_seconds(given: float) -> float:
    if given <= 0:
        raise UsageError(f"--timeout must be more than 0 seconds, not {given:g}", "leave it out for 120")
    return given


_READERS: dict[str, Callable[[Any], Any]] = {
    "labels": _read_labels,
    "seconds": _read_seconds,
    "file": lambda path: None if path == Path("-") else path,  # - means stdout
}
"""How values are read that the command line parses as text, by the `reads` of their declarations."""
