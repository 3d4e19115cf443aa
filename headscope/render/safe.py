"""Hostile text made harmless: names, labels and messages of others, before a terminal or a page sees them."""

from rich.text import Text


def safe(text: str) -> str:
    r"""`text` with everything invisible or active as a visible escape: `"a\x1b[2J"` is shown as `a\x1b[2J`.

    Escaped are control characters, bidirectional and zero-width marks, line and paragraph separators, spaces
    other than the plain one, and lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(ord(char)) for char in text)


_NAMED = {0x09: r"\t", 0x0A: r"\n", 0x0D: r"\r"}
_FORMS = ((0xFF, r"\x{:02x}"), (0xFFFF, r"\u{:04x}"), (0x10FFFF, r"\U{:08x}"))


def _escape(code: int) -> str:
    if code in _NAMED:
        return _NAMED[code]
    return next(form.format(code) for last, form in _FORMS if code <= last)


def label(text: str, style: str = "") -> Text:
    """`text` made safe, for Rich: never markup, never cut, broken only where a line is too short for it."""
    return Text(safe(text), style=style, overflow="fold")
