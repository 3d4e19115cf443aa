"""Rows of the table of states: what headscope says of a real save, and that its repair brings the weights back.

The first of each kind; every row with `make states`, which takes minutes, and which whoever changes a recognizer runs.
"""

import os
from itertools import groupby
from pathlib import Path

import pytest
from states.table import ENTRIES
from states.table.entry import Entry
from states.table.observe import assert_as_said


@pytest.fixture(autouse=True)
def _cached(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` takes what `inspect` has just seen, as it does for everybody."""
    monkeypatch.delenv("HEADSCOPE_NO_CACHE", raising=False)
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))


def rows() -> list[Entry]:
    """Every row, or the first of each kind that the installed libraries can make."""
    if os.environ.get("HEADSCOPE_EVERY_STATE"):
        return list(ENTRIES)
    made = [row for row in ENTRIES if not row.lacks()]
    return [next(some) for _, some in groupby(sorted(made, key=lambda row: row.kind), key=lambda row: row.kind)]


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{row.kind}: {row.name}") for row in rows()])
def test_the_state_is_named_and_its_repair_brings_the_weights_back(row: Entry, tmp_path: Path) -> None:
    if row.lacks():
        pytest.skip(f"{row.lacks()} is not installed")
    assert_as_said(row, tmp_path)
