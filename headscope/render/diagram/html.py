"""The picture as one HTML page that loads nothing: the SVG, and beside it what is known of the box pointed at."""

from collections.abc import Iterator

from headscope.render.diagram.markup import element, escaped, page
from headscope.render.diagram.picture import BoxKind, Node, Picture
from headscope.render.diagram.svg import svg_element

_STYLE = """\
:root { color-scheme: light dark; --ink: #1f2530; --soft: #59616d; --ground: #ffffff; --line: #b3bac4 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --soft: #9aa3af; --ground: #0d1117; --line: #4a525e }
}
body { margin: 0; padding: 16px; background: var(--ground); color: var(--ink);
  font: 14px/1.45 system-ui, sans-serif }
main { max-width: 720px }
svg { width: 100%; height: auto; display: block }
svg a:hover .box, svg a:focus .box, svg a:focus-visible .box { stroke-width: 2.6 }
svg a:focus { outline: none }
section { border: 1px solid var(--line); border-radius: 7px; padding: 8px 12px; margin: 8px 0; max-width: 694px }
section:target { border-width: 2px }
h1 { font-size: 15px; margin: 16px 0 4px } h2 { font-size: 14px; margin: 0 0 4px }
dl { margin: 0; display: grid; grid-template-columns: max-content 1fr; gap: 2px 12px }
dt { color: var(--soft) }
dd { margin: 0; overflow-wrap: anywhere; font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace }
.hint { display: none; color: var(--soft) }
@supports selector(:has(a)) {
  @media screen and (min-width: 1140px) {
    body { display: grid; grid-template-columns: 720px minmax(360px, 694px); gap: 24px; align-items: start }
    aside { position: sticky; top: 16px }
    aside h1, aside section { display: none }
    aside section:target, .hint { display: block }
    body:has(svg a:hover) section:target, body:has(svg a:focus-visible) section:target { display: none }
POINTED  }
}
"""
_POINTED = (
    "    body:has(.to-{id}:hover) #about-{id}, body:has(.to-{id}:focus-visible) #about-{id} {{ display: block }}\n"
)


def html_text(picture: Picture) -> str:
    """The page."""
    pointed = "".join(_POINTED.format(id=node.id) for node in picture.nodes)
    body = (
        "<main>",
        svg_element(picture, linked=True),
        "</main>",
        "<aside>",
        '<p class="hint">Point at a box, or reach it with the Tab key, to see what is known of it.</p>',
        "<h1>What is known of each box</h1>",
        *(_section(node) for node in picture.nodes),
        *(f"<p>{escaped(notice)}</p>" for notice in picture.notices),
        "</aside>",
    )
    return page(f"Classification head of {picture.title}", _STYLE.replace("POINTED", pointed), body)


def _section(node: Node) -> str:
    entries = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>" for name, value in _entries(node))
    inner = f"<h2>{escaped(node.title)}</h2>" + (f"<dl>{entries}</dl>" if entries else "")
    return element("section", inner, id=f"about-{node.id}")


def _entries(node: Node) -> Iterator[tuple[str, str]]:
    if node.mark:
        name, _, value = node.mark.partition(": ")
        yield name, value
    if node.kind is not BoxKind.STAGE:
        yield from node.pairs
    for line in node.lines:
        yield "", line
    yield from node.more
