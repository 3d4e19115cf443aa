"""Writes docs/atlas.md from the installed Transformers: `write_atlas.py`, or `--check` to compare."""

import difflib
import sys
from importlib import metadata
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "atlas.md"


def main(arguments: list[str]) -> int:
    """Writes the page; with `--check` shows the difference instead and returns 1 where there is one."""
    from headscope import api, render

    fresh = render.atlas_page(api.heads(), metadata.version("transformers"))
    if "--check" not in arguments:
        PAGE.write_text(fresh, encoding="utf-8")
        return 0
    present = PAGE.read_text(encoding="utf-8")
    lines = list(difflib.unified_diff(present.splitlines(), fresh.splitlines(), "docs/atlas.md", "now", lineterm=""))
    print("\n".join(lines))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
