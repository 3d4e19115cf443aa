"""The colors of the pictures on light and on dark ground; each goes with a word that says the same."""

from dataclasses import dataclass

from headscope.render.diagram.picture import Tint


@dataclass(frozen=True, slots=True)
class Colour:
    """A fill, the line around it, and text of the same hue that can be read on the ground."""

    fill: str
    line: str
    text: str


LIGHT = {
    Tint.LOADED: Colour("#e6f5ea", "#2c8a4b", "#1d6b37"),
    Tint.NEW: Colour("#fff3d6", "#c98a00", "#855700"),
    Tint.MISMATCHED: Colour("#ffe6e3", "#d1372b", "#a8231a"),
    Tint.TIED: Colour("#e0f3f7", "#1a8aa3", "#0d6478"),
    Tint.IGNORED: Colour("#f7f3d9", "#a3942a", "#6b6010"),
    Tint.UNKNOWN: Colour("#f7e8fb", "#a44bc0", "#7d2c98"),
    Tint.CHANGED: Colour("#e3ebfc", "#3a6ad4", "#1f489f"),
    Tint.UNUSED: Colour("#f0f1f3", "#9aa1ab", "#5c646f"),
    Tint.PLAIN: Colour("#ffffff", "#b3bac4", "#1f2530"),
}
DARK = {
    Tint.LOADED: Colour("#12291a", "#46b36b", "#7bd698"),
    Tint.NEW: Colour("#33270b", "#d9a02b", "#f0c260"),
    Tint.MISMATCHED: Colour("#3a1714", "#f0675c", "#ff9d94"),
    Tint.TIED: Colour("#0d2a31", "#3fb2cb", "#7fd5e8"),
    Tint.IGNORED: Colour("#2b280e", "#b8a93f", "#dccf74"),
    Tint.UNKNOWN: Colour("#2e1638", "#c27ade", "#dfaaf2"),
    Tint.CHANGED: Colour("#14213d", "#6c95f0", "#a5c0fb"),
    Tint.UNUSED: Colour("#1b1f26", "#6c7480", "#a0a8b3"),
    Tint.PLAIN: Colour("#161b22", "#4a525e", "#e6e9ee"),
}
ACCENT_LIGHT, ACCENT_DARK = Colour("#dfe8ff", "#3b62d6", "#2448b8"), Colour("#1a2747", "#7b9bff", "#a9bfff")
QUIET_LIGHT, QUIET_DARK = "#59616d", "#9aa3af"
GROUND_LIGHT, GROUND_DARK = "#ffffff", "#0d1117"
