"""The decorator of the use cases, which makes the options that they share explicit.

A use case takes them as `**options: Unpack[...]`: type checkers and editors know every name, and at run time its
signature and docstring list them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial, wraps
from inspect import Parameter, Signature, signature
from itertools import chain, repeat
from os import PathLike, fsencode
from textwrap import fill
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar, get_args, get_type_hints

from headscope.core.facts.counting import safe_repr, shortened
from headscope.core.source.environment import default_torch
from headscope.core.upstream.python import check_folder, fault_of_process
from headscope.errors import HeadscopeError, UsageError, did_you_mean
from headscope.shell.options.option import Declared, choices_of, declared_in, is_of_kind, type_text
from headscope.shell.values import READ_OPTIONS, plain_value

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def use_case(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Puts all options of `function` into its signature and docstring.

    An unknown option is a UsageError that names the nearest one, where Python would raise a bare TypeError.
    """
    whole = full_signature(function)
    known = [item.name for item in whole.parameters.values() if item.kind is not Parameter.VAR_POSITIONAL]
    places = [item.name for item in whole.parameters.values() if item.kind is Parameter.POSITIONAL_OR_KEYWORD]
    rest = next((item.name for item in whole.parameters.values() if item.kind is Parameter.VAR_POSITIONAL), "")
    kinds_of_arguments = cache(partial(_kinds_of_arguments, function))

    @wraps(function)
    def call(*values: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        check_names(options, known)
        kinds = kinds_of_arguments()

        def read(name: str, value: Any) -> Any:
            known_kind = name in kinds and name in whole.parameters
            return _read_value(function.__name__, whole.parameters[name], value, kinds[name]) if known_kind else value

        # Too many values, or too few, are for Python to refuse.
        placed: Any = [read(*pair) for pair in zip(chain(places, repeat(rest)), values, strict=False)]
        named: Any = {name: read(name, value) for name, value in options.items()}
        with _guard_process():
            return function(*placed, **named)

    call.__signature__ = whole  # type: ignore[attr-defined]  # read by inspect.signature
    call.__doc__ = _full_docstring(function)
    return call


def full_signature(function: Callable[..., Any]) -> Signature:
    """Gives the signature of a use case or an overload with every option of `**options`, and `progress` last."""
    plain = signature(function)
    own = [item for item in plain.parameters.values() if item.kind is not Parameter.VAR_KEYWORD]
    last = [item for item in own if item.name == "progress"]
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=item.default, annotation=type_text(item.kind))
        for name, item in _shared_options(function).items()
    ]
    return plain.replace(parameters=[*(item for item in own if item not in last), *shared, *last])


def _shared_options(function: Callable[..., Any]) -> dict[str, Declared]:
    """Gives the options that `**options` takes, by name."""
    written = function.__annotations__.get("options")
    if written is None:
        return {}
    # The other annotations name types of torch, which is not imported.
    only = SimpleNamespace(__annotations__={"options": written})
    return declared_in(get_args(get_type_hints(only, function.__globals__)["options"])[0])


_REFERENCE = re.compile(r"^ {8}(?P<name>\w+): See `(?P<kind>\w+)`\.$", re.MULTILINE)
"""An argument whose meaning is that in a `TypedDict`; the name `options` stands for all of them."""


def _full_docstring(function: Callable[..., Any]) -> str | None:
    """Gives the docstring with the meaning of each option in the place of a reference to its declaration."""

    def entries(found: re.Match[str]) -> str:
        declared = declared_in(function.__globals__[found["kind"]])
        names = declared if found["name"] == "options" else [found["name"]]
        told = []
        for name in names:
            option = declared[name].option
            text = " ".join(filter(None, (f"{name}: {option.meaning}", option.in_python)))
            told.append(fill(text, 110, initial_indent=" " * 8, subsequent_indent=" " * 12, break_long_words=False))
        return "\n".join(told)

    return None if function.__doc__ is None else _REFERENCE.sub(entries, function.__doc__)


def check_names(given: Iterable[str], known: Sequence[str]) -> None:
    """Checks that every name is known. Raises UsageError with the nearest name."""
    for name in given:
        if name not in known:
            raise UsageError(f"no such option: {name}", did_you_mean(name, known, f"options: {', '.join(known)}"))


_READ_BY_USE_CASES = {"options", "return", "reference", "references", "batch", *READ_OPTIONS}
"""What takes more than its type says: a batch may be a table of any library."""


_AnyReference = Any | PathLike[str]
"""A model in memory, or what names a checkpoint, which is read as text."""


def _kinds_of_arguments(function: Callable[..., Any]) -> dict[str, Any]:
    """Gives the types of the arguments that a use case doesn't read itself, by name."""
    kinds = {name: item.kind for name, item in _shared_options(function).items()}
    for name, written in function.__annotations__.items():
        with suppress(NameError):  # a type of torch, which is not imported
            kinds[name] = get_type_hints(SimpleNamespace(__annotations__={name: written}), function.__globals__)[name]
    read = {name: kind for name, kind in kinds.items() if name not in _READ_BY_USE_CASES}
    return read | dict.fromkeys(("reference", "references", "model"), _AnyReference)


def _read_value(function: str, argument: Parameter, value: Any, kind: Any) -> Any:
    """Gives an argument as its type has it. Raises UsageError for another type, an unknown name and an invalid text."""
    name, read = argument.name, plain_value(value, kind)
    hint = f"help(headscope.{function}) lists the options and their types"
    if not is_of_kind(read, kind):
        is_secret = name.endswith("token")
        found = type(value).__name__ if is_secret else f"{type(value).__name__} {shortened(safe_repr(value))}"
        raise UsageError(f"{name} must be {argument.annotation}, not {found}", hint)
    choices = choices_of(kind)
    if choices and isinstance(read, str) and read not in choices:
        what = name.replace("_", " ")
        raise UsageError(f"no such {what}: {read!r}", f"{what}s: {', '.join(choices)}")
    is_path = PathLike in {getattr(part, "__origin__", part) for part in get_args(kind)}
    for text in (read,) if isinstance(read, str) else read if isinstance(read, list | tuple) else ():
        if isinstance(text, str) and not _is_valid_text(text, is_path=is_path):
            raise UsageError(f"{name} is not a valid {'path' if is_path else 'text'}: {shortened(ascii(text))}", hint)
    return read


def _is_valid_text(text: str, *, is_path: bool) -> bool:
    """Says whether a text has no lone surrogates, which UTF-8 lacks; a path may have those of other bytes, not NUL."""
    try:
        encoded = fsencode(text) if is_path else text.encode()
    except UnicodeEncodeError:
        return False
    return not is_path or b"\0" not in encoded


@contextmanager
def _guard_process() -> Iterator[None]:
    """Runs a use case with PyTorch's defaults, and raises a HeadscopeError for what the process lacks."""
    check_folder()
    try:
        with default_torch():
            yield
    except HeadscopeError:
        raise
    except Exception as err:
        fault = fault_of_process(err)
        if fault is None:  # a bug keeps its traceback
            raise
        raise fault from err
