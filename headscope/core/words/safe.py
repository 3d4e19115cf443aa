"""Hostile text made harmless: names, labels and messages of others, before a terminal or a page sees them."""

from rich.text import Text


def safe(text: str) -> str:
    r"""Writes everything invisible or active in `text` as a visible escape: `"a\x1b[2J"` becomes `a\x1b[2J`.

    Escaped are control characters, bidirectional and zero-width marks, fillers and variation selectors, line and
    paragraph separators, spaces other than the plain one, and lone surrogates.
    """
    # Nearly every name ends here; walking over the characters is slow.
    if text.isascii() and text.isprintable():
        return text
    shown = []
    for char in text:
        code = ord(char)
        if char.isprintable() and not any(first <= code <= last for first, last in _INVISIBLE):
            shown.append(char)
        else:
            shown.append(_NAMED.get(code) or next(form.format(code) for last, form in _FORMS if code <= last))
    return "".join(shown)


_INVISIBLE = (
    (0x034F, 0x034F),  # combining grapheme joiner
    (0x115F, 0x1160),  # Hangul choseong and jungseong fillers
    (0x17B4, 0x17B5),  # Khmer inherent vowels
    (0x180B, 0x180F),  # Mongolian variation selectors
    (0x2800, 0x2800),  # blank Braille pattern
    (0x3164, 0x3164),  # Hangul filler
    (0xFE00, 0xFE0F),  # variation selectors
    (0xFFA0, 0xFFA0),  # halfwidth Hangul filler
    (0x1D159, 0x1D159),  # musical null notehead
    (0xE0100, 0xE01EF),  # variation selectors supplement
)
"""Ranges, first and last, that `str.isprintable` accepts but nobody sees: Default_Ignorable_Code_Point, and blanks."""
_NAMED = {0x09: r"\t", 0x0A: r"\n", 0x0D: r"\r"}
_FORMS = ((0xFF, r"\x{:02x}"), (0xFFFF, r"\u{:04x}"), (0x10FFFF, r"\U{:08x}"))


def label(text: str, style: str = "") -> Text:
    """Makes `text` safe for Rich: never markup, never cut, broken only if a line is too short for it."""
    return Text(safe(text), style=style, overflow="fold")


def code_span(text: str) -> str:
    """Writes `text` as code of Markdown, inside a table too."""
    return f"`{safe(text).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def plain(text: str) -> str:
    """Escapes `text` so that Markdown finds nothing to format in it, and GitHub nobody to notify.

    A backslash does not stop a mention; a space of no width, written as an entity, does.
    """
    escaped = "".join(f"\\{sign}" if sign in "\\`*_{}[]<>#|!&" else sign for sign in safe(text))
    return escaped.replace("@", "@&#8203;")
