"""Every public class and function of the package has its own name. Exits with 1 otherwise."""

import ast
import sys
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "headscope"


def names_with_homes(package: Path) -> dict[str, set[str]]:
    """The public classes and functions at the top of the package's modules, with the modules that define each."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for file in sorted(package.rglob("*.py")):
        for item in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(item, ast.ClassDef | ast.FunctionDef) and not item.name.startswith("_"):
                found[item.name].add(file.relative_to(package).as_posix())
    return found


def main() -> int:
    """Prints each name that several modules define."""
    twice = {name: homes for name, homes in names_with_homes(PACKAGE).items() if len(homes) > 1}
    for name, homes in sorted(twice.items()):
        print(f"{name}: {', '.join(sorted(homes))}")
    print(f"names with two meanings {len(twice)}")
    return int(bool(twice))


if __name__ == "__main__":
    sys.exit(main())
