"""A page that a script makes: written, or compared with what is there."""

import difflib
from pathlib import Path


def write_or_compare(page: Path, fresh: str, arguments: list[str]) -> int:
    """Writes the page; with `--check` prints the difference instead and gives 1 where there is one."""
    if "--check" not in arguments:
        page.write_text(fresh, encoding="utf-8")
        return 0
    present, name = page.read_text(encoding="utf-8"), f"docs/{page.name}"
    lines = list(difflib.unified_diff(present.splitlines(), fresh.splitlines(), name, "now", lineterm=""))
    print("\n".join(lines))
    return int(bool(lines))
