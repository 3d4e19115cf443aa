"""Cells of a CSV file that a spreadsheet can open: no cell is a formula, and none is invisible or too long."""

import re
from collections.abc import Mapping
from typing import Any

from headscope.core.words.safe import safe

LONGEST_CELL = 32_767
"""What Excel holds in a cell: it moves the rest into other rows.

https://support.microsoft.com/en-us/office/1672b34d-7043-467e-8e27-269d656771c3
"""
_CUT = "..."
_ACTIVE = re.compile(r"""(^|;)(?=[\s"]*[=+\-@'\uff1d\uff0b\uff0d\uff20])""")
"""Where a formula can begin: at the start, or behind the `;` at which spreadsheets of many countries split a line.

Quotes may stand between: such a spreadsheet takes them for its own. The last four signs are the wide forms of `=+-@`.
https://owasp.org/www-community/attacks/CSV_Injection
"""


def csv_cells(row: Mapping[str, Any]) -> list[str]:
    """Turns the values of a row into cells: null is empty, a list is joined by ` | `, and text begins no formula.

    >>> csv_cells({"reference": "=1+1", "new": None, "labels": ["no", "a|b"], "seconds": -0.5})
    ["'=1+1", '', 'no | a\\\\|b', '-0.5']
    """
    return [_cell_text(value) for value in row.values()]


def _cell_text(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return _disarm_formulas(value)
        case list():
            return _disarm_formulas(" | ".join(str(item).replace("|", "\\|") for item in value))
    return str(value)


def _disarm_formulas(text: str) -> str:
    """Puts an apostrophe wherever a formula could begin in `text`; without these it is the same text again."""
    made = _ACTIVE.sub(r"\1'", safe(text))
    return made if len(made) <= LONGEST_CELL else made[: LONGEST_CELL - len(_CUT)] + _CUT
