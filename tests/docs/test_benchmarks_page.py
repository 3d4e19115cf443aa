"""The benchmarks' page: its values are those of the record, and what was not measured says so."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import record
from benchmarks.goals import Goal, Ratio

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    """The script, with a record of its own."""
    monkeypatch.setattr(record, "RECORD", tmp_path / "measured.json")
    monkeypatch.delitem(sys.modules, "scripts.pages.write_benchmarks", raising=False)
    from scripts.pages import write_benchmarks

    return write_benchmarks


def test_without_a_record_nothing_is_measured(page: object) -> None:
    rows = [line for line in page.measured_page().splitlines() if line.startswith("| ") and "benchmark" not in line]
    assert len(rows) >= 7
    assert all(line.endswith("| not measured | |") for line in rows)
    assert not any("met" in line.split("|") for line in rows)


@pytest.mark.parametrize(
    ("goal", "cells"),
    [
        (Goal("a", Ratio(1.2, 1.1, 1.25), 1.3), "| at most 1.3x | 1.20x (1.10 - 1.25) | met |"),
        (Goal("a", Ratio(1.2, 1.1, 1.4), 1.3), "| at most 1.3x | 1.20x (1.10 - 1.40) | met, not in every round |"),
        (Goal("a", Ratio(1.4, 1.4, 1.4), 1.3), "| at most 1.3x | 1.40x | **missed** |"),
        (Goal("a", Ratio(4, 3, 6), 5, True), "| at least 5x | 4.00x (3.00 - 6.00) | **missed**, not in every round |"),
        (Goal("a", None, 1.3), "| at most 1.3x | not measured |  |"),
        (Goal("a", Ratio(1.2, 1.1, 1.4)), "| none | 1.20x (1.10 - 1.40) |  |"),
    ],
)
def test_what_a_benchmark_gives_is_recorded_and_shown(page: object, goal: Goal, cells: str) -> None:
    def benchmark(rounds: int) -> list[Goal]:
        print(f"printed, {rounds} rounds")
        return [goal]

    assert record.recording("help", benchmark)(3) == [goal]
    shown = page.measured_page()
    assert f"| `help` | a {cells}" in shown
    assert "```text\nprinted, 3 rounds\n```" in shown
    assert "3 rounds at " in shown
    assert "| `bert` | `inspect` of a local BERT-base" in shown


def test_a_record_keeps_the_other_benchmarks(page: object) -> None:
    for name in ("help", "bert"):
        record.recording(name, lambda _rounds: [])(1)
    assert list(json.loads(record.RECORD.read_text())) == ["bert", "help"]


def test_every_figure_of_the_record_names_its_versions_and_its_commit() -> None:
    for name, entry in record.read_record().items():
        assert set(entry["with"]) >= {"commit", "rounds", "cores", "python", "torch", "transformers"}, name
        assert entry["with"]["commit"], name
        assert entry["goals"], name
        assert entry["output"], name
