"""What a remedy asks a reader to type, held against the parsers that will read it."""

import re
from collections.abc import Iterator

import transformers

from headscope.errors import UsageError
from headscope.facts import Finding, Task
from headscope.shell.app import build_application
from headscope.shell.parameters import check_num_labels

_COMMANDS = build_application().commands  # type: ignore[attr-defined]
_OPTIONS = {name: {text for item in command.params for text in item.opts} for name, command in _COMMANDS.items()}


def unusable_advice(finding: Finding) -> list[str]:
    """Whatever in the remedy of a finding would be refused; empty for advice that can be followed."""
    return [f"{finding.id}: {fault}" for fault in _faults(finding.remedy)]


def _faults(remedy: str) -> Iterator[str]:
    for number in re.findall(r"num[_-]labels[= ](-?\d+)", remedy):
        try:
            check_num_labels(int(number), None)
        except UsageError as err:
            yield err.message
    for command, rest in re.findall(r"headscope ([a-z-]+)([^`).;]*)", remedy):
        if command not in _OPTIONS:
            yield f"there is no command {command}"
        else:
            yield from (f"{command} has no {text}" for text in _options(rest) if text not in _OPTIONS[command])
    yield from (f"no command has {text}" for text in _options(remedy) if not any(text in o for o in _OPTIONS.values()))
    for task in re.findall(r"--task[= ]([\w-]+)", remedy):
        if task not in {item.value for item in Task}:
            yield f"there is no task {task}"
    for name in re.findall(r"\b[A-Z]\w+For[A-Z]\w+|\bAuto\w+", remedy):
        if not hasattr(transformers, name):
            yield f"Transformers has no class {name}"
    for code in re.findall(r"`([^`]+)`", remedy):
        if ";" in code or " = " in code:
            try:
                compile(code, "remedy", "exec")
            except SyntaxError as err:
                yield f"{code} is not Python: {err}"


def _options(text: str) -> list[str]:
    return re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)
