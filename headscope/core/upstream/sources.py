"""Sources of the installed Transformers by their digests, without importing it."""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

EVERYWHERE = ("", "integrations", "loss", "models/auto", "utils")
"""The folders of Transformers whose modules every model uses; "" is the package itself."""


def folder_of_package(package: str) -> Path | None:
    """Finds the folder of an installed package, which is not imported; None where there is none."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


class Unvouched(Exception):
    """Raised for sources of the installed Transformers that aren't those from which something was learned."""


_RENAMED = {"past_key_values": "cache"}
"""Names of Transformers that only a deprecation changed (5.24): both read as the new one."""
_SILENT_DECORATORS = frozenset({"auto_docstring", "deprecate_kwarg", "no_grad", "replace_return_docstrings"})
"""What is written before functions and changes no result."""
_SILENT_ATTRIBUTES = re.compile(
    r"keys_to_ignore_at_inference|_skip_keys_\w+|_no_split_modules|base_model_\w+_plan|_supports_\w+"
)
"""Attributes of classes that only placing, saving memory and generating look at."""
_OF_TYPES = frozenset({"annotation", "returns", "type_comment"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
_Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class SourceFile:
    """Source file of a package as a tree, whose functions and classes are found by their qualified names.

    A function's digest leaves out what changes nothing: comments, docstrings, annotations, lines. A class's digest is
    that of its bases and its attributes.
    """

    def __init__(self, text: str) -> None:
        self._tree = ast.parse(text)
        self._found: dict[str, _Node] = {}
        self._index_definitions("", self._tree.body)

    def _index_definitions(self, before: str, body: Iterable[ast.AST]) -> None:
        for node in body:
            if isinstance(node, _DEFINITIONS):
                self._found.setdefault(before + node.name, node)
            if isinstance(node, ast.ClassDef):
                self._index_definitions(f"{before}{node.name}.", node.body)
            elif isinstance(node, ast.If | ast.Try):
                self._index_definitions(before, [*node.body, *node.orelse])

    @cached_property
    def _dict_values(self) -> dict[str, list[ast.expr]]:
        """Values in the file's dicts by their keys, where these are texts."""
        found: dict[str, list[ast.expr]] = {}
        for node in ast.walk(self._tree):
            for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    found.setdefault(key.value, []).append(value)
        return found

    def names(self) -> set[str]:
        """Gives the qualified names of its functions and classes."""
        return set(self._found)

    def digest(self, name: str) -> str:
        """Computes the digest of a function, or of a class without its functions; "" where none has that name.

        `[name]` is what stands for a name in the file's dicts, which may be nothing.
        """
        if name.startswith("["):
            values = self._dict_values.get(name[1:-1], ())
            return _short_digest("".join(word for value in values for word in _digest_words(value)))
        node = self._found.get(name)
        return "" if node is None else _short_digest("".join(_digest_words(node)))

    def digest_whole(self, name: str) -> str:
        """Computes the digest of a function or class with all functions in it; "" where none has that name."""
        inner = [other for other in self._found if other.startswith(f"{name}.")]
        found = [self.digest(name), *(word for other in sorted(inner) for word in (other, self.digest(other)))]
        return _short_digest(" ".join(found)) if found[0] else ""

    def name_around(self, line: int) -> str:
        """Names the innermost function or class around a line, or the key of a dict's entry; "" for a line of none."""
        keys = (key for key, values in self._dict_values.items() for value in values if value.lineno == line)
        return self._innermost_definition(line, _DEFINITIONS) or next((f"[{key}]" for key in keys), "")

    def place_of(self, line: int) -> tuple[str, int] | None:
        """Finds the innermost function around a line, and which of its nodes it is; None for a line of none."""
        name = self._innermost_definition(line, _FUNCTIONS)
        lines = self._node_lines(name)
        return (name, lines.index(line)) if line in lines else None

    def _innermost_definition(self, line: int, kinds: tuple[type[ast.AST], ...]) -> str:
        """Names the innermost definition of some kinds around a line; "" for none."""
        around = (
            (last - node.lineno, name)
            for name, node in self._found.items()
            if isinstance(node, kinds) and node.lineno <= line <= (last := node.end_lineno or 0)
        )
        return min(around, default=(0, ""))[1]

    def line_of(self, name: str, index: int) -> int:
        """Gives the line of a node that `place_of` named. Raises Unvouched where there is none."""
        lines = self._node_lines(name)
        if index >= len(lines):
            raise Unvouched(name)
        return lines[index]

    def _node_lines(self, name: str) -> list[int]:
        node = self._found.get(name)
        return [] if node is None else [item.lineno for item in _nodes_of_result(node) if hasattr(item, "lineno")]


def _digest_words(node: ast.AST) -> Iterator[str]:
    """Yields what a digest is made of: the kinds of the nodes, and their values."""
    for item in _nodes_of_result(node):
        yield type(item).__name__
        for field, value in ast.iter_fields(item):
            if field in _OF_TYPES:
                continue
            if isinstance(value, str) and field in {"id", "attr", "arg", "name"}:
                yield _modern_name(value)
            elif not isinstance(value, ast.AST | list):
                yield f"{field}={_modern_name(value) if isinstance(value, str) else value!r} "
        yield ";"


def _nodes_of_result(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a function, or of a class without its functions, that its result depends on."""
    yield node
    for child in _children_of_result(node):
        if not (isinstance(node, ast.ClassDef) and isinstance(child, _DEFINITIONS)):
            yield from _nodes_of_result(child)


def _children_of_result(node: ast.AST) -> Iterator[ast.AST]:
    for field, value in ast.iter_fields(node):
        items = value if isinstance(value, list) else [value]
        if field in _OF_TYPES:
            continue
        if field == "decorator_list":
            items = [item for item in items if _decorator_name(item) not in _SILENT_DECORATORS]
        if field == "body" and isinstance(node, _DEFINITIONS):
            items = [
                item for item in items if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))
            ]
        if isinstance(node, ast.ClassDef):
            items = [item for item in items if not _SILENT_ATTRIBUTES.fullmatch(_assigned_name(item))]
        yield from (item for item in items if isinstance(item, ast.AST) and not isinstance(item, ast.expr_context))


def _assigned_name(node: ast.AST) -> str:
    """Gives the name that an assignment gives a value; "" for anything else."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return targets[0].id if targets and isinstance(targets[0], ast.Name) else ""


def _decorator_name(decorator: ast.AST) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return str(getattr(called, "attr", None) or getattr(called, "id", ""))


def _modern_name(name: str) -> str:
    for old, new in _RENAMED.items():
        name = name.replace(old, new)
    return name


@cache
def source_file(path: str) -> SourceFile | None:
    """Reads a file of the installed Transformers (`models/bert/modeling_bert.py`); None where it can't be read."""
    root = folder_of_package("transformers")
    try:
        return None if root is None else SourceFile((root / path).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None


@cache
def file_digest(path: str) -> str:
    """Computes the digest of the bytes of a file of the installed Transformers; "-" where it can't be read."""
    root = folder_of_package("transformers")
    try:
        return "-" if root is None else hashlib.sha256((root / path).read_bytes()).hexdigest()[:12]
    except OSError:
        return "-"


def code_digest(path: str, names: Iterable[str]) -> str:
    """Computes the digest of some functions and classes in a file of Transformers; "" where one is missing."""
    file = source_file(path)
    found = [] if file is None else [file.digest(name) for name in names]
    return _short_digest("".join(found)) if found and all(found) else ""


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@lru_cache(256)
def sources_stamp(families: tuple[str, ...]) -> tuple[int, int]:
    """Gives the number of source files of these model types, and when the last one changed, in nanoseconds.

    Either differs if the sources have changed without a new version of Transformers.
    They are the files of the families and those that every model uses; all models' where a type has no such folder.
    A family can use the sources of another one, which are not among them. A process looks one time: what it imported
    stays as it was.
    """
    root = folder_of_package("transformers")
    if root is None:
        return 0, 0
    names = [name.replace("-", "_") for name in families]
    own = [f"models/{name}" for name in names if _FAMILY.fullmatch(name) and (root / "models" / name).is_dir()]
    every = [] if len(own) == len(names) else [f"models/{path.name}" for path in _scan_folder(root / "models")]
    stamps = list(_change_times(root / folder for folder in (*EVERYWHERE, *(every or own))))
    return len(stamps), max(stamps, default=0)


def _change_times(folders: Iterable[Path]) -> Iterator[int]:
    """Yields when each Python file changed, or its entry."""
    for entry in chain.from_iterable(map(_scan_folder, folders)):
        if entry.name.endswith(".py"):
            # A file may go meanwhile, or be a link to nowhere.
            with suppress(OSError):
                status = entry.stat()
                yield max(status.st_mtime_ns, status.st_ctime_ns)


def _scan_folder(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError:  # not a folder, or one that can't be read
        return []


_FAMILY = re.compile(r"[a-z0-9_]{1,80}", re.ASCII)


EXTRA_FILES = "extra_files"
"""The field of a configuration's class (since 5.23) that names weight files beside the usual ones."""


def has_extra_files(model_type: str) -> bool:
    """True if the source of a model type's configuration names such files; nothing is imported for it."""
    folder, name = folder_of_package("transformers"), model_type.replace("-", "_")
    files = (folder / "models" / name).glob("configuration_*.py") if folder and name.isidentifier() else ()
    return any(EXTRA_FILES in file.read_text(encoding="utf-8", errors="replace") for file in files)
