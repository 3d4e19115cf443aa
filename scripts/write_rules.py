"""Writes docs/rules.md from the topics that `headscope explain` shows: `write_rules.py`, or `--check` to compare."""

import sys
from pathlib import Path

from headscope.render.explain import rules_page

PAGE = Path(__file__).resolve().parent.parent / "docs" / "rules.md"


def main(arguments: list[str]) -> int:
    """Writes the page, or says whether it is as it would be written."""
    fresh = rules_page()
    if arguments != ["--check"]:
        PAGE.write_text(fresh, encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == fresh:
        return 0
    sys.stderr.write("docs/rules.md is not what the topics say; run scripts/write_rules.py\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
