"""Pictures of a result of `probe`, SVG or an HTML page that loads nothing: the scores, and their curve by layer."""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headscope.core.words.safe import safe
from headscope.shared.pictures.markup import element, escaped, lines, page
from headscope.shared.pictures.plots import STYLE, plot_svg
from headscope.slices.probe.facts.result import Baseline, Candidate, ProbeResult, Vector
from headscope.slices.probe.screen.facts import detailed_facts
from headscope.slices.probe.screen.words import (
    METRICS,
    candidate_words,
    input_words,
    probe_answer,
    rows_of,
    vector_words,
    words_of,
)

_WIDTH = 940
_LEFT, _RIGHT = 60, 250
_TALL = 240
_ROW = 24
_NAMES = 500
_PER_LETTER = 6.65
_GAP = 14
_MARK = 3.5
_TICKS = 4


@dataclass(frozen=True, slots=True)
class _Curve:
    """Look of a curve: its color by name, the dashes of its line, and the shape of its points."""

    tint: str
    dashes: str
    point: str


# Dashes and shapes beside the colors: the curves must differ in print and for readers who see no colors.
_CURVES = {
    Vector.MASKED_MEAN: _Curve("accent", "none", "circle"),
    Vector.FIRST_TOKEN: _Curve("loaded", "6 3", "square"),
    Vector.LAST_NON_PAD_TOKEN: _Curve("unknown", "2 3", "diamond"),
}
_STYLE = f"""\
{STYLE}.plot {{ max-width: {_WIDTH}px }}
.plot .soft {{ fill: var(--soft) }} .plot .strong {{ font-weight: 600 }} .plot .ground {{ fill: var(--ground) }}
.plot .grid {{ stroke: var(--edge); stroke-opacity: .35 }}
.plot .curve {{ fill: none; stroke-width: 2 }} .plot .span {{ stroke-width: 2 }}
.plot .base {{ stroke: var(--soft); stroke-dasharray: 1 4; stroke-width: 1.4 }}
""" + "".join(
    f".plot .{tint}-line {{ stroke: var(--{tint}) }} .plot .{tint}-band {{ fill: var(--{tint}); fill-opacity: .12 }}\n"
    for tint in ("accent", "loaded", "unknown", "soft")
)
_PAGE = f"""\
{_STYLE}body {{ margin: 0 auto; padding: 16px; max-width: 1000px; background: var(--ground); color: var(--ink);
  font: 14px/1.45 system-ui, sans-serif }}
h1 {{ font-size: 20px; margin: 0 0 4px }} h2 {{ font-size: 16px; margin: 16px 0 8px }}
table {{ border-collapse: collapse }}
td, th {{ padding: 2px 16px 2px 0; vertical-align: top; text-align: left; font-weight: normal }}
td, th {{ overflow-wrap: anywhere }}
td.number {{ text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }}
th[scope=col], dt, td.soft {{ color: var(--soft) }}
tr.best td {{ font-weight: 600 }}
dl {{ margin: 0; display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 4px 16px }}
dd {{ margin: 0; overflow-wrap: anywhere }}
"""


def probe_picture(result: ProbeResult, format: str) -> str:
    """Draws the result as `svg` or `html`."""
    return _page_html(result) if format == "html" else _whole_svg(result)


def _page_html(result: ProbeResult) -> str:
    title = f"headscope probe: {safe(result.reference)}"
    curve, tall = _draw_curves(result)
    body = ["<main>", f"<h1>{escaped(title)}</h1>", f"<p><strong>{escaped(probe_answer(result))}</strong></p>"]
    if curve:
        body += ["<h2>Score by layer</h2>", _plot_svg("curve", _scores_in_words(result), tall, curve)]
    body += ["<h2>Scores</h2>", *_score_table(result), "<h2>How it was measured</h2>", "<dl>"]
    body += [f"<dt>{escaped(safe(name))}</dt><dd>{escaped(safe(said))}</dd>" for name, said in detailed_facts(result)]
    return page(title, _PAGE, (*body, "</dl>", "</main>"))


def _score_table(result: ProbeResult) -> Iterator[str]:
    titles = (_metric_name(result), "95% interval", "vector (at its best layer), or baseline", "size")
    yield "<table>"
    yield element("tr", "".join(element("th", escaped(title), scope="col") for title in titles))
    for item in rows_of(result):
        size = "" if isinstance(item, Baseline) else str(item.size)
        cells = (
            f'<td class="number">{item.mean:.3f}</td><td class="number soft">{item.low:.3f} to {item.high:.3f}</td>'
            f'<td>{escaped(safe(words_of(item, result)))}</td><td class="number soft">{size}</td>'
        )
        yield element("tr", cells, **({"class_": "best"} if item.name == result.best else {}))
    yield "</table>"


def _whole_svg(result: ProbeResult) -> str:
    """Draws one picture: the answer, the curves and the table below each other."""
    wrapped = textwrap.wrap(probe_answer(result), 138, break_long_words=True)
    parts = [element("text", escaped(line), class_="strong", x=0, y=16 + 17 * row) for row, line in enumerate(wrapped)]
    y: float = 17 * len(wrapped) + 14
    for drawing, tall in (_draw_curves(result), _draw_forest(result)):
        if drawing:
            parts.append(element("g", lines(drawing), transform=f"translate(0 {y})"))
            y += tall + 12
    ground = element("rect", class_="ground", x=-16, y=-16, width=_WIDTH + 32, height=y + 32)
    return _plot_svg("probe", _scores_in_words(result), y, [ground, *parts], style=_STYLE, margin=16) + "\n"


def _plot_svg(name: str, said: str, tall: float, parts: Sequence[str], *, style: str = "", margin: int = 0) -> str:
    wide, high = _WIDTH + 2 * margin, tall + 2 * margin
    box = {"width": wide, "height": f"{high:.0f}", "viewBox": f"{-margin} {-margin} {wide} {high:.0f}"}
    return plot_svg(name, "Scores of the vectors of a checkpoint", said, box, parts, style)


def _scores_in_words(result: ProbeResult) -> str:
    return "; ".join(f"{safe(words_of(item, result))}: {item.mean:.3f}" for item in rows_of(result))


def _metric_name(result: ProbeResult) -> str:
    return METRICS[result.candidates[0].metric]


def _draw_curves(result: ProbeResult) -> tuple[list[str], float]:
    """Draws the curves over the layers with their intervals; nothing for fewer than two layers.

    Returns the elements and their height.
    """
    points = [item for item in result.candidates if item.pooling in _CURVES and item.layer is not None]
    layers = sorted({item.layer for item in points if item.layer is not None})
    if len(layers) < 2:
        return [], 0
    low, high = min(item.low for item in points), max(item.high for item in points)
    wide = _WIDTH - _LEFT - _RIGHT

    def across(layer: int) -> float:
        return _LEFT + wide * (layer - layers[0]) / (layers[-1] - layers[0])

    def down(value: float) -> float:
        return 20 + _TALL * (high - value) / ((high - low) or 1)  # all values may be equal

    parts = [element("text", escaped(_metric_name(result)), class_="soft", x=0, y=8)]
    for number in range(_TICKS + 1):
        value = low + (high - low) * number / _TICKS
        parts.append(element("line", class_="grid", x1=_LEFT, x2=_LEFT + wide, y1=down(value), y2=down(value)))
        parts.append(element("text", f"{value:.3f}", class_="soft end", x=_LEFT - 8, y=down(value) + 4))
    every = -(-len(layers) // 16)
    for layer in layers[::every]:
        parts.append(element("text", str(layer), class_="soft middle", x=across(layer), y=_TALL + 38))
    parts.append(element("text", "layer (0: the embeddings)", class_="soft", x=_LEFT, y=_TALL + 56))
    ends: list[tuple[float, str, str]] = []
    for vector, look in _CURVES.items():
        curve = sorted((item for item in points if item.pooling is vector), key=lambda item: item.layer or 0)
        if curve:
            parts += _draw_curve(curve, look, across, down, result)
            ends.append((down(curve[-1].mean), vector_words(vector, input_words(result)), look.tint))
    for item in result.baselines:
        if low <= item.mean <= high:
            y = down(item.mean)
            parts.append(element("line", class_="base", x1=_LEFT, x2=_LEFT + wide, y1=y, y2=y))
            ends.append((y, words_of(item, result), "soft"))
    at: float = -_GAP
    for y, words, tint in sorted(ends):
        at = max(y + 4, at + _GAP)  # names that would touch are moved apart
        name = escaped(_shorten_text(safe(words), _RIGHT - 12))
        parts.append(element("text", name, class_=tint, x=_LEFT + wide + 12, y=at))
    return parts, _TALL + 64


def _draw_curve(
    curve: Sequence[Candidate],
    look: _Curve,
    across: Callable[[int], float],
    down: Callable[[float], float],
    result: ProbeResult,
) -> Iterator[str]:
    """Draws one curve: the band of its intervals, the line, and a point with a tooltip for each layer."""
    places = [across(item.layer or 0) for item in curve]
    upper = [(x, down(item.high)) for x, item in zip(places, curve, strict=True)]
    lower = [(x, down(item.low)) for x, item in zip(places, curve, strict=True)]
    yield element("polygon", class_=f"{look.tint}-band", points=_path_points([*upper, *reversed(lower)]))
    middle = [(x, down(item.mean)) for x, item in zip(places, curve, strict=True)]
    dashes = {} if look.dashes == "none" else {"stroke_dasharray": look.dashes}
    yield element("polyline", class_=f"curve {look.tint}-line", points=_path_points(middle), **dashes)
    for (x, y), item in zip(middle, curve, strict=True):
        said = f"{candidate_words(item, result)}: {item.mean:.3f} ({item.low:.3f} to {item.high:.3f})"
        tip = element("title", escaped(said))
        if look.point == "circle":
            yield element("circle", tip, class_=look.tint, cx=x, cy=y, r=_MARK)
            continue
        turn = {"transform": f"rotate(45 {x:.1f} {y:.1f})"} if look.point == "diamond" else {}
        size = 2 * _MARK
        yield element("rect", tip, class_=look.tint, x=x - _MARK, y=y - _MARK, width=size, height=size, **turn)


def _path_points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _shorten_text(words: str, wide: float) -> str:
    most = int(wide / _PER_LETTER)
    return words if len(words) <= most else f"{words[: most - 3]}..."


def _draw_forest(result: ProbeResult) -> tuple[list[str], float]:
    """Draws the table with each interval as a bar; returns the elements and their height."""
    rows = rows_of(result)
    low, high = min(item.low for item in rows), max(item.high for item in rows)
    start, wide = 64 + _NAMES, _WIDTH - 64 - _NAMES - 8

    def across(value: float) -> float:
        return start + wide * (value - low) / ((high - low) or 1)

    parts = [
        element("text", escaped(_metric_name(result)), class_="soft end", x=52, y=12),
        element("text", "vector (at its best layer), or baseline", class_="soft", x=64, y=12),
        element("text", f"{low:.3f}", class_="soft", x=start, y=12),
        element("text", f"{high:.3f} (95% intervals)", class_="soft end", x=start + wide, y=12),
    ]
    for number, item in enumerate(rows, start=1):
        y = _ROW * number + 12
        tint = "soft" if isinstance(item, Baseline) else "accent"
        weight = " strong" if item.name == result.best else ""
        words = words_of(item, result)
        words = words if isinstance(item, Baseline) else f"{words}, {item.size:,}"
        parts += [
            element("text", f"{item.mean:.3f}", class_=f"end{weight}", x=52, y=y),
            element("text", escaped(_shorten_text(safe(words), _NAMES)),
                    class_=f"{weight} {tint}".replace("accent", ""), x=64, y=y),
            element("line", class_=f"span {tint}-line", x1=across(item.low), x2=across(item.high), y1=y - 4, y2=y - 4),
            element("circle", class_=tint, cx=across(item.mean), cy=y - 4, r=_MARK),
        ]  # fmt: skip
    return parts, _ROW * len(rows) + 20
