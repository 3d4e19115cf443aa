"""Definitions of classes in Transformers and PyTorch: read from their files as text, so neither is imported."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from functools import cache

from headscope.core.facts.heads.atlas import ClassSource
from headscope.core.upstream.sources import folder_of_package

_FILES = {
    "transformers": ("models/*/modeling_*.py", "models/*/configuration_*.py", "*.py", "integrations/*.py"),
    "torch": ("nn/modules/*.py",),
}
_CLASS = re.compile(r"^class (\w+)\b", re.MULTILINE)


def find_class_source(name: str) -> ClassSource | None:
    """Finds a class's definition, with its docstring and its `forward`; None for a name that no file defines."""
    start = re.compile(rf"^class {re.escape(name)}\b", re.MULTILINE)
    for file, text in _read_class_files():
        found = start.search(text)
        if found is not None:
            return _build_class_source(name, file, text, found.start())
    return None


@cache
def class_names_defined() -> frozenset[str]:
    """Gives the names of the classes that `find_class_source` finds."""
    return frozenset(name for _, text in _read_class_files() for name in _CLASS.findall(text))


def _read_class_files() -> Iterator[tuple[str, str]]:
    """Yields the files that define classes, each with its path from the package and its text."""
    for package, patterns in _FILES.items():
        folder = folder_of_package(package)
        for path in (path for pattern in patterns for path in sorted(folder.glob(pattern))) if folder else ():
            yield f"{package}/{path.relative_to(folder or path).as_posix()}", path.read_text("utf-8")


def _build_class_source(name: str, file: str, text: str, start: int) -> ClassSource:
    rest = text[start:].splitlines(keepends=True)
    # The class ends at the first line at the left margin; parsing only this part is much faster than the whole file.
    end = next((at for at, line in enumerate(rest) if at and line[:1] not in (" ", "\n", "#", ")", "\t")), len(rest))
    body = "".join(rest[:end])
    try:
        parsed = ast.parse(body).body[0]
    except SyntaxError:
        parsed = ast.Pass()
    if not isinstance(parsed, ast.ClassDef):
        return ClassSource(name, file, text[:start].count("\n") + 1)
    methods = (item for item in parsed.body if isinstance(item, ast.FunctionDef) and item.name == "forward")
    forward = next((_code_without_docstring(body, item) for item in methods), "")
    return ClassSource(name, file, text[:start].count("\n") + 1, ast.get_docstring(parsed) or "", forward)


def _code_without_docstring(text: str, function: ast.FunctionDef) -> str:
    """Gives the source of a function without its docstring."""
    lines = text.splitlines()
    first, last = function.lineno - 1, function.end_lineno
    said = function.body[0] if ast.get_docstring(function) is not None else None
    if said is None:
        return textwrap.dedent("\n".join(lines[first:last]))
    rest = "\n".join(lines[said.end_lineno : last]).lstrip("\n")
    return textwrap.dedent("\n".join([*lines[first : said.lineno - 1], rest]))
