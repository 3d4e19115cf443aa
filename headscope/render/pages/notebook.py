"""Results as HTML for notebooks: the picture, and details that fold; light or dark as the notebook is.

The HTML runs no script, loads nothing and has no ids, so that any number of outputs share a page. Its rules hold below
`.headscope` only. Jupyter drops the rules and the drawing's tags from a notebook that is not trusted: then a sentence
stands for the drawing, and the details are plain lists and tables.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import groupby, zip_longest
from typing import Any

from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from headscope.facts import Finding, HeadParameter, ParameterStatus, Report, Severity
from headscope.facts.results.check import CheckResult
from headscope.facts.results.comparison import Comparison
from headscope.facts.stored.checkpoint import told_gaps
from headscope.render.diagram.markup import element, escaped, lines
from headscope.render.diagram.picture import Tint, picture_of
from headscope.render.diagram.svg import color_variables, drawing_rules, part_element
from headscope.render.head.stages import weight_size, weight_status
from headscope.render.screens.check import counts_of, headline
from headscope.render.screens.compare import compare_verdict
from headscope.render.screens.inspect import inspect_facts
from headscope.render.screens.result import result_screen
from headscope.render.text.console import SEVERITY, TONE, Tone
from headscope.render.text.safe import label, safe


def result_html(result: Any) -> str:
    """`result` (of any use case) as one `<div>`: the picture or a table where there is one; otherwise its screen."""
    match result:
        case CheckResult():
            return _block(_check(result))
        case Comparison():
            return _block(_comparison(result))
        case Report() if result.command != "diff-weights":
            return _block(_report(result))
    return _block((_screen(result_screen(result)),))


def _block(parts: Iterable[str]) -> str:
    return element("div", lines(("", element("style", f"\n{_STYLE}"), *parts, "")), class_="headscope")


def _report(report: Report) -> Iterator[str]:
    yield _drawing(report)
    facts = (_row("dt", escaped(name), "dd", _spans(body)) for name, body in inspect_facts(report))
    yield _folded("Model, pooling, labels, loss", element("dl", lines(facts)))
    if report.head is not None and report.head.tensors:
        yield _folded(f"Weights of the head: {_tally(report.head.tensors)}", _weights(report.head.tensors))
    yield from _findings_of(report)
    yield _folded("As text", _screen(result_screen(report)))


def _drawing(report: Report) -> str:
    """The picture; where the rules are dropped, `hidden` hides its texts, and the sentence is seen."""
    picture = picture_of(report)
    words = (
        f"{picture.title}, {picture.subtitle}: {picture.verdict}. Trust the notebook, or run the cell, to see the head."
    )
    sentence = element("p", escaped(words), class_="instead")
    return f'{sentence}\n<div class="drawing" hidden="hidden">{part_element(picture)}</div>'


def _findings_of(report: Report) -> Iterator[str]:
    if report.profile is None:
        return
    inner = lines(map(_finding, report.findings)) or element("p", "No findings.")
    is_grave = any(item.severity is Severity.ERROR for item in report.findings)
    title = f"Findings, weighed for {report.profile.value}: {counts_of(report.findings)}"
    yield _folded(title, inner, is_open=is_grave)


def _tally(tensors: Sequence[HeadParameter]) -> str:
    counts = {status: sum(item.status is status for item in tensors) for status in ParameterStatus}
    return ", ".join(f"{number:,} {status.value}" for status, number in counts.items() if number)


def _weights(tensors: Sequence[HeadParameter]) -> str:
    rows = ((weight_status(item), item.name, weight_size(item), item.dtype, f"{item.count:,}", _origin(item))
            for item in tensors)  # fmt: skip
    return _table(
        ("status", "name", "shape", "dtype", "elements", "from"), rows, [item.status.value for item in tensors]
    )


def _origin(item: HeadParameter) -> str:
    if item.status is ParameterStatus.UNKNOWN:
        return "not known"
    return ", ".join(item.checkpoint_keys) or "no checkpoint key"


def _check(result: CheckResult) -> Iterator[str]:
    yield element("p", _spans(headline(result)))
    yield from map(_finding, result.findings)
    yield from (element("p", _spans(label(f"not determined: {gap}", TONE[Tone.WARNING])))
                for gap in told_gaps(result.not_determined))  # fmt: skip
    if result.report is not None:
        yield _folded("The head", _drawing(result.report))
    yield _folded("As text", _screen(result_screen(result)))


def _finding(finding: Finding) -> str:
    """A finding: its title to fold, below it what was found, what to do, and the code that does it."""
    level = element("span", finding.severity.value, class_=_classes(SEVERITY[finding.severity]))
    code = "\n".join(map(safe, finding.code.splitlines()))
    inner = lines(
        (
            element("p", escaped(safe(finding.message))),
            element("p", escaped(safe(finding.remedy))) if finding.remedy else "",
            element("pre", escaped(code)) if code else "",
        )
    )
    title = f"{level} {escaped(safe(f'{finding.id} {finding.title}'))}"
    return _folded_markup(title, inner, is_open=finding.severity is Severity.ERROR)


def _comparison(result: Comparison) -> Iterator[str]:
    yield _screen(compare_verdict(result))
    names = [report.checkpoint.reference for report in result.reports]
    differences = [(item.what, *item.values) for item in result.differences]
    if differences:
        yield _table(("", *names), differences)
    for name, report in zip(names, result.reports, strict=True):
        yield _folded(f"The head of {name}", _drawing(report))
    yield _folded("As text", _screen(result_screen(result)))


def _folded(title: str, inner: str, *, is_open: bool = False) -> str:
    return _folded_markup(escaped(safe(title)), inner, is_open=is_open)


def _folded_markup(title: str, inner: str, *, is_open: bool) -> str:
    body = f"{element('summary', title)}\n{element('div', inner)}"
    return element("details", body, **({"open": "open"} if is_open else {}))


def _row(first: str, name: str, second: str, body: str) -> str:
    return f"<{first}>{name}</{first}>{element(second, body)}"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], tints: Sequence[str] = ()) -> str:
    """A table of foreign text; `tints` names the color of the first cell of each row."""
    head = element("tr", "".join(element("th", escaped(safe(title)), scope="col") for title in titles))
    body = (
        element("tr", "".join(_cell(text, tint if number == 0 else "") for number, text in enumerate(row)))
        for row, tint in zip_longest(rows, tints, fillvalue="")
    )
    return element("div", element("table", f"<thead>{head}</thead>\n<tbody>{lines(body)}</tbody>"), class_="wide")


def _cell(text: str, tint: str) -> str:
    return f'<td class="of-{tint}">{escaped(safe(text))}</td>' if tint else f"<td>{escaped(safe(text))}</td>"


def _screen(renderable: RenderableType) -> str:
    """What the terminal shows, in the colors of the picture."""
    console = _console()
    segments = console.render(renderable, console.options)
    return element("pre", _colored(segments).rstrip())


def _spans(text: Text) -> str:
    return _colored(text.render(_console())).rstrip()


def _console() -> Console:
    """A console that writes nothing: it only knows the width and that colors are wanted."""
    return Console(
        file=StringIO(), width=120, highlight=False, markup=False, emoji=False, color_system="truecolor",
        force_terminal=True, force_jupyter=False, legacy_windows=False, no_color=False,
    )  # fmt: skip


def _colored(segments: Iterable[Segment]) -> str:
    """Segments of a screen as escaped text in spans."""
    parts = []
    for style, group in groupby((part for part in segments if not part.control), key=lambda part: part.style):
        text = escaped("".join(part.text for part in group))
        classes = _classes(style)
        parts.append(element("span", text, class_=classes) if classes and text.strip() else text)
    return "".join(parts)


def _classes(style: Style | str | None) -> str:
    """The classes that stand for a terminal style."""
    known = Style.parse(style) if isinstance(style, str) else style
    if known is None:
        return ""
    words = [f"of-{_TINTS[known.color.name]}"] if known.color is not None and known.color.name in _TINTS else []
    words += ["dim"] * bool(known.dim) + ["bold"] * bool(known.bold)
    return " ".join(words)


_TINTS = {"green": "loaded", "yellow": "new", "red": "mismatched", "cyan": "tied", "magenta": "unknown"}
"""The colors of the terminal by the tint of the pictures that means the same."""

# Jupyter sets tables to the right and stripes them, in rules that are stronger than those of one class.
_RULES = """\
& { background: var(--ground); color: var(--plain-text); border: 1px solid var(--plain-line); border-radius: 7px;
  padding: 10px 14px; max-width: 1100px; font: 14px/1.45 system-ui, sans-serif }
svg { display: block; max-width: 100%; height: auto; margin: -10px 0 0 -14px }
.drawing { display: block !important }
.instead { display: none !important }
p { margin: 4px 0 }
details { margin: 4px 0 }
details > div { margin: 4px 0 8px 18px }
summary { cursor: pointer }
tr, th, td { background: none !important; border: 0 !important; text-align: left !important }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 2px 14px; margin: 0 }
dt { font-weight: 400; color: var(--quiet) }
dl, dt, dd { width: auto; padding: 0 }
dd { margin: 0; overflow-wrap: anywhere }
.wide { overflow-x: auto }
table { table-layout: auto; border-collapse: collapse; margin: 0; color: inherit; font-size: 13px }
td, th { padding: 2px 14px 2px 0; vertical-align: top; max-width: 480px }
td { overflow-wrap: anywhere }
th { font-weight: 400; color: var(--quiet) }
pre { margin: 4px 0; padding: 0; overflow-x: auto; color: inherit; white-space: pre }
pre, dd, td { font: 13px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace }
.dim { color: var(--quiet) }
.bold { font-weight: 600 }
"""


def _style() -> str:
    """The rules of an output, with the colors for a light and a dark notebook.

    Jupyter, VS Code and Colab say which theme they show, whatever the system prefers; elsewhere the system decides.
    """
    light, dark = (
        f"{{ {colors}; color-scheme: {name} }}" for colors, name in zip(color_variables(), _SCHEMES, strict=True)
    )
    themes = (
        f".headscope {light}",
        f"@media (prefers-color-scheme: dark) {{ html:not({_COLAB_LIGHT}) body:not({_LIGHT}) .headscope {dark} }}",
        f"{', '.join(f'{place} .headscope' for place in _DARK)} {dark}",
    )
    words = "".join(f".of-{tint.value} {{ color: var(--{tint.value}-text) }}\n" for tint in Tint)
    return lines((*themes, _scoped(f"{_RULES}{words}{drawing_rules()}")))


_SCHEMES = ("light", "dark")
_COLAB_LIGHT = "[theme=light]"
_LIGHT = "[data-jp-theme-light=true], [data-vscode-theme-kind$=light]"
_DARK = (
    "html[theme=dark]",
    "body[data-jp-theme-light=false]",
    "body[data-vscode-theme-kind=vscode-dark]",
    "body[data-vscode-theme-kind=vscode-high-contrast]",
)
_SELECTORS = re.compile(r"([^{}]+)(\{[^}]*\})")


def _scoped(rules: str) -> str:
    """`rules` below `.headscope` only; `&` is that element itself."""
    return "\n".join(
        f"{', '.join(_below(one.strip()) for one in selectors.split(','))} {' '.join(body.split())}"
        for selectors, body in _SELECTORS.findall(rules)
    )


def _below(selector: str) -> str:
    return ".headscope" if selector == "&" else f".headscope {selector}"


_STYLE = _style()
