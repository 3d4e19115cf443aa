"""Plots of counts as inline SVG for a page that has `STYLE`: light and dark, readable by screen readers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headscope.core.words.safe import safe
from headscope.shared.pictures.markup import DARK, LIGHT, Palette, Tint, element, escaped, lines, opening_tag

_WIDTH = 640
_LABELS = 300
_ROW = 24
_PER_LETTER = 6.7
_LETTERS = int(_LABELS / _PER_LETTER) - 1
_TALL = 140

ACCENT = "accent"
_TINTS = (Tint.LOADED, Tint.MISMATCHED, Tint.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Bar:
    """A count and what it is of; `tint` is a `Tint` by name, or `ACCENT`."""

    name: str
    count: int
    tint: str = ACCENT


@dataclass(frozen=True, slots=True)
class Column:
    """A count and what it is of, in two parts, one below the other under a narrow column."""

    parts: tuple[str, str]
    count: int

    @property
    def name(self) -> str:
        """Parts on one line."""
        return " ".join(self.parts)


def _plot_rules() -> str:
    fills = "".join(f".plot .{name} {{ fill: var(--{name}) }}\n" for name in (ACCENT, *(tint.value for tint in _TINTS)))
    return (
        f":root {{ color-scheme: light dark; {_palette_variables(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_palette_variables(DARK)} }} }}\n"
        ".plot { display: block; width: 100%; height: auto; max-width: 640px }\n"
        ".plot text { font: 11px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: var(--ink) }\n"
        ".plot .count { fill: var(--soft) }\n"
        ".plot .end { text-anchor: end } .plot .middle { text-anchor: middle }\n"
        f".plot .axis {{ stroke: var(--edge) }}\n{fills}"
    )


def _palette_variables(palette: Palette) -> str:
    colors = {tint.value: palette.tints[tint].line for tint in _TINTS} | {ACCENT: palette.accent.line}
    plain = palette.tints[Tint.PLAIN]
    colors |= {"ink": plain.text, "edge": plain.line, "soft": palette.quiet, "ground": palette.ground}
    return "; ".join(f"--{name}: {value}" for name, value in colors.items())


STYLE = _plot_rules()
"""The rules that a page with plots needs; they define the colors of the page too."""


def bars_svg(name: str, title: str, bars: Sequence[Bar]) -> str:
    """Draws bars from left to right, one below the other; `name` must be unique in the page."""
    most = max(bar.count for bar in bars)
    parts = [element("line", class_="axis", x1=_LABELS, x2=_LABELS, y1=0, y2=_ROW * len(bars))]
    for place, bar in enumerate(bars):
        # At least one pixel: a count of 1 beside one of thousands must not vanish.
        y, length = _ROW * place, max(260 * bar.count / most, 1.0)
        name_shown = safe(bar.name)
        name_shown = name_shown if len(name_shown) <= _LETTERS else f"{name_shown[: _LETTERS - 3]}..."
        parts += [
            element("text", escaped(name_shown), class_="end", x=_LABELS - 8, y=y + 16),
            element("rect", class_=bar.tint, x=_LABELS, y=y + 4, width=length, height=_ROW - 8),
            element("text", f"{bar.count:,}", class_="count", x=_LABELS + length + 6, y=y + 16),
        ]
    return _plot_of_counts(name, title, bars, _ROW * len(bars), parts)


def columns_svg(name: str, title: str, columns: Sequence[Column]) -> str:
    """Draws columns side by side, for neighboring intervals; `name` must be unique in the page."""
    most = max(column.count for column in columns)
    wide = min(_WIDTH / len(columns), 120)
    ground = _TALL + 18
    parts = [element("line", class_="axis", x1=0, x2=wide * len(columns), y1=ground, y2=ground)]
    for place, column in enumerate(columns):
        tall, middle = _TALL * column.count / most, wide * (place + 0.5)
        box = {"x": wide * place + 3, "y": ground - tall, "width": wide - 6, "height": tall}
        parts += [element("rect", class_=ACCENT, **box)] if column.count else []
        parts.append(element("text", f"{column.count:,}", class_="count middle", x=middle, y=ground - tall - 5))
        parts += [
            element("text", escaped(word), class_="middle", x=middle, y=ground + 15 + 13 * line)
            for line, word in enumerate(column.parts)
        ]
    return _plot_of_counts(name, title, columns, ground + 36, parts)


def _plot_of_counts(name: str, title: str, bars: Sequence[Bar | Column], height: float, parts: Sequence[str]) -> str:
    said = "; ".join(f"{safe(bar.name)}: {bar.count:,}" for bar in bars)
    whole = {"width": _WIDTH, "height": height, "viewBox": f"0 0 {_WIDTH} {height:.0f}"}
    return plot_svg(name, title, said, whole, parts)


def plot_svg(  # noqa: PLR0917  in the order of the markup
    name: str, title: str, said: str, size: Mapping[str, object], parts: Iterable[str], style: str = ""
) -> str:
    """Writes an `<svg>` of parts; `said` is its content in words. One that is a file, outside a page, has a `style`."""
    alone = {"xmlns": "http://www.w3.org/2000/svg"} if style else {}
    return lines(
        (
            opening_tag("svg", class_="plot", role="img", aria_labelledby=f"{name}-title {name}-desc", **alone, **size),
            element("title", escaped(title), id=f"{name}-title"),
            element("desc", escaped(said), id=f"{name}-desc"),
            element("style", style) if style else "",
            *parts,
            "</svg>",
        )
    )
