"""Foreign text in Markdown, as a summary on GitHub shows it."""

from headscope.render.text.safe import safe


def code(text: str) -> str:
    """`text` as code, also inside a table."""
    return f"`{safe(text).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def plain(text: str) -> str:
    """Text in which Markdown finds nothing to format, and GitHub nobody to notify.

    A backslash does not stop a mention; a space of no width, written as an entity, does.
    """
    escaped = "".join(f"\\{sign}" if sign in "\\`*_{}[]<>#|!&" else sign for sign in safe(text))
    return escaped.replace("@", "@&#8203;")
