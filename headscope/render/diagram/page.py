"""The shell of a page that loads nothing: no script, no font, no picture from elsewhere."""

from collections.abc import Iterable

from headscope.render.diagram.markup import escaped, lines

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, style: str, body: Iterable[str]) -> str:
    """A whole HTML page; `body` is markup, `title` is text."""
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
