"""Writes the tables of docs/cli.md (from the application) and docs/json.md (from the schema), or `--check`s them."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from typer.main import get_command

from headscope.cli.app import app
from headscope.render.schema import build_schema

DOCS = Path(__file__).resolve().parent.parent / "docs"
_BELOW = "<!-- below: scripts/write_reference.py -->"
"""What stands above it in a page is written by hand."""
_COMMON = 5
"""In how many commands an option stands before it is described once for all."""


def main(arguments: list[str]) -> int:
    """Writes the pages, or says whether they are as they would be written."""
    status = 0
    for name, made in (("cli.md", cli_reference()), ("json.md", json_reference())):
        page = DOCS / name
        text = page.read_text(encoding="utf-8")
        fresh = text.partition(_BELOW)[0] + _BELOW + "\n\n" + made
        if arguments != ["--check"]:
            page.write_text(fresh, encoding="utf-8")
        elif text != fresh:
            sys.stderr.write(f"docs/{name} is not what the code says; run scripts/write_reference.py\n")
            status = 1
    return status


def cli_reference() -> str:
    """The commands with their options; those of most commands once, before the others."""
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    counted = Counter(_key(option) for command in commands.values() for option in _options(command))
    every = {_key(option): option for command in commands.values() for option in _options(command)}
    common = {key: option for key, option in every.items() if counted[key] >= _COMMON}
    lines = ["## Common options", "", *_table(list(common.values()), with_panel=True), ""]
    for name, command in commands.items():
        lines += [f"## headscope {name}", "", f"`headscope {_usage(name, command)}`", "", _sentence(command), ""]
        own = [option for option in _options(command) if _key(option) not in common]
        if own:
            lines += [*_table(own, with_panel=False), ""]
        takes = [option.opts[0] for option in _options(command) if _key(option) in common]
        lines += [f"Common options: {', '.join(f'`{item}`' for item in takes)}.", ""] if takes else []
    return "\n".join(lines).rstrip() + "\n"


def _options(command: Any) -> list[Any]:
    return [item for item in command.params if item.opts[0].startswith("-") and item.name != "help"]


def _key(option: Any) -> tuple[str, str]:
    return option.opts[0], option.help or ""


def _usage(name: str, command: Any) -> str:
    arguments = [item for item in command.params if not item.opts[0].startswith("-")]
    words = [(item.metavar or item.name.upper()).strip("[]") for item in arguments]
    named = [word if item.required else f"[{word}]" for word, item in zip(words, arguments, strict=True)]
    return " ".join([name, *named, "[OPTIONS]"])


def _sentence(command: Any) -> str:
    return " ".join((command.help or "").split())


def _table(options: list[Any], *, with_panel: bool) -> list[str]:
    head = "| option | value | default | does |" + (" about |" if with_panel else "")
    rows = [head, "|---|---|---|---|" + ("---|" if with_panel else "")]
    for option in options:
        names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
        cells = [names, _value(option), _default(option), option.help or ""]
        cells += [getattr(option, "rich_help_panel", None) or ""] if with_panel else []
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def _value(option: Any) -> str:
    if option.is_flag:
        return ""
    kind = option.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum) and not option.metavar:
        return ", ".join(f"`{item.value}`" for item in kind)
    return f"`{option.metavar or getattr(kind, '__name__', kind)}`" + (", repeated" if option.multiple else "")


def _default(option: Any) -> str:
    found = getattr(option.default, "value", option.default)
    return "" if option.is_flag or found in (None, (), []) or callable(found) else f"`{found}`"


def json_reference() -> str:
    """The documents of the schema, then the objects that they are made of, each as a table of fields."""
    schema = build_schema()
    documents = [item["$ref"].rpartition("/")[2] for item in schema["oneOf"]]
    lines = ["## Documents", ""]
    for name, definition in schema["$defs"].items():
        if name == next(iter(key for key in schema["$defs"] if key not in documents)):
            lines += ["## Objects", ""]
        lines += [f"### {name}", "", definition.get("description", ""), "", *_fields(definition), ""]
    return "\n".join(lines).rstrip() + "\n"


def _fields(definition: dict[str, Any]) -> Iterator[str]:
    yield "| field | type |"
    yield "|---|---|"
    required = definition.get("required", [])
    for name, field in definition.get("properties", {}).items():
        optional = "" if name in required else ", may be left out"
        yield f"| `{name}` | {_type(field)}{optional} |"


def _type(field: dict[str, Any]) -> str:
    """A type in words; an object that has a table of its own is linked."""
    for key, told in _TYPES.items():
        if key in field:
            return told(field[key])
    return f"list of {_type(field['items'])}" if field.get("type") == "array" else str(field.get("type", "any"))


def _linked(reference: str) -> str:
    name = reference.rpartition("/")[2]
    return f"[{name}](#{name.lower()})"


_TYPES: dict[str, Callable[[Any], str]] = {
    "$ref": _linked,
    "const": lambda value: f"`{value}`",
    "enum": lambda values: ", ".join(f"`{value}`" for value in values),
    "anyOf": lambda options: " or ".join(map(_type, options)),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
