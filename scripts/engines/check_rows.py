"""Says which rows of the facts on an engine cite code that another version of it has otherwise.

`python -m scripts.engines.check_rows ENGINE FOLDER [--write]`: FOLDER holds the package, such as the site-packages of
an environment or an unpacked wheel. Rows whose code is the same hold for that version; read the others again. With
`--write`, the facts get the digests of this version, which must be the one that they were read of.
"""

import argparse
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from headscope.shared.serving import cited

_FACTS = Path(cited.__file__).parent / "facts"
_ROW = re.compile(r'^file = "(?P<file>[^"]+)"\nline = (?P<line>\d+)\n(?:code = "(?P<code>[^"]*)"\n)?', re.MULTILINE)


def main() -> int:
    """Prints each row that changed, and how many did; 1 if any did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=cited.engine_names())
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    path = _FACTS / f"{given.engine.replace('-', '_')}.toml"
    text = path.read_text(encoding="utf-8")
    if given.write:
        text = _ROW.sub(lambda row: _with_code(row, given.folder), text)
        tomllib.loads(text)
        path.write_text(text, encoding="utf-8")
    counts: Counter[str] = Counter()
    for how, line in _compared(text, given.folder):
        counts[how] += 1
        if line:
            print(line)
    print(f"{given.engine}:", ", ".join(f"{count} {how}" for how, count in counts.items()))
    return int(counts["changed"] > 0)


def _with_code(row: re.Match[str], folder: Path) -> str:
    code = cited.cited_code(folder, row["file"], int(row["line"]))
    lines = f'file = "{row["file"]}"\nline = {row["line"]}\n'
    return f'{lines}code = "{code}"\n' if code else lines


def _compared(text: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Yields how each row stands, and a line on one that doesn't hold."""
    for row in _ROW.finditer(text):
        place = f"{row['file']}:{row['line']}"
        if row["code"] is None:
            yield "not followed", f"{place}: not followed: its code isn't that of a function, a class or an entry"
        elif cited.cited_code(folder, row["file"], row["code"].split()[0]) == row["code"]:
            yield "the same", ""
        else:
            yield "changed", f"{place}: {row['code'].split()[0]} changed"


if __name__ == "__main__":
    raise SystemExit(main())
