"""The colors of the pictures on light and on dark ground; each goes with a word that says the same."""

from dataclasses import dataclass

from headscope.render.diagram.picture import Tint


@dataclass(frozen=True, slots=True)
class Color:
    """A fill, the line around it, and text of the same hue that can be read on the ground."""

    fill: str
    line: str
    text: str


LIGHT = {
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
DARK = {
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
ACCENT_LIGHT, ACCENT_DARK = Color("#dfe8ff", "#3b62d6", "#2448b8"), Color("#1a2747", "#7b9bff", "#a9bfff")
QUIET_LIGHT, QUIET_DARK = "#59616d", "#9aa3af"
GROUND_LIGHT, GROUND_DARK = "#ffffff", "#0d1117"
