"""What was seen of each row, kept beside the code: `docs/states.md` shows it, and a run of the table renews it."""

import fcntl
import json
from pathlib import Path
from typing import Any

from states.table.entry import Entry
from states.table.observe import Seen

RECORD = Path(__file__).with_name("record.json")


def keep(row: Entry, seen: Seen) -> None:
    """Writes what was seen of a row into the record."""
    with RECORD.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known: dict[str, Any] = json.loads(file.read() or "{}")
        known[f"{row.kind}: {row.name}"] = {
            "kind": row.kind,
            "name": row.name,
            "code": row.code,
            "versions": [item.partition("+")[0] for item in seen.versions],
            "inspect": seen.inspect,
            "check": seen.check,
            "verdict": seen.verdict,
            "rules": list(seen.rules or [item for item in row.findings if item in seen.findings]),
            "tool": seen.tool,
            "after": seen.repaired,
            "not_run": row.repaired if isinstance(row.repaired, str) else "",
        }
        file.seek(0)
        file.truncate()
        file.write(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
