"""Where Transformers and PyTorch define a class: read from their files as text, so neither is imported."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from headscope.facts.heads.atlas import ClassSource

_FILES = {
    "transformers": ("models/*/modeling_*.py", "*.py", "integrations/*.py"),
    "torch": ("nn/modules/*.py",),
}
_CLASS = re.compile(r"^class (\w+)\b", re.MULTILINE)


def find_class_source(name: str) -> ClassSource | None:
    """Where a class is defined, with its docstring and its `forward`; None for a name that no file defines."""
    start = re.compile(rf"^class {re.escape(name)}\b", re.MULTILINE)
    for file, text in _files():
        found = start.search(text)
        if found is not None:
            return _source_of(name, file, text, found.start())
    return None


def class_names_defined() -> frozenset[str]:
    """The names of the classes that `find_class_source` finds."""
    return frozenset(name for _, text in _files() for name in _CLASS.findall(text))


def _files() -> Iterator[tuple[str, str]]:
    """The files that define classes, each with its path from the package and its text."""
    for package, patterns in _FILES.items():
        folder = _folder_of(package)
        paths = [path for pattern in patterns for path in sorted(folder.glob(pattern))] if folder else []
        for path in paths:
            yield (
                path.relative_to(path.parents[len(path.relative_to(folder).parts)]).as_posix(),
                path.read_text("utf-8"),
            )


@cache
def _folder_of(package: str) -> Path | None:
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _source_of(name: str, file: str, text: str, start: int) -> ClassSource:
    rest = text[start:].splitlines(keepends=True)
    end = next((at for at, line in enumerate(rest) if at and line[:1] not in (" ", "\n", "#", ")", "\t")), len(rest))
    body = "".join(rest[:end])
    try:
        parsed = ast.parse(body).body[0]
    except SyntaxError:
        parsed = ast.Pass()
    if not isinstance(parsed, ast.ClassDef):
        return ClassSource(name, file, text[:start].count("\n") + 1)
    methods = (item for item in parsed.body if isinstance(item, ast.FunctionDef) and item.name == "forward")
    forward = next((ast.get_source_segment(body, item, padded=True) or "" for item in methods), "")
    return ClassSource(
        name, file, text[:start].count("\n") + 1, ast.get_docstring(parsed) or "", textwrap.dedent(forward)
    )
