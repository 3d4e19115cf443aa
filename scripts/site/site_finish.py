"""What pages of the site get after Zensical: pictures in their theme, commands to copy, link previews, a useful 404."""

import re
from collections.abc import Iterable, Iterator
from html import escape, unescape
from pathlib import Path

from scripts.site.site_policy import HUB, PAGE, with_policy

SOCIAL = "images/social.png"
_DARK_RULE = re.compile(r"@media \(prefers-color-scheme: dark\) \{ (svg \{ [^}]*\}) \}\n?")
_IMAGE = re.compile(r'<img\b[^>]*\bsrc="([^"]+\.svg)"[^>]*>')
_ENDING = re.compile(r"(\.light|\.dark)?\.svg$")
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
_DESCRIPTION = re.compile(r'<meta name="description" content="([^"]*)">')
_STYLE = re.compile(r'<link rel="stylesheet" href="([^"]*)assets/')
_SESSION = re.compile(r'<div class="language-(?P<kind>console|pycon) highlight">(?P<shown>.*?)</div>', re.DOTALL)
_PROMPTS = {"console": ("$ ", "> "), "pycon": (">>> ", "... ")}
_MARKUP = re.compile(r"<[^>]*>")
_NOT_FOUND = "<h1>404 - Not found</h1>"
_INVALID = {
    'type="checkbox" id="__drawer" autocomplete="off"': 'type="checkbox" id="__drawer"',
    'type="checkbox" id="__search" autocomplete="off"': 'type="checkbox" id="__search"',
    ' tabindex="">': ">",
}
"""HTML of the theme that validators reject."""
_ELSEWHERE = {
    "index.html": "Start",
    "questions.html": "Questions and answers",
    "atlas.html": "Atlas of heads",
    "cli.html": "Command line",
    "api.html": "Python API",
}


def finish(site: Path, name: str, address: str, hub: Iterable[str] = HUB) -> None:
    """Changes the pages in `site`; `address` is where they will be published, "" if that is not known.

    `hub` is where the page that looks at checkpoints finds the Hub.
    """
    themed = {path.resolve(): _themed(path) for path in sorted(site.rglob("*.svg"))}
    for path in sorted(site.rglob("*.html")):
        page = path.read_text(encoding="utf-8")
        page = _SESSION.sub(_with_commands, _with_themes(page, path.parent, themed))
        place = path.relative_to(site).as_posix()
        added = (*_preview(page, name, address, place), *_as_markdown(path))
        page = page.replace("</head>", "\n".join((*added, "</head>")), 1)
        page = page.replace(_NOT_FOUND, _not_found(page))
        for invalid, valid in _INVALID.items():
            page = page.replace(invalid, valid)
        path.write_text(with_policy(page, hub) if place == PAGE else page, encoding="utf-8")


def _themed(path: Path) -> bool:
    """Whether a picture follows the system's theme; then it is written once more for each theme of the page."""
    picture = path.read_text(encoding="utf-8")
    if not _DARK_RULE.search(picture):
        return False
    for theme in ("light", "dark"):
        path.with_suffix(f".{theme}.svg").write_text(in_theme(picture, theme), encoding="utf-8")
    return True


def in_theme(picture: str, theme: str) -> str:
    """A picture in one theme, whatever the system's is."""
    return _DARK_RULE.sub(lambda dark: f"{dark[1]}\n" if theme == "dark" else "", picture)


def _with_themes(page: str, folder: Path, themed: dict[Path, bool]) -> str:
    return _IMAGE.sub(lambda found: _both(found[0], folder / found[1], themed), page)


def _both(image: str, picture: Path, themed: dict[Path, bool]) -> str:
    """An image in both themes; the style sheet shows one of them. A phone shows its narrow form, where it has one."""
    has_narrow = picture.with_name(narrow_name(picture.name)).resolve() in themed
    if not themed.get(picture.resolve()):
        return _with_narrow(image) if has_narrow else image
    return "".join(
        _linked(image.replace('.svg"', f'.{theme}.svg"', 1), theme, has_narrow=has_narrow)
        for theme in ("light", "dark")
    )


def _linked(image: str, theme: str, *, has_narrow: bool) -> str:
    """An image that opens alone, where it can be enlarged."""
    found = _IMAGE.search(image)
    shown = _with_narrow(image) if has_narrow else image
    return f'<a class="only-{theme}" href="{found[1]}">{shown}</a>' if found else image


def _with_narrow(image: str) -> str:
    found = _IMAGE.search(image)
    source = f'<source media="(max-width: 45em)" srcset="{narrow_name(found[1])}">' if found else ""
    return f"<picture>{source}{image}</picture>"


def narrow_name(name: str) -> str:
    """The name of a picture's form for phones: `bert.narrow.dark.svg` for `bert.dark.svg`."""
    return _ENDING.sub(lambda ending: f".narrow{ending[0]}", name)


def _with_commands(session: re.Match[str]) -> str:
    """A session whose button copies what was typed: the theme's button takes `data-copy` before the text below it."""
    typed = "\n".join(typed_lines(unescape(_MARKUP.sub("", session["shown"])), session["kind"]))
    return session[0].replace("<div ", f'<div data-copy="{escape(typed)}" ', 1) if typed else session[0]


def typed_lines(session: str, kind: str) -> Iterator[str]:
    """The lines of a session that someone typed, without their prompts: not what was printed."""
    first, more = _PROMPTS[kind]
    is_typed, goes_on = False, False
    for line in session.split("\n"):
        prompts = (first, more) if is_typed else (first,)
        prompt = next((prompt for prompt in prompts if f"{line} ".startswith(prompt)), "")
        is_typed = bool(prompt) or goes_on
        if is_typed:
            yield line.removeprefix(prompt.rstrip()).removeprefix(" ") if prompt else line
        goes_on = kind == "console" and is_typed and line.endswith("\\")


def _preview(page: str, name: str, address: str, place: str) -> Iterator[str]:
    """What other sites and chats show of a link: Open Graph's tags. Addresses need to be whole."""
    title, description = _TITLE.search(page), _DESCRIPTION.search(page)
    plain = unescape(title[1]).removesuffix(f" - {name}") if title and place != "index.html" else name
    yield _tag("og:type", "website")
    yield _tag("og:site_name", name)
    yield _tag("og:title", plain)
    if description:
        yield _tag("og:description", unescape(description[1]))
    if address:
        yield _tag("og:url", f"{address.rstrip('/')}/{place}")
        yield _tag("og:image", f"{address.rstrip('/')}/{SOCIAL}")
        yield '<meta name="twitter:card" content="summary_large_image">'


def _as_markdown(page: Path) -> Iterator[str]:
    """A link to the same page as Markdown, for programs that read the site."""
    if page.with_suffix(".md").exists():
        yield f'<link rel="alternate" type="text/markdown" href="{page.stem}.md">'


def _tag(name: str, content: str) -> str:
    return f'<meta property="{name}" content="{escape(content)}">'


def _not_found(page: str) -> str:
    """The page for an address that is not there; links as its own head has them, as it is shown at any depth."""
    found = _STYLE.search(page)
    root = found[1] if found else ""
    links = "".join(f'<li><a href="{root}{place}">{title}</a></li>' for place, title in _ELSEWHERE.items())
    return (
        "<h1>This page doesn't exist</h1>\n<p>The address may have a typing error, or the page may have moved. "
        f"Search at the top, or continue with one of these:</p>\n<ul>{links}</ul>"
    )
