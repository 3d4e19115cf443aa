"""Writes what is generated, in one process: `python -m scripts.generate [NAME ...] [--check]`.

Without a name, everything but what takes hours. `--check` compares instead, and fails if anything would change.
"""

import argparse
import os
import sys
import tempfile
from importlib import import_module
from time import monotonic
from typing import NamedTuple


class Generated(NamedTuple):
    """Something that a script makes: the script, and what it makes of what."""

    module: str
    meaning: str
    is_slow: bool = False


TABLE = {
    "rules": Generated("pages.write_rules", "docs/rules.md, from the rules and the topics of `explain`"),
    "states": Generated(
        "pages.write_states", "the table in docs/states.md, from what `python -m states.table` saw last"
    ),
    "schema": Generated("pages.write_schema", "docs/schema, from the facts"),
    "reference": Generated(
        "pages.write_reference", "docs/cli.md, json.md, api.md, commands of the skill, from commands, facts, docstrings"
    ),
    "architecture": Generated(
        "pages.write_architecture", "pictures of docs/architecture.md, from the linted contracts"
    ),
    "benchmarks": Generated("pages.write_benchmarks", "docs/benchmarks.md, from benchmarks/measured.json"),
    "changes": Generated("pages.write_changes", "docs/changes.md, from docs/versions/*.json"),
    "engines": Generated("engines.write_engines", "docs/engines.md, from the cited facts and the runs"),
    "surface": Generated("pages.write_surface", "docs/surface.txt, from everything public"),
    "health": Generated("shipped.calibrate_health", "docs/health.md and its picture, from benchmarks/health_heads.csv"),
    # `questions` sets the width of the terminal, which pictures of screens follow, so it comes after them.
    "pictures": Generated(
        "site.write_pictures", "heads in docs/images, from snapshots and modules in docs/questions.md"
    ),
    "questions": Generated("pages.write_questions", "output in `console` blocks, from the commands in them"),
    "atlas": Generated(
        "pages.write_atlas", "docs/atlas.json and atlas.md, from the installed Transformers", is_slow=True
    ),
    "shipped": Generated(
        "shipped.write_shipped", "the shipped facts, from docs/atlas.json and Transformers", is_slow=True
    ),
}


def main() -> int:
    """Runs the scripts that are named."""
    lines = "\n".join(f"  {name:<13}{item.meaning}{', slow' if item.is_slow else ''}" for name, item in TABLE.items())
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=lines, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *TABLE], help="see below")
    parser.add_argument("--check", action="store_true", help="compare instead")
    given = parser.parse_args()
    names = [name for name, item in TABLE.items() if (name in given.names if given.names else not item.is_slow)]
    with tempfile.TemporaryDirectory() as empty:
        # The Hub's client reads these once, when the first script imports it: nobody's own files belong into a page.
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": empty, "HF_HUB_CACHE": empty}
        failed = [name for name in names if _run_script(name, ["--check"] if given.check else [])]
    if failed:
        print(f"run `python -m scripts.generate {' '.join(failed)}`", file=sys.stderr)
    return int(bool(failed))


def _run_script(name: str, arguments: list[str]) -> int:
    """Runs one script, prints how it went and how long it took, and gives its exit status."""
    start = monotonic()
    status: int = import_module(f"scripts.{TABLE[name].module}").main(arguments)
    print(f"{name}: {'differs' if status else 'ok'} ({monotonic() - start:.0f} s)", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
