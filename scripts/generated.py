"""A page that a script makes: written, or compared with what is there."""

import difflib
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def write_or_compare(page: Path, fresh: str, arguments: list[str]) -> int:
    """Writes the page; with `--check` prints the difference instead and gives 1 where there is one."""
    if "--check" not in arguments:
        page.write_text(fresh, encoding="utf-8")
        return 0
    present, name = page.read_text(encoding="utf-8") if page.exists() else "", str(page.relative_to(_ROOT))
    lines = list(difflib.unified_diff(present.splitlines(), fresh.splitlines(), name, "now", lineterm=""))
    print(*lines, sep="\n", end="\n" if lines else "")
    return int(bool(lines))


def with_part(page: Path, script: str, part: str) -> str:
    """The text of a page with another part between the marks of a script; what is around them is written by hand."""
    below, above = f"<!-- below: scripts/{script} -->", f"<!-- above: scripts/{script} -->"
    text = page.read_text(encoding="utf-8")
    return f"{text.partition(below)[0]}{below}\n\n{part}\n{above}{text.partition(above)[2]}"
