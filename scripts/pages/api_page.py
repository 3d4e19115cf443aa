"""The tables of docs/api.md, from the signatures and docstrings of the public API; `write_reference.py` writes them."""

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from textwrap import dedent, wrap
from typing import Any, get_args, get_overloads

import headscope
from headscope import errors
from headscope.commands import EXPERIMENTAL
from headscope.shell.options import option
from headscope.shell.options.calls import full_signature
from headscope.shell.shown import Shown

FUNCTIONS = (
    "inspect", "diff_weights", "check", "strict", "verify", "verify_save", "verify_served", "write_card",
    "verify_card", "parameter_groups", "compare", "forward", "heads", "scan", "scan_batch", "probe", "code",
    "engines", "edit", "repair", "snapshot", "diagram", "explain", "environment",
)  # fmt: skip
_TYPES = {name: value for name in dir(headscope) if isinstance(value := getattr(headscope, name), type)}
_RESULTS = [name for name, value in _TYPES.items() if issubclass(value, Shown)]
_WIDTH = 110
_NAMES_OF_VALUES = ("ProfileName", "SeverityName", "DrawingName", "DeviceName")


def api_reference() -> str:
    """The functions with their arguments, then the types of results, the names of values, and the errors."""
    lines = ["## Functions", ""]
    for name in FUNCTIONS:
        lines += _function(name, getattr(headscope, name))
    return "\n".join([*lines, *_results(), *_values(), *_errors()]).rstrip() + "\n"


def is_experimental(function: Callable[..., Any]) -> bool:
    """Whether the facts that a function returns are marked as experimental."""
    result = inspect.signature(function, eval_str=False).return_annotation
    found = getattr(headscope, result, None) if isinstance(result, str) else result
    modules = [sys.modules[base.__module__] for base in getattr(found, "__mro__", ())]
    return any(getattr(module, "STABILITY", "") == "experimental" for module in modules)


def _function(name: str, function: Callable[..., Any]) -> Iterator[str]:
    parts = _sections(inspect.getdoc(function) or "")
    calls = [full_signature(item) for item in get_overloads(inspect.unwrap(function))] or [inspect.signature(function)]
    yield from (f"### headscope.{name}", "", parts[""].strip(), "")
    yield from (EXPERIMENTAL, "") if is_experimental(function) else ()
    yield "```py"
    yield from (_call(name, call) for call in calls)
    yield from ("```", "")
    if "Args" in parts:
        yield from ("| argument | type | default | meaning |", "|---|---|---|---|")
        described = dict(_entries(parts["Args"]))
        for item in inspect.signature(function).parameters.values():
            cells = (f"`{item.name}`", f"`{item.annotation}`", _default(item), described[item.name])
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        yield ""
    result = _type(inspect.signature(function).return_annotation)
    yield from (f"**Returns** `{result}`. {_joined(parts['Returns'])}", "")
    if "Raises" in parts:
        yield from ("**Raises**", "")
        yield from (f"- `{kind}`: {when}" for kind, when in _entries(parts["Raises"]))
        yield ""
    yield from ("```pycon", dedent(parts["Example"]).strip(), "```", "")


def _call(name: str, call: inspect.Signature) -> str:
    """A call in short: arguments with their defaults. Only the first, which tells the overloads apart, has its type."""
    words: list[str] = []
    is_named = False
    for item in call.parameters.values():
        if item.kind is item.KEYWORD_ONLY and not is_named and not words[-1].startswith("*"):
            words.append("*")
        is_named = is_named or item.kind is item.KEYWORD_ONLY
        star = "*" if item.kind is item.VAR_POSITIONAL else ""
        kind = f": {item.annotation}" if item.name == "reference" else ""
        value = "" if item.default is item.empty else f"={item.default!r}"
        words.append(f"{star}{item.name}{kind}{value}")
    whole = f"{name}({', '.join(words)}) -> {_type(call.return_annotation)}"
    return "\n".join(wrap(whole, _WIDTH, subsequent_indent="    ", break_long_words=False))


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else str(getattr(annotation, "__name__", annotation))


def _default(item: inspect.Parameter) -> str:
    return "" if item.default is item.empty else f"`{item.default!r}`"


def _sections(text: str) -> dict[str, str]:
    """The sections of a docstring in Google style by their titles; the beginning under no title."""
    parts = re.split(r"^(Args|Returns|Raises|Example):\n", text, flags=re.MULTILINE)
    return dict(zip(["", *parts[1::2]], [parts[0], *parts[2::2]], strict=True))


def _entries(section: str) -> Iterator[tuple[str, str]]:
    """Each entry of a section: its name and its description, in one line."""
    for entry in re.split(r"\n(?=\S)", dedent(section).strip()):
        name, _, text = entry.partition(": ")
        yield name.lstrip("*"), _joined(text)


def _joined(text: str) -> str:
    return " ".join(text.split())


def _results() -> Iterator[str]:
    about = "Each prints what the terminal shows, a notebook shows the same in color, and `repr` is one line."
    yield from ("## Results", "", about, "")
    yield from ("| type | is | fields |", "|---|---|---|")
    for name in _RESULTS:
        kind = getattr(headscope, name)
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        named = ", ".join(f"`{field.name}`" for field in fields) or _items(kind)
        yield f"| `headscope.{name}` | {_joined((inspect.getdoc(kind) or '').splitlines()[0])} | {named} |"
    yield from ("", "| method | gives |", "|---|---|")
    for name in _RESULTS:
        for method in _methods(getattr(headscope, name)):
            call = f"{name}.{method.__name__}{_arguments(method)}"
            yield f"| `{call}` | {_joined(inspect.getdoc(method) or '')} |"
    yield ""


def _items(kind: Any) -> str:
    """What a result that is a tuple holds."""
    item = next(argument for base in kind.__orig_bases__ for argument in get_args(base))
    is_fact = getattr(item, "__module__", "").startswith("headscope.core.facts")
    return f"a tuple of `headscope.facts.{item.__name__}`" if is_fact else "a tuple"


def _methods(kind: type) -> Iterator[Callable[..., Any]]:
    """The public methods that a result has beside those of its facts."""
    for name, value in vars(kind).items():
        if inspect.isfunction(value) and not name.startswith("_"):
            yield value


def _arguments(method: Callable[..., Any]) -> str:
    _, *rest = inspect.signature(method).parameters.values()
    return f"({', '.join(f'{item.name}={item.default!r}' for item in rest)})"


def _values() -> Iterator[str]:
    yield from ("## Types of options", "", "| type | values |", "|---|---|")
    for name in _NAMES_OF_VALUES:
        yield f"| `headscope.{name}` | {', '.join(f'`{value}`' for value in get_args(getattr(option, name)))} |"
    yield ""


def _errors() -> Iterator[str]:
    yield from ("## Errors", "", "| type | code | exit code | meaning |", "|---|---|---|---|")
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.HeadscopeError):
            meaning = _joined((inspect.getdoc(kind) or "").splitlines()[0])
            yield f"| `headscope.errors.{name}` | `{kind.code}` | {int(kind.exit_code)} | {meaning} |"
