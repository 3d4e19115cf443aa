"""How wide text is in a monospaced font of unknown make, and where it breaks: rather too wide than too narrow."""

import re
from collections.abc import Iterator

from rich.cells import cell_len

_ASCII = 0.61
_NARROW = 0.8
_WIDE = 1.4
_WORDS = re.compile(r"\s+|\S+")
_PIECES = re.compile(r"[^._/,:-]+[._/,:-]*|[._/,:-]+")


def text_width(text: str, size: float) -> float:
    """The width of `text` in pixels at a font size."""
    return size * sum(_advance(char) for char in text)


def _advance(char: str) -> float:
    if char.isascii():
        return _ASCII
    return _WIDE if cell_len(char) > 1 else _NARROW


def wrap_text(text: str, width: float, size: float) -> tuple[str, ...]:
    """`text` in lines no wider than `width`: broken at spaces, else after a dot or slash, else anywhere; never cut."""
    lines, line = [], ""
    for piece in _fitting_pieces(text, width, size):
        if line and text_width((line + piece).rstrip(), size) > width:
            lines.append(line.rstrip())
            line = ""
        line = line + piece if line or not piece.isspace() else ""
    return (*lines, line.rstrip()) if line.strip() or not lines else tuple(lines)


def _fitting_pieces(text: str, width: float, size: float) -> Iterator[str]:
    """Words and the spaces between them; a word that is too wide in parts."""
    for word in _WORDS.findall(text):
        if text_width(word, size) <= width:
            yield word
            continue
        for piece in _PIECES.findall(word):
            yield from _cut_to_fit(piece, width, size)


def _cut_to_fit(piece: str, width: float, size: float) -> Iterator[str]:
    part = ""
    for char in piece:
        if part and text_width(part + char, size) > width:
            yield part
            part = ""
        part += char
    yield part
