"""Every public class, function, type and constant of the package has its own name. Exits with 1 otherwise."""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "headscope"
ON_PURPOSE = {
    "KNOWLEDGE": "each reader of an export says what its answer rests on",
    "STABILITY": "marks the facts of a module as stable or experimental in the schema",
}
"""Names that several modules define with one meaning each time, and the reason."""


def names_with_homes(package: Path) -> dict[str, set[str]]:
    """The public names that the package's modules define at their top, with the modules that define each."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for file in sorted(package.rglob("*.py")):
        for item in ast.parse(file.read_text(encoding="utf-8")).body:
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


def main() -> int:
    """Prints each name that several modules define."""
    found = names_with_homes(PACKAGE)
    twice = {name: homes for name, homes in found.items() if len(homes) > 1 and name not in ON_PURPOSE}
    for name, homes in sorted(twice.items()):
        print(f"{name}: {', '.join(sorted(homes))}")
    once = sorted(name for name in ON_PURPOSE if len(found.get(name, ())) < 2)
    for name in once:
        print(f"{name}: in ON_PURPOSE, but defined once at most")
    print(f"names with two meanings {len(twice)}")
    return int(bool(twice or once))


if __name__ == "__main__":
    sys.exit(main())
