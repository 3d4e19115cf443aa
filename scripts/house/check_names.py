"""Checks that names say what they mean: public ones are unique, and private functions name their object.

Also refuses a bare text after a statement other than an assignment, and prints figures on the code. Exits with 1
where a rule is broken.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2] / "headscope"
ON_PURPOSE = {
    "KNOWLEDGE": "each reader of an export says what its answer rests on",
    "shown_line": "each room that shows a result writes it in one line; `headscope/commands.py` names the module",
    "shown_screen": "and as a screen",
    "STABILITY": "marks the facts of a module as stable or experimental in the schema",
}
"""Names that several modules define with one meaning each time, and the reason."""


ONE_WORD: frozenset[str] = frozenset()
"""Private functions that keep a name of one word, as `file:name`. This may only shrink."""
_RIDDLE = re.compile(r"(The|What|Whether|Of|Where|How|Which) ")
_SHORT_BODY = 4


def names_with_homes(package: Path) -> dict[str, set[str]]:
    """The public names that the package's modules define at their top, with the modules that define each."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for file, (tree, *_) in _nodes_of(package):
        for item in tree.body:
            for name in _defined(item):
                if not name.startswith("_"):
                    found[name].add(file.relative_to(package).as_posix())
    return found


def _defined(item: ast.stmt) -> Iterator[str]:
    match item:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def one_word_functions(package: Path) -> set[str]:
    """Private functions and methods whose name is one word, as `file:name`: it can't say what is done to what."""
    return {
        f"{file.relative_to(package).as_posix()}:{item.name}"
        for file, nodes in _nodes_of(package)
        for item in nodes
        if isinstance(item, ast.FunctionDef) and re.fullmatch(r"_[a-z0-9]+", item.name)
    }


def orphan_texts(package: Path) -> set[str]:
    """Texts that document nothing: they follow a statement other than an assignment."""
    return {
        f"{file.relative_to(package).as_posix()}:{text.lineno}"
        for file, nodes in _nodes_of(package)
        for owner in nodes
        for before, text in _neighbors(getattr(owner, "body", None))
        if isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
        and not isinstance(before, ast.Assign | ast.AnnAssign)
    }


def _neighbors(body: object) -> Iterator[tuple[ast.stmt, ast.stmt]]:
    """Each statement of a block with the one before it; a docstring has none before it."""
    if isinstance(body, list):
        yield from pairwise(body)


def figures(package: Path) -> dict[str, int]:
    """How the code reads: what a stranger stumbles over, counted."""
    texts = [(file, file.read_text(encoding="utf-8")) for file in sorted(package.rglob("*.py"))]
    uses = Counter(word for _, text in texts for word in re.findall(r"\b_\w+", text))
    functions = [item for _, nodes in _nodes_of(package) for item in nodes if isinstance(item, ast.FunctionDef)]
    # A function in a table, or one that is passed on, isn't on the way of a caller.
    calls = {_called_name(item) for _, nodes in _nodes_of(package) for item in nodes if isinstance(item, ast.Call)}
    private = [item for item in functions if item.name.startswith("_") and not item.name.startswith("__")]
    return {
        "lines": sum(text.count("\n") for _, text in texts),
        "docstrings of functions that begin with The, What or Whether": sum(
            bool(_RIDDLE.match(ast.get_docstring(item) or "")) for item in functions
        ),
        f"helpers of up to {_SHORT_BODY} lines with one caller": sum(
            uses[item.name] == 2 and item.name in calls and _lines_of(item) <= _SHORT_BODY for item in private
        ),
        "comments": sum(_comments_in(text) for _, text in texts),
    }


def _called_name(call: ast.Call) -> str:
    """The name of what is called, without what it is of; "" for what has none."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _lines_of(function: ast.FunctionDef) -> int:
    """The lines of a function's body without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def _comments_in(text: str) -> int:
    """How many comments speak to a reader, not to a tool."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(
        token.type == tokenize.COMMENT and not re.match(r"#\s*(fmt|noqa|type|pragma)", token.string) for token in tokens
    )


@cache
def _nodes_of(package: Path) -> tuple[tuple[Path, list[Any]], ...]:
    """Parses every file of a package once; the first node of each is its module."""
    files = sorted(package.rglob("*.py"))
    return tuple((file, list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))) for file in files)


def main() -> int:
    """Prints each name that breaks a rule, and the figures."""
    found = names_with_homes(PACKAGE)
    twice = {name: homes for name, homes in found.items() if len(homes) > 1 and name not in ON_PURPOSE}
    for name, homes in sorted(twice.items()):
        print(f"{name}: {', '.join(sorted(homes))}")
    once = sorted(name for name in ON_PURPOSE if len(found.get(name, ())) < 2)
    for name in once:
        print(f"{name}: in ON_PURPOSE, but defined once at most")
    one_word, orphans = one_word_functions(PACKAGE), orphan_texts(PACKAGE)
    for name in sorted(one_word - ONE_WORD):
        print(f"{name}: a private function's name says what it does to what: give it two words or more")
    for name in sorted(ONE_WORD - one_word):
        print(f"{name}: in ONE_WORD, but no such function is left")
    for place in sorted(orphans):
        print(f"{place}: a text that documents nothing")
    print(f"names with two meanings {len(twice)}, private functions of one word {len(one_word)}")
    print(", ".join(f"{name} {count:,}" for name, count in figures(PACKAGE).items()))
    return int(bool(twice or once or one_word ^ ONE_WORD or orphans))


if __name__ == "__main__":
    sys.exit(main())
