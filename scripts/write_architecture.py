"""Draws docs/images/architecture.svg, the floors of the code, from the contract that is linted; or `--check`s it."""

import ast
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
WIDTH, GAP, LETTERS = 880, 12, 6.9
_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .name { font-weight: 600; font-size: 15px }
  .box { fill: #f6f8fa; stroke: #8c959f }
  .heavy .box { fill: #ddf4ff; stroke: #54aeff }
  .arrow { stroke: #57606a; fill: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .box { fill: #161b22; stroke: #6e7681 }
    .heavy .box { fill: #0c2d4d; stroke: #388bfd }
    .arrow { stroke: #9198a1 }
  }
"""


def main(arguments: list[str]) -> int:
    """Writes the picture, or says whether it is as it would be drawn."""
    fresh = picture()
    if arguments != ["--check"]:
        PICTURE.write_text(fresh, encoding="utf-8")
        return 0
    if PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == fresh:
        return 0
    sys.stderr.write("docs/images/architecture.svg is not what the contract says; run scripts/write_architecture.py\n")
    return 1


def picture() -> str:
    """The floors from top to bottom, each with its packages and the first line of what they say of themselves."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    floors = [[name.strip() for name in floor.split("|")] for floor in settings["contracts"][0]["layers"]]
    without_torch = settings["contracts"][1]["source_modules"]
    body: list[str] = []
    top = GAP
    for names in floors:
        width = (WIDTH - GAP * (len(names) + 1)) / len(names)
        words = {name: textwrap.wrap(_said(name), int((width - 24) / LETTERS)) for name in names}
        height = 36 + 17 * max(map(len, words.values()))
        for number, name in enumerate(names):
            heavy = f"headscope.{name}" not in without_torch and name in {"model", "trace"}
            body += _box(name, words[name], (GAP + number * (width + GAP), top, width, height), heavy=heavy)
        top += height + GAP
    title = "The packages of headscope: each imports those below it, never those above"
    return "\n".join([*_opening(title, top), *body, "</svg>"]) + "\n"


def _opening(title: str, height: int) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{title}">'
    )
    yield f"<title>{title}</title>"
    yield f"<style>{_STYLE}</style>"


def _box(name: str, words: list[str], place: tuple[float, float, float, float], *, heavy: bool) -> Iterator[str]:
    left, top, width, height = place
    yield f'<g class="{"heavy" if heavy else "light"}">'
    yield f'<rect class="box" x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{height:.0f}" rx="6"/>'
    yield f'<text class="name" x="{left + 12:.0f}" y="{top + 22:.0f}">{name}</text>'
    for line, text in enumerate(words):
        yield f'<text x="{left + 12:.0f}" y="{top + 42 + 17 * line:.0f}">{escape(text)}</text>'
    yield "</g>"


def _said(name: str) -> str:
    """The first sentences of a package or a module on itself."""
    file = ROOT / "headscope" / name / "__init__.py"
    file = file if file.exists() else ROOT / "headscope" / f"{name}.py"
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n")[0].replace("`", "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
