"""Writes the tables of docs/benchmarks.md from the record that `python -m benchmarks --record` keeps, or `--check`s."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "benchmarks" / "README.md"
_BEGIN, _END = "<!-- below: scripts/pages/write_benchmarks.py -->", "<!-- above: scripts/pages/write_benchmarks.py -->"
"""What is before and after them in the page is written by hand."""
_ROW = re.compile(r"^\| *(?:`(?P<name>\w+)`)? *\| (?P<what>.+) \| (?P<goal>.+) \|$", re.MULTILINE)


def main(arguments: list[str]) -> int:
    """Writes the page, or says whether it is as it would be written."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(_BEGIN)[0], text.partition(_END)[2]
    fresh = f"{before}{_BEGIN}\n\n{measured_page()}\n{_END}{after}"
    if arguments != ["--check"]:
        PAGE.write_text(fresh, encoding="utf-8")
    elif text != fresh:
        sys.stderr.write(
            "docs/benchmarks.md is not what the record says; run `python -m scripts.generate benchmarks`\n"
        )
        return 1
    return 0


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
        cells = (f"`{name}`" if number == 0 else "", goal.what, _bound(goal), _ratio(goal.ratio), _verdict(goal))
        yield f"| {' | '.join(cells)} |"


def _bound(goal: Any) -> str:
    return "none" if goal.limit is None else f"at {'least' if goal.at_least else 'most'} {goal.limit:g}x"


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
