"""Draws the floors of the code, from the contract that is linted, and the way of a report; or `--check`s both."""

import ast
import textwrap
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path

from scripts.generated import write_or_compare

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
WIDTH, GAP, LETTERS = 880, 12, 7.5
_IN_A_ROW = 4
_STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #24292f }
  .page { fill: #ffffff }
  .name { font-weight: 600; font-size: 16px }
  .box { fill: #f6f8fa; stroke: #8c959f }
  .heavy .box { fill: #ddf4ff; stroke: #54aeff }
  .arrow { stroke: #57606a; fill: none; stroke-width: 1.3 }
  .tip { fill: #57606a }
  .small { font-size: 10.5px }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .page { fill: #0d1117 }
    .box { fill: #161b22; stroke: #6e7681 }
    .heavy .box { fill: #0c2d4d; stroke: #388bfd }
    .arrow { stroke: #9198a1 }
    .tip { fill: #9198a1 }
  }
"""


def main(arguments: list[str]) -> int:
    """Writes the pictures, or says whether they are as they would be drawn."""
    drawn = {"architecture.svg": floors(), "flow.svg": flow(), "flow.mmd": flowchart()}
    return max(write_or_compare(IMAGES / name, fresh, arguments) for name, fresh in drawn.items())


_NODES = {
    "reference": (0, 1), "manifest": (1, 1), "skeleton": (2, 0), "weight diff": (2, 2), "head path": (3, 0),
    "report": (4, 1), "findings": (5, 0), "screen, picture": (5, 2),
}  # fmt: skip
"""What is passed on, with its column and row."""
_EDGES = (
    ("reference", "manifest", "checkpoints"), ("manifest", "skeleton", "model"), ("manifest", "weight diff", "model"),
    ("skeleton", "head path", "trace"), ("head path", "report", ""), ("weight diff", "report", ""),
    ("report", "findings", "checks"), ("findings", "screen, picture", ""),
    ("report", "screen, picture", "slices"),
)  # fmt: skip
_COLUMN, _ROW, _NODE, _TALL = 154, 56, 86, 40


def flow() -> str:
    """The way from a reference to what is shown: what is passed on in boxes, the package that makes it on the arrow."""
    height = 2 * _ROW + _TALL + 2 * GAP
    body: list[str] = []
    for start, end, name in _EDGES:
        body += _arrow(_NODES[start], _NODES[end], name)
    for name, (column, row) in _NODES.items():
        left, top = GAP + column * _COLUMN, GAP + row * _ROW
        lines = textwrap.wrap(name, 11)
        body.append(f'<rect class="box" x="{left}" y="{top}" width="{_NODE}" height="{_TALL}" rx="6"/>')
        for number, words in enumerate(lines):
            at = top + _TALL / 2 + 5 + 16 * (number - (len(lines) - 1) / 2)
            body.append(f'<text text-anchor="middle" x="{left + _NODE / 2:.0f}" y="{at:.0f}">{escape(words)}</text>')
    return "\n".join([*_opening("How a reference becomes a report", height), *body, "</svg>"]) + "\n"


def _arrow(start: tuple[int, int], end: tuple[int, int], name: str) -> Iterator[str]:
    """From the right side of one box to the left side of another, or straight down in one column."""
    below = start[0] == end[0]
    x1 = GAP + start[0] * _COLUMN + (_NODE / 2 if below else _NODE)
    y1 = GAP + start[1] * _ROW + (_TALL if below else _TALL / 2)
    x2 = GAP + end[0] * _COLUMN + (_NODE / 2 if below else 0)
    y2 = GAP + end[1] * _ROW + (0 if below else _TALL / 2)
    yield f'<path class="arrow" d="M{x1:.0f} {y1:.0f} L{x2:.0f} {y2:.0f}" marker-end="url(#tip)"/>'
    if name:
        level = y1 == y2
        x, y = (x1 + x2) / 2 - (0 if level else 10), (y1 + y2) / 2 + (-6 if level else 10 if y2 > y1 else -2)
        anchor = "middle" if level else "end"
        yield f'<text class="small" text-anchor="{anchor}" x="{x:.0f}" y="{y:.0f}">{name}</text>'


def flowchart() -> str:
    """The same way as a Mermaid flowchart."""
    ids = {name: f"n{number}" for number, name in enumerate(_NODES)}
    lines = ["flowchart LR", *(f'  {ids[name]}["{name}"]' for name in _NODES)]
    for start, end, name in _EDGES:
        lines.append(f"  {ids[start]} -->{f'|{name}|' if name else ''} {ids[end]}")
    return "\n".join(lines) + "\n"


def floors() -> str:
    """The floors from top to bottom, each with its packages and the first line of what they say of themselves."""
    body: list[str] = []
    top = GAP
    for names in levels_of_rooms():
        width = (WIDTH - GAP * (len(names) + 1)) / len(names)
        words = {name: textwrap.wrap(_said(name), int((width - 24) / LETTERS)) for name in names}
        height = 36 + 17 * max(map(len, words.values()))
        for number, name in enumerate(names):
            heavy = name in {"core.model", "core.trace"}
            body += _box(name, words[name], (GAP + number * (width + GAP), top, width, height), heavy=heavy)
        top += height + GAP
    title = "The packages of headscope: each imports those below it, never those above"
    return "\n".join([*_opening(title, top), *body, "</svg>"]) + "\n"


def levels_of_rooms() -> Iterator[list[str]]:
    """The rooms of each level, by their dotted names: those of the use cases and of the core one by one."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    floors, rooms, core = (item["layers"] for item in settings["contracts"][:3])
    for floor in floors:
        if floor == "slices":
            for level in rooms:
                names = [name.strip().removeprefix("headscope.") for name in level.split("|")]
                yield from (names[at : at + _IN_A_ROW] for at in range(0, len(names), _IN_A_ROW))
        elif floor == "core":
            yield from ([f"core.{name.strip()}" for name in level.split("|")] for level in core)
        else:
            yield [name.strip() for name in floor.split("|")]


def _opening(title: str, height: int) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{title}">'
    )
    yield f"<title>{title}</title>"
    yield f"<style>{_STYLE}</style>"
    # A page that is always light may hold the picture of a reader who likes it dark.
    yield f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>'
    yield (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>'
    )


def _box(name: str, words: list[str], place: tuple[float, float, float, float], *, heavy: bool) -> Iterator[str]:
    left, top, width, height = place
    yield f'<g class="{"heavy" if heavy else "light"}">'
    yield f'<rect class="box" x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{height:.0f}" rx="6"/>'
    yield f'<text class="name" x="{left + 12:.0f}" y="{top + 22:.0f}">{name.rpartition(".")[2]}</text>'
    for line, text in enumerate(words):
        yield f'<text x="{left + 12:.0f}" y="{top + 42 + 17 * line:.0f}">{escape(text)}</text>'
    yield "</g>"


def _said(name: str) -> str:
    """The first sentences of a package or a module on itself."""
    place = ROOT / "headscope" / name.replace(".", "/")
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n")[0].replace("`", "")
