"""Writes the tables of docs/benchmarks.md from the record that `python -m benchmarks --record` keeps, or `--check`s."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.generated import with_part, write_or_compare

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "benchmarks" / "README.md"
_ROW = re.compile(r"^\| *(?:`(?P<name>\w+)`)? *\| (?P<what>.+) \| (?P<goal>.+) \|$", re.MULTILINE)


def main(arguments: list[str]) -> int:
    """Writes the page, or says whether it is as it would be written."""
    return write_or_compare(PAGE, with_part(PAGE, "pages/write_benchmarks.py", measured_page()), arguments)


def measured_page() -> str:
    """What every benchmark promises with what was measured last, then the measurements as they were printed."""
    from benchmarks.__main__ import BENCHMARKS
    from benchmarks.record import read_record

    record = read_record()
    lines = ["## Goals and the last measurement", ""]
    lines += ["| benchmark | compares | goal | measured (smallest - largest) | result |", "|---|---|---|---|---|"]
    for name in BENCHMARKS:
        lines += _rows(name, record[name]["goals"]) if name in record else _unmeasured(name)
    lines += ["", "## As it was printed", ""]
    for name in (name for name in BENCHMARKS if name in record):
        lines += [f"### {name}", "", _surroundings(record[name]["with"]), "", "```text"]
        lines += [line.rstrip() for line in "\n".join(record[name]["output"]).strip("\n").splitlines()] + ["```", ""]
    return "\n".join(lines).rstrip() + "\n"


def _rows(name: str, goals: list[dict[str, Any]]) -> Iterator[str]:
    from benchmarks.goals import Goal, Ratio

    for number, plain in enumerate(goals):
        goal = Goal(**(plain | {"ratio": Ratio(*plain["ratio"]) if plain["ratio"] else None}))
        cells = (f"`{name}`" if number == 0 else "", goal.what, goal.bound, _ratio(goal.ratio), _verdict(goal))
        yield f"| {' | '.join(cells)} |"


def _ratio(ratio: Any) -> str:
    """The ratio, with its span where there is one: bytes are counted, and some seconds are the best of the rounds."""
    if ratio is None:
        return "not measured"
    span = "" if ratio.low == ratio.high else f" ({ratio.low:.2f} - {ratio.high:.2f})"
    return f"{ratio.value:.2f}x{span}"


def _verdict(goal: Any) -> str:
    """Met or missed; and whether single rounds say the opposite, so that it is not to be relied on."""
    if goal.limit is None or goal.ratio is None:
        return ""
    verdict = "met" if goal.met else "**missed**"
    return f"{verdict}, not in every round" if goal.ratio.low < goal.limit < goal.ratio.high else verdict


def _unmeasured(name: str) -> Iterator[str]:
    """The rows of the table in benchmarks/README.md, for a benchmark of which there is no record."""
    found = [item.groupdict() for item in _ROW.finditer(README.read_text(encoding="utf-8"))]
    begin = next(number for number, item in enumerate(found) if item["name"] == name)
    for number, item in enumerate(found[begin:]):
        if number and item["name"]:
            return
        shown = f"`{name}`" if number == 0 else ""
        yield f"| {shown} | {item['what']} | {item['goal']} | not measured | |"


def _surroundings(record: dict[str, Any]) -> str:
    versions = (
        f"PyTorch {record['torch']}, Transformers {record['transformers']}, huggingface_hub {record['huggingface_hub']}"
    )
    rounds = f"{record['rounds']} rounds" if record["rounds"] > 1 else "1 round"
    return f"{rounds} at commit `{record['commit']}`: {record['cores']} cores, Python {record['python']}, {versions}."
