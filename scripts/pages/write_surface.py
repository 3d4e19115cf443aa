"""Writes docs/surface.txt, every name that people may rely on, or `--check`s it: a line removed there is a break.

A line for each command, option, exit code, rule, field of a document, value of a field, error, and name of the Python
package, with its arguments; defaults aren't listed. `experimental` begins the lines of what a minor version may change.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headscope
from headscope.checks.rules import every_rule
from headscope.commands import COMMANDS
from headscope.errors import ExitCode
from headscope.shell.app import build_application
from scripts.generated import write_or_compare
from scripts.pages.api_page import is_experimental
from scripts.pages.write_schema import build_schema

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "surface.txt"
_OWN = ("errors", "facts", "__version__")


def surface() -> str:
    """All lines, sorted within their kind."""
    kinds = (_commands(), _exit_codes(), _rules(), _fields(), _python())
    return "".join(f"{line}\n" for lines in kinds for line in sorted(lines))


def _marked(line: str, *, experimental: bool) -> str:
    return f"experimental {line}" if experimental else line


def _commands() -> Iterator[str]:
    application: Any = build_application()
    for name, command in application.commands.items():
        marks = {"experimental": COMMANDS[name].is_experimental}
        yield _marked(f"command {name}", **marks)
        for item in command.params:
            if item.name == "help_all":  # as little a promise as --help
                continue
            shown = " ".join(item.opts) if item.opts[0].startswith("-") else item.name.upper()
            yield _marked(f"command {name} {shown}", **marks)


def _exit_codes() -> Iterator[str]:
    yield from (f"exit {code.value} {code.name.lower()}" for code in ExitCode)


def _rules() -> Iterator[str]:
    yield from (f"rule {rule.id} {rule.name} ({rule.command})" for rule in every_rule().values())


def _fields() -> Iterator[str]:
    for kind, described in build_schema()["$defs"].items():
        for name, field in described.get("properties", {}).items():
            yield _marked(f"json {kind}.{name}", experimental=field.get("x-stability") == "experimental")
        for value in described.get("enum", ()):
            yield f"json {kind} = {value}"


def _python() -> Iterator[str]:
    for name in dir(headscope):
        value = getattr(headscope, name)
        is_new = inspect.isfunction(value) and is_experimental(value)
        yield _marked(f"python headscope.{name}", experimental=is_new)
        parameters = inspect.signature(value).parameters if inspect.isfunction(value) and name not in _OWN else {}
        for item in parameters.values():
            needed = "" if item.default is not item.empty else " (required)"
            yield _marked(f"python headscope.{name} {item.name}{needed}", experimental=is_new)
    errors = (name for name, value in vars(headscope.errors).items() if isinstance(value, type))
    yield from (
        f"python headscope.errors.{name}" for name in errors if issubclass(getattr(headscope.errors, name), Exception)
    )


def main(arguments: list[str]) -> int:
    """Writes the page, or compares it."""
    return write_or_compare(_PAGE, surface(), arguments)
