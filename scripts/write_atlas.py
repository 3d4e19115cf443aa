"""Writes docs/atlas.md from the installed Transformers: `write_atlas.py`, or `--check` to compare."""

import sys
from importlib import metadata
from pathlib import Path

from generated import write_or_compare

PAGE = Path(__file__).resolve().parent.parent / "docs" / "atlas.md"


def main(arguments: list[str]) -> int:
    """Writes the page; with `--check` shows the difference instead and returns 1 where there is one."""
    from headscope import api, render

    fresh = render.atlas_page(api.heads(), metadata.version("transformers"))
    return write_or_compare(PAGE, fresh, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
