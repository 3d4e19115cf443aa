"""Writes the tables of docs/cli.md, docs/json.md, docs/api.md and of the skill for agents from the code."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from headscope.commands import COMMANDS, EXPERIMENTAL
from headscope.shell.app import build_application
from scripts.generated import write_or_compare
from scripts.pages.api_page import api_reference
from scripts.pages.write_schema import build_schema

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SKILL = ROOT / "packaging" / "skills" / "headscope" / "SKILL.md"
_BELOW = "<!-- below: scripts/pages/write_reference.py -->"
"""What is above it in a page is written by hand."""
_COMMANDS, _END = "<!-- commands: scripts/pages/write_reference.py -->", "<!-- end of commands -->"
"""Around the commands in the skill, the rest of which is written by hand."""
_COMMON = 5
"""How many commands must have an option for it to be described once."""


def main(arguments: list[str]) -> int:
    """Writes the pages, or says whether they are as they would be written."""
    status = 0
    for name, made in (("cli.md", cli_reference()), ("json.md", json_reference()), ("api.md", api_reference())):
        above = (DOCS / name).read_text(encoding="utf-8").partition(_BELOW)[0]
        status |= write_or_compare(DOCS / name, f"{above}{_BELOW}\n\n{made}", arguments)
    above, _, rest = SKILL.read_text(encoding="utf-8").partition(_COMMANDS)
    fresh = f"{above}{_COMMANDS}\n\n{skill_commands()}\n\n{_END}{rest.partition(_END)[2]}"
    return status | write_or_compare(SKILL, fresh, arguments)


def skill_commands() -> str:
    """Every command with the option that answers in one line, and the one that gives the fewest fields."""
    application: Any = build_application()
    lines = ["| command | does | one line | fields |", "|---|---|---|---|"]
    for name, command in application.commands.items():
        takes = {spelled: option for option in _options(command) for spelled in option.opts}
        line = "`-q`" if "-q" in takes else ""
        fields = "`--json`" if "--json" in takes else ""
        if "--format" in takes and "`brief`" in _kind(takes["--format"]):
            fields = f"`--format brief`, then {fields}"
        usage = f"headscope {_usage(name, command)}".removesuffix(" [OPTIONS]")
        purpose = f"{COMMANDS[name].purpose}{' Experimental.' if COMMANDS[name].is_experimental else ''}"
        lines.append(f"| `{usage}` | {purpose} | {line} | {fields} |")
    return "\n".join(lines)


def cli_reference() -> str:
    """The commands with their arguments and options; the options of most commands once, before the others."""
    application: Any = build_application()
    commands: dict[str, Any] = application.commands
    counted = Counter(_key(option) for command in commands.values() for option in _options(command))
    every = {_key(option): option for command in commands.values() for option in _options(command)}
    common = {key: option for key, option in every.items() if counted[key] >= _COMMON}
    lines = ["## headscope", "", "`headscope COMMAND [OPTIONS]`", "", *_table(_options(application)), ""]
    lines += ["## Common options", ""]
    for panel in dict.fromkeys(option.rich_help_panel for option in common.values()):
        lines += [f"### {panel}", "", *_table([item for item in common.values() if item.rich_help_panel == panel]), ""]
    for name, command in commands.items():
        lines += [f"## headscope {name}", "", f"`headscope {_usage(name, command)}`", "", _sentence(command), ""]
        lines += [EXPERIMENTAL, ""] if COMMANDS[name].is_experimental else []
        lines += ["```sh", *COMMANDS[name].examples, "```", ""]
        own = _arguments(command) + [option for option in _options(command) if _key(option) not in common]
        lines += [*_table(own), ""] if own else []
        takes = [option.opts[0] for option in _options(command) if _key(option) in common]
        lines += [f"Common options: {', '.join(f'`{item}`' for item in takes)}.", ""] if takes else []
    return "\n".join(lines).rstrip() + "\n"


def _arguments(command: Any) -> list[Any]:
    return [item for item in command.params if not item.opts[0].startswith("-")]


def _options(command: Any) -> list[Any]:
    return [item for item in command.params if item.opts[0].startswith("-") and item.name != "help_all"]


def _key(option: Any) -> tuple[str, str]:
    return option.opts[0], option.help or ""


def _usage(name: str, command: Any) -> str:
    words = [_argument(item) if item.required else f"[{_argument(item)}]" for item in _arguments(command)]
    needed = [f"{item.opts[0]} {item.metavar}" for item in _options(command) if item.required]
    return " ".join([name, *words, *needed, "[OPTIONS]"])


def _argument(item: Any) -> str:
    """`MODEL`, or `MODEL...` where several can be given."""
    return f"{item.metavar.strip('[].')}{'...' if item.nargs == -1 else ''}"


def _sentence(command: Any) -> str:
    return " ".join((command.help or "").split())


def _table(parameters: list[Any]) -> list[str]:
    rows = ["| option | type | default | environment | does |", "|---|---|---|---|---|"]
    for item in parameters:
        variable = _VARIABLES.get(item.opts[0], "")
        cells = [_named(item), _kind(item), _default(item), f"`{variable}`" if variable else "", item.help or ""]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


_VARIABLES = {
    "--token": "HF_TOKEN",
    "--cache-dir": "HF_HUB_CACHE",
    "--offline": "HF_HUB_OFFLINE",
    "--no-cache": "HEADSCOPE_NO_CACHE",
}
"""Options that an environment variable can set. None is read by the command line itself: the Hub's client
and the cache of reports do."""


def _named(item: Any) -> str:
    if not item.opts[0].startswith("-"):
        return f"`{_argument(item)}`"
    value = f" {item.metavar}" if item.metavar and not item.is_flag else ""
    return ", ".join(f"`{name}{value}`" for name in (*item.opts, *item.secondary_opts))


_KINDS = {str: "text", int: "integer", float: "number", Path: "path"}


def _kind(item: Any) -> str:
    if getattr(item, "is_flag", False):
        return "flag"
    kind = item.type_descriptor.annotation
    if get_origin(kind) is Literal:
        return ", ".join(f"`{name}`" for name in get_args(kind))
    several = getattr(item, "multiple", False) or item.nargs == -1
    return _KINDS[get_args(kind)[0] if get_origin(kind) is list else kind] + (", may be repeated" if several else "")


def _default(item: Any) -> str:
    if item.required:
        return "required"
    if getattr(item, "is_flag", False):
        return "off"
    found = getattr(item.default, "value", item.default)
    return "" if found in (None, "", (), []) or callable(found) else f"`{found}`"


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
    yield "| field | type | meaning |"
    yield "|---|---|---|"
    yield from _rows(definition, "")


def _rows(definition: dict[str, Any], inside: str) -> Iterator[str]:
    """The fields of an object, and below each those of an unnamed object in it."""
    required = definition.get("required", [])
    for name, field in definition.get("properties", {}).items():
        optional = "" if name in required else ", may be left out"
        mark = "" if field["x-stability"] == "stable" else " *Experimental.*"
        yield f"| `{inside}{name}` | {_type(field)}{optional} | {field['description']}{mark} |"
        within = field.get("items", field)
        yield from _rows(within, f"{inside}{name}{'[]' if 'items' in field else ''}.")


def _type(field: dict[str, Any]) -> str:
    """A type in words; an object that has a table is linked."""
    for key, spell in _TYPES.items():
        if key in field:
            return spell(field[key])
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
