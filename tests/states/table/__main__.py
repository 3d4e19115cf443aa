"""Runs the rows that this environment can make and keeps what was seen: `python -m states.table [PART OF A NAME]`."""

import os
import sys
import tempfile
import traceback
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from states.table import ENTRIES
from states.table.entry import Entry
from states.table.observe import assert_as_said
from states.table.record import keep


def main(arguments: list[str]) -> int:
    """The number of rows that went wrong."""
    wrong = 0
    for row in ENTRIES:
        wanted = not arguments or any(part in f"{row.kind}: {row.name}" for part in arguments)
        if wanted and not row.lacks():
            wrong += not _kept(row)
    return wrong


def _kept(row: Entry) -> bool:
    with tempfile.TemporaryDirectory() as place:
        os.environ["HEADSCOPE_CACHE"] = str(Path(place) / "cache")
        try:
            seen = assert_as_said(row, Path(place))
        except Exception:
            sys.stderr.write(f"{row.kind}: {row.name}\n{traceback.format_exc()[-1500:]}\n")
            return False
    keep(row, seen)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
