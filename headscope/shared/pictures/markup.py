"""Markup of pictures and pages: escaped XML, colors on light and dark ground, an empty page."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Tint(StrEnum):
    """Color of a node or a weight. The status of a weight is a tint with the same value."""

    LOADED = "loaded"
    NEW = "new"
    MISMATCHED = "mismatched"
    TIED = "tied"
    IGNORED = "ignored"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    UNUSED = "unused"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Color:
    """A fill, the line around it, and text of the same hue that can be read on the ground."""

    fill: str
    line: str
    text: str


@dataclass(frozen=True, slots=True)
class Palette:
    """Colors on one ground: `accent` marks what is read, `quiet` is for text that matters less."""

    tints: Mapping[Tint, Color]
    accent: Color
    quiet: str
    ground: str


_LIGHT = {
    Tint.LOADED: Color("#e6f5ea", "#2c8a4b", "#1d6b37"),
    Tint.NEW: Color("#fff3d6", "#c98a00", "#855700"),
    Tint.MISMATCHED: Color("#ffe6e3", "#d1372b", "#a8231a"),
    Tint.TIED: Color("#e0f3f7", "#1a8aa3", "#0d6478"),
    Tint.IGNORED: Color("#f7f3d9", "#a3942a", "#6b6010"),
    Tint.UNKNOWN: Color("#f7e8fb", "#a44bc0", "#7d2c98"),
    Tint.CHANGED: Color("#e3ebfc", "#3a6ad4", "#1f489f"),
    Tint.UNUSED: Color("#f0f1f3", "#9aa1ab", "#5c646f"),
    Tint.PLAIN: Color("#ffffff", "#b3bac4", "#1f2530"),
}
_DARK = {
    Tint.LOADED: Color("#12291a", "#46b36b", "#7bd698"),
    Tint.NEW: Color("#33270b", "#d9a02b", "#f0c260"),
    Tint.MISMATCHED: Color("#3a1714", "#f0675c", "#ff9d94"),
    Tint.TIED: Color("#0d2a31", "#3fb2cb", "#7fd5e8"),
    Tint.IGNORED: Color("#2b280e", "#b8a93f", "#dccf74"),
    Tint.UNKNOWN: Color("#2e1638", "#c27ade", "#dfaaf2"),
    Tint.CHANGED: Color("#14213d", "#6c95f0", "#a5c0fb"),
    Tint.UNUSED: Color("#1b1f26", "#6c7480", "#a0a8b3"),
    Tint.PLAIN: Color("#161b22", "#4a525e", "#e6e9ee"),
}
LIGHT = Palette(_LIGHT, Color("#dfe8ff", "#3b62d6", "#2448b8"), "#59616d", "#ffffff")
DARK = Palette(_DARK, Color("#1a2747", "#7b9bff", "#a9bfff"), "#9aa3af", "#0d1117")

_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


def escaped(text: str) -> str:
    """Escapes `text` for XML and HTML, between tags and inside quotes, in any encoding."""
    # A character beyond ASCII is written as its number.
    return text.translate(_ESCAPES).encode("ascii", "xmlcharrefreplace").decode("ascii")


def element(name: str, content: str = "", /, **attributes: object) -> str:
    """Writes an element and escapes its attributes; `content` is markup. `class_` is `class`, any other `_` is `-`."""
    return (
        f"{opening_tag(name, **attributes)[:-1]}/>"
        if not content
        else f"{opening_tag(name, **attributes)}{content}</{name}>"
    )


def opening_tag(name: str, /, **attributes: object) -> str:
    """Writes the tag that opens an element."""
    written = ""
    for key, value in attributes.items():
        text = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
        written += f' {key.rstrip("_").replace("_", "-")}="{escaped(text)}"'
    return f"<{name}{written}>"


def lines(parts: Iterable[str]) -> str:
    """Joins the parts on separate lines, without empty ones."""
    return "\n".join(part for part in parts if part)


# Names and labels in a page come from checkpoints: the browser must load and run nothing, even if an escape fails.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, style: str, body: Iterable[str]) -> str:
    """Writes a whole HTML page; `body` is markup, `title` is text."""
    return (
        lines(
            (
                "<!DOCTYPE html>",
                '<html lang="en">',
                "<head>",
                '<meta charset="utf-8">',
                f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                f"<title>{escaped(title)}</title>",
                f"<style>\n{style}</style>",
                "</head>",
                "<body>",
                *body,
                "</body>",
                "</html>",
            )
        )
        + "\n"
    )
